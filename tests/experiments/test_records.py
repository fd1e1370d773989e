import errno
import math

import numpy as np
import pandas as pd
import pytest

from cast.errors import CastError
from cast.experiments.records import DECODE, LATENCY, SCORES, read_records, write_records

IDENTITY = {
    "experiment": "width_sweep",
    "setting": "laptop-tiny",
    "device": "cpu",
    "target": "tiny",
    "drafter": "tiny-head",
    "domain": "math",
    "dtype": "fp32",
    "engine": "eager",
    "threads": 2,
    "host": "here",
    "session": "s1",
    "status": "measured",
    "reason": "",
}


def decode_row(**changes):
    row = IDENTITY | {
        "method": "cast",
        "budget": 15,
        "prompt_id": "math/0",
        "prompt_index": 0,
        "repeat": 0,
        "seed": 0,
        "temperature": 0.0,
        "sampler": "greedy",
        "top_k": 8,
        "block_size": 16,
        "max_new_tokens": 64,
        "order": 1,
        "traced": False,
        "prompt_tokens": 40,
        "new_tokens": 50,
        "rounds": 20,
        "committed_tokens": 51,
        "stop_reason": "stop",
        "prefill_ms": 12.5,
        "first_draft_ms": 3.0,
        "decode_ms": 1000.0,
        "ms_per_token": 20.0,
        "drafter_passes": 20,
        "target_passes": 21,
        "draft_ms_per_round": math.nan,
        "verify_ms_per_round": math.nan,
        "overhead_ms_per_round": math.nan,
        "repeat_share": 0.05,
        "departure": -1,
        "departure_gap": math.nan,
        "output_sha256": "0" * 64,
    }
    assert set(changes) <= set(row)
    return row | changes


MEASURED = [
    *("new_tokens", "rounds", "committed_tokens", "stop_reason", "prefill_ms", "first_draft_ms", "decode_ms"),
    *("ms_per_token", "drafter_passes", "target_passes", "repeat_share", "departure", "output_sha256"),
]


def failed_row(**changes):
    return decode_row(**({"status": "failed", "reason": "out of memory"} | dict.fromkeys(MEASURED) | changes))


def latency_row(**changes):
    row = IDENTITY | {"component": "target_forward", "prefix_tokens": 256, "packed_tokens": 16}
    return row | {"iteration": 0, "latency_ms": 9.5} | changes


def scores_row(**changes):
    return IDENTITY | {"rank": 1, "mass": 0.8, "rounds": 300} | changes


def test_round_trip_keeps_values_types_and_column_order(tmp_path):
    path = tmp_path / "width_sweep" / "laptop" / "math.parquet"
    traced = decode_row(traced=True, draft_ms_per_round=3.0, verify_ms_per_round=40.0, overhead_ms_per_round=1.0)
    rows = [decode_row(), traced, failed_row(budget=31), failed_row(budget=63, prompt_tokens=None)]
    frame = pd.DataFrame(rows)[sorted(decode_row())]
    write_records(frame, path, DECODE)
    back = read_records(path, DECODE)
    assert list(back.columns) == list(DECODE.columns)
    assert back["committed_tokens"].dropna().tolist() == [51, 51]
    assert back["traced"].tolist() == [False, True, False, False]
    assert math.isnan(back["ms_per_token"][2])
    assert back["reason"].tolist() == ["", "", "out of memory", "out of memory"]
    assert str(back["rounds"].dtype) == "Int64" and str(back["decode_ms"].dtype) == "float64"
    assert [file.name for file in path.parent.iterdir()] == ["math.parquet"]


def test_the_other_schemas_round_trip(tmp_path):
    probe = [latency_row(iteration=i) for i in range(3)]
    probe.append(latency_row(packed_tokens=128, status="failed", reason="out of memory", latency_ms=None))
    write_records(pd.DataFrame(probe), tmp_path / "probe.parquet", LATENCY)
    assert read_records(tmp_path / "probe.parquet", LATENCY)["latency_ms"].notna().sum() == 3
    scores = [scores_row(), scores_row(rank=2, mass=np.float32(0.3))]
    write_records(pd.DataFrame(scores), tmp_path / "scores.parquet", SCORES)
    assert read_records(tmp_path / "scores.parquet", SCORES)["rank"].tolist() == [1, 2]


def test_several_files_become_one_frame(tmp_path):
    for domain in ("code", "math"):
        write_records(pd.DataFrame([decode_row(domain=domain)]), tmp_path / f"{domain}.parquet", DECODE)
    both = read_records(sorted(tmp_path.glob("*.parquet")), DECODE)
    assert both["domain"].tolist() == ["code", "math"] and both.index.tolist() == [0, 1]
    assert read_records(str(tmp_path / "code.parquet"), DECODE).shape[0] == 1


