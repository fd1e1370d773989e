"""Tables 6 and 11: numbers from synthetic probes, and what a failed pack says."""

import pandas as pd
import pytest
from synthetic_records import identity, latency_rows

from cast.experiments.records import HYBRID_LATENCY, LATENCY
from figures import data, table6, table11, tables

S, HYBRID = "smollm2_fp32", "tiny_qwen3_5"
BEHIND = {256: {1: 30.0, 16: 40.0, 64: 60.0, 128: 96.0}, 4096: {1: 60.0, 16: 80.0, 64: 88.0, 128: 136.0}}
PACKS = {256: {1: 20.0, 2: 29.0, 16: 30.0, 128: 41.2}, 1024: {1: 22.0, 2: 33.0, 16: 34.0, 128: 45.2}}


def probed(setting, experiment, medians, **columns):
    return [
        row | {"experiment": experiment, "setting": setting, "prefix_tokens": prefix, **columns}
        for prefix, curve in medians.items()
        for row in latency_rows(setting, curve)
        if row["component"] == "target_forward" or not columns
    ]


def out_of_memory(rows, prefix, packed):
    gone = dict.fromkeys({"latency_ms", "weights", "fused_kernels"} & set(rows[0]))
    gone |= {"status": "failed", "reason": "out of memory"}
    return [row | gone if (row["prefix_tokens"], row["packed_tokens"]) == (prefix, packed) else row for row in rows]


def ours(table):
    return table.data[table.data["source"] == "ours"]


@pytest.fixture
def table_of_prefixes(folder):
    rows = out_of_memory(probed(S, "prefix_probe", BEHIND), 4096, 128)
    folder._write("prefix_probe", S, "random", rows, LATENCY, 1.0)
    return table6.build(data.load(folder.root, settings=["not_probed", S]))


def test_table6_by_prefix_with_ratios_and_slopes(table_of_prefixes):
    frame = ours(table_of_prefixes)
    by = frame[frame["quantity"] == "latency_ms"].set_index(["prefix_tokens", "packed_tokens"])
    assert by.loc[(256, 128), "value"] == pytest.approx(96.0)
    assert by.loc[(256, 128), "ratio_to_16"] == pytest.approx(2.4)
    assert by.loc[(4096, 1), "ratio_to_16"] == pytest.approx(0.75)
    assert (by.loc[(256, 16), "q25"], by.loc[(256, 16), "q75"]) == pytest.approx((39.6, 40.4))
    assert by.loc[(256, 16), "iterations"] == 5
    slopes = frame[frame["quantity"] == "slope_endpoints_ms_per_token"].set_index("prefix_tokens")["value"]
    assert slopes[256] == pytest.approx(56 / 112)
    assert slopes[4096] == pytest.approx(8 / 48)  # what is left of the range
    squares = frame[frame["quantity"] == "slope_least_squares_ms_per_token"].set_index("prefix_tokens")["value"]
    assert squares[256] == pytest.approx(9536 / 18944)  # sums of products and of squares, by hand
    assert set(frame["setting"]) == {S}  # one that this experiment never meant is no row


def test_table6_says_which_pack_failed_and_which_was_not_probed(table_of_prefixes):
    short, long = (row.cells for row in table_of_prefixes.rows if not row.paper)
    texts = dict(zip(table_of_prefixes.header, long, strict=True))
    assert (short[0], short[1], texts["Prefix"]) == (S, "256", "4,096")
    assert texts["n=16"] == "80.00 (1.00×)"
    assert texts["n=128"].text == "not measured: out of memory"
    assert texts["n=32"].missing == "not part of this prefix_probe"


def test_table6_recomputes_the_papers_slopes_within_its_rounding(table_of_prefixes):
    theirs = table_of_prefixes.data[table_of_prefixes.data["source"] == "paper"]
    printed, ends = (
        theirs[theirs["quantity"] == f"slope_{name}_ms_per_token"].set_index(["setting", "prefix_tokens"])["value"]
        for name in ("printed", "endpoints")
    )
    assert len(printed) == 9
    assert (printed - ends).abs().max() < 0.001  # latencies are printed to 0.1 ms


def test_table6_has_the_coder_that_the_text_alone_prints(table_of_prefixes):
    frame = table_of_prefixes.data.query("source == 'paper' and setting == 'h100_sxm-qwen3_coder_30b_a3b'")
    latencies = frame[frame["quantity"] == "latency_ms"].set_index("packed_tokens")["value"]
    assert latencies.to_dict() == {16: 58.7, 128: 57.4}
    (row,) = (row for row in table_of_prefixes.rows if "Coder" in str(row.cells[0]))
    assert dict(zip(table_of_prefixes.header, row.cells, strict=True))["n=32"] == tables.NONE


def test_table11_marks_random_weights_and_kernels(folder):
    rows = probed(HYBRID, "hybrid_probe", PACKS, weights="random", fused_kernels="none")
    rows = [row | {"fused_kernels": "fla"} if row["packed_tokens"] > 1 else row for row in rows]
    rows = out_of_memory(rows, 1024, 128)
    folder._write("hybrid_probe", HYBRID, "random", rows, HYBRID_LATENCY, 1.0)
    plain = probed("checkpointed", "hybrid_probe", PACKS, weights="checkpoint", fused_kernels="none")
    folder._write("hybrid_probe", "checkpointed", "random", plain, HYBRID_LATENCY, 1.0)
    table = table11.build(data.load(folder.root, settings=[HYBRID]))
    random, longer, own, _ = (dict(zip(table.header, r.cells, strict=True)) for r in table.rows if not r.paper)
    assert random["Setting"] == f"{HYBRID}, random weights"
    assert random["Kernels"] == "plain (n=1); fla (n=2, 16, 128)"
    assert (own["Setting"], own["Kernels"]) == ("checkpointed", "plain")
    assert random["entry, n=2"] == "+9.0 (+45%)"
    assert longer["n=128"].missing == "out of memory"
    frame = ours(table)
    entry = frame[(frame["setting"] == HYBRID) & (frame["prefix_tokens"] == 1024)].set_index("quantity")["value"]
    assert (entry["entry_ms"], entry["entry_percent"]) == pytest.approx((11.0, 50.0))
    slope = frame[frame["quantity"] == "slope_endpoints_ms_per_token"].set_index(["setting", "prefix_tokens"])["value"]
    assert slope[(HYBRID, 256)] == pytest.approx(0.1)
    assert pd.isna(slope[(HYBRID, 1024)])
    weights = frame[frame["quantity"] == "latency_ms"].groupby("setting")["weights"].unique()
    assert (*weights[HYBRID], *weights["checkpointed"]) == ("random", "checkpoint")


def test_table11_of_a_target_that_is_not_served(folder):
    failed = identity("hybrid_probe", HYBRID, "random") | {"status": "failed", "reason": "the checkpoint is gated"}
    failed |= {"component": "target_forward", "prefix_tokens": 256, "packed_tokens": 1, "iteration": 0}
    failed |= dict.fromkeys(["latency_ms", "weights", "fused_kernels"])
    folder._write("hybrid_probe", HYBRID, "random", [failed], HYBRID_LATENCY, 1.0)
    table = table11.build(data.load(folder.root))
    row = table.rows[0].cells
    assert (row[0], row[1]) == (HYBRID, "–")
    assert {cell.missing for cell in row[3:-3]} == {"the checkpoint is gated"}