def test_autoregressive_drafts_nothing(tmp_path):
    row = decode_row(method="autoregressive", budget=0, first_draft_ms=None, drafter_passes=0, rounds=50)
    write_records(pd.DataFrame([row]), tmp_path / "x.parquet", DECODE)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (decode_row(method="beam"), "column method, row 1: 'beam' violates isin"),
        (decode_row(ms_per_token=-20.0), "column ms_per_token, row 1: -20.0"),
        (decode_row(ms_per_token=21.0), "column ms_per_token, row 1: 21.0 must be decode_ms / new_tokens"),
        (
            decode_row(decode_ms=0.0, ms_per_token=0.0),
            "column (decode_ms|ms_per_token), row 1: 0.0 violates greater",
        ),
        (
            decode_row(decode_ms=None),
            "column decode_ms, row 1: an empty value must be filled in measured rows",
        ),
        (
            decode_row(stop_reason=None),
            "column stop_reason, row 1: an empty value must be filled in measured rows",
        ),
        (
            decode_row(prompt_tokens=None),
            "column prompt_tokens, row 1: an empty value must be filled in measured rows",
        ),
        (
            decode_row(committed_tokens=19, new_tokens=20, ms_per_token=50.0),
            "column committed_tokens, row 1: 19",
        ),
        (decode_row(max_new_tokens=49), "column new_tokens, row 1: 50 must be at most max_new_tokens"),
        (decode_row(committed_tokens=40), "column new_tokens, row 1: 50 must be at most"),
        (decode_row(rounds=20.5), "column rounds, row 1: 20.5 is not of type Int64"),
        (decode_row(rounds="many"), "column rounds, row 1: 'many' is not of type Int64"),
        (decode_row(traced=None), "column traced, row 1: is empty"),
        (decode_row(setting=None), "column setting, row 1: is empty"),
        (decode_row(setting=""), "column setting, row 1: '' violates"),
        (decode_row(threads=0), "column threads, row 1: 0"),
        (decode_row(repeat_share=1.5), "column repeat_share, row 1: 1.5"),
        (
            decode_row(departure_gap=0.1),
            "column departure_gap, row 1: 0.1 must be empty where nothing departs",
        ),
        (decode_row(verify_ms_per_round=4.0), "column verify_ms_per_round, row 1: 4.0 must be empty unless"),
        (decode_row(output_sha256="abc"), "column output_sha256, row 1: 'abc'"),
        (decode_row(method="autoregressive"), "column budget, row 1: 15 must be 0 for autoregressive"),
        (decode_row(reason="slow"), "column reason, row 1: 'slow' must say why in failed rows and be empty"),
        (decode_row(status="done"), "column status, row 1: 'done'"),
        (failed_row(reason=""), "column reason, row 1: '' must say why"),
        (
            failed_row(decode_ms=5.0),
            "column decode_ms, row 1: 5.0 must be filled in measured rows and empty in failed",
        ),
        (failed_row(first_draft_ms=5.0), "column first_draft_ms, row 1: 5.0 must be empty in failed rows"),
        (failed_row(departure=-1), "column departure, row 1: -1 must be empty in failed rows"),
        (decode_row(departure=None, departure_gap=0.1), "column departure_gap, row 1: 0.1 must be empty where"),
        (decode_row(budget=31), "row 1: repeats an earlier row .*budget=31"),
    ],
)
def test_a_violation_names_column_and_first_bad_row(tmp_path, bad, message):
    frame = pd.DataFrame([decode_row(budget=31), bad], index=[7, 7])
    with pytest.raises(CastError, match=message) as caught:
        write_records(frame, tmp_path / "x.parquet", DECODE)
    assert "\n" not in str(caught.value) and "x.parquet: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row", "schema", "message"),
    [
        (latency_row(latency_ms=0.0), LATENCY, "column latency_ms, row 0"),
        (latency_row(component="prefill"), LATENCY, "column component, row 0"),
        (latency_row(packed_tokens=0), LATENCY, "column packed_tokens, row 0"),
        (scores_row(mass=1.5), SCORES, "column mass, row 0"),
        (scores_row(rank=0), SCORES, "column rank, row 0"),
        (scores_row(status="failed", reason="no rounds"), SCORES, "column mass, row 0"),
    ],
)
def test_violations_of_the_other_schemas(tmp_path, row, schema, message):
    with pytest.raises(CastError, match=message):
        write_records(pd.DataFrame([row]), tmp_path / "x.parquet", schema)


def test_columns_must_be_exactly_those_of_the_schema(tmp_path):
    with pytest.raises(CastError, match="column speed is unknown"):
        write_records(pd.DataFrame([decode_row() | {"speed": 1}]), tmp_path / "x.parquet", DECODE)
    with pytest.raises(CastError, match="column rounds is missing"):
        write_records(pd.DataFrame([decode_row()]).drop(columns="rounds"), tmp_path / "x.parquet", DECODE)
    with pytest.raises(CastError, match="no rows"):
        write_records(pd.DataFrame([decode_row()]).iloc[:0], tmp_path / "x.parquet", DECODE)


def test_what_was_written_is_checked_again_when_read(tmp_path):
    path = tmp_path / "x.parquet"
    pd.DataFrame([latency_row()]).to_parquet(path)
    with pytest.raises(CastError, match=r"x\.parquet: column component is unknown"):
        read_records(path, SCORES)
    pd.DataFrame([latency_row(latency_ms=-1.0)]).to_parquet(path)
    with pytest.raises(CastError, match=r"column latency_ms, row 0: -1\.0"):
        read_records(path, LATENCY)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CastError, match="no such record file"):
        read_records(tmp_path / "x.parquet", LATENCY)
    with pytest.raises(CastError, match="at least one file"):
        read_records([], LATENCY)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 half a file")
    with pytest.raises(CastError, match="not a readable Parquet file") as caught:
        read_records(tmp_path / "x.parquet", LATENCY)
    assert "\n" not in str(caught.value)
    assert "give another latency record, or run the job" in str(caught.value)


def test_a_record_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def refuses(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "x.parquet").touch()
    monkeypatch.setattr(pd, "read_parquet", refuses)
    with pytest.raises(CastError, match=r"x\.parquet: cannot be read \(Permission denied\); change its permissions"):
        read_records(tmp_path / "x.parquet", LATENCY)
