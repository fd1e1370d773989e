"""What leaves the records: W&B runs on disk and online, the report of a study, the archive."""

import hashlib
import json
import struct
import time
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from probe import probe

from cast.errors import CastError
from jobs import composition, tracking
from workflow.lib import sync

PROBE = ["prefix_tokens=16", "packed_tokens=[1,4,16,32,64,128]", "warmups=1", "iterations=2"]


@pytest.mark.slow
def test_tracking_offline_leaves_a_run_that_can_be_read_back(tiny_job, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = tiny_job("latency_probe", *PROBE, "tracking=offline", domain=None)
    probe(config)
    (folder,) = sync.newest_runs(tmp_path)
    (file,) = folder.glob("run-*.wandb")
    deadline = time.monotonic() + 20  # the service writes on after the run has ended
    while not any(record.HasField("exit") for record in offline_records(file)) and time.monotonic() < deadline:
        time.sleep(0.1)
    records = offline_records(file)
    (run,) = (record.run for record in records if record.HasField("run"))
    assert (run.run_group, run.job_type, run.project) == ("tiny_qwen3", "latency_probe", "cast")
    written = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert written["packed_tokens"] == [1, 4, 16, 32, 64, 128]
    assert written["input_digests"] == {}
    assert any(item.key == "rows" or "rows" in item.nested_key for r in records for item in r.history.item)
    assert any(record.HasField("artifact") for record in records)
    assert "warning" not in capsys.readouterr().err


def offline_records(file):
    """The records of an offline run: a LevelDB log of protobuf messages in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts, found = file.read_bytes(), 7, [], []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            found.append(record)
            parts = []
    return found


def test_a_job_by_hand_prints_its_summary(tiny_job, capsys):
    for out, told in ((None, "ms_per_token/cast_7: 28.51\n"), ("results/x/record.parquet", "")):
        config = tiny_job("width_sweep")
        config.out = out
        tracking.track(config, Path("record.parquet"), None, {"ms_per_token/cast_7": 28.5123})
        assert capsys.readouterr().out == told


def test_wandbs_own_switch_turns_tracking_off(tiny_job, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(tracking, "_log", lambda *_: pytest.fail("it was tracked"))
    tracking.track(tiny_job("width_sweep", "tracking=offline"), Path("record.parquet"), None, {})


def test_only_the_last_run_of_a_cell_is_synchronised(tmp_path):
    for name in ("20260101_000000-a", "20260102_000000-a", "20260101_000001-b"):
        (tmp_path / "wandb/wandb" / f"offline-run-{name}").mkdir(parents=True)
    assert [path.name for path in sync.newest_runs(tmp_path)] == [
        "offline-run-20260101_000001-b",
        "offline-run-20260102_000000-a",
    ]


def test_the_report_has_a_section_for_each_figure_and_table(tmp_path, monkeypatch):
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    from wandb_report import wandb_report

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/captions").symlink_to(Path("figures/captions").resolve())
    for name in ("figures/fig2.png", "tables/table2.csv", "width_sweep/tiny/math.parquet"):
        path = tmp_path / "results/smoke" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    config = composition.compose_with_hydra("whole_study", ["study=smoke", "tracking=none"])
    monkeypatch.chdir(tmp_path)
    wandb_report(config)
    blocks = json.loads((tmp_path / "results/smoke/wandb/report.json").read_text())["spec"]["blocks"]
    headings = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    assert headings == ["fig2", "table2", "Records"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    values = [[item["value"] for item in grid["runSets"][0]["filters"]["filters"]] for grid in grids]
    assert values == [["smoke", "render"], ["smoke", "render"], ["tiny", "width_sweep"]]
    assert "Figure 2" in json.dumps(blocks)


def test_a_tracker_that_fails_is_one_warning(tiny_job, monkeypatch, capsys):
    def broken(*_):
        raise OSError("no place\nfor it")

    monkeypatch.setattr(tracking, "_log", broken)
    config = tiny_job("width_sweep", "tracking=online")
    tracking.track(config, Path("record.parquet"), pd.DataFrame(), {})
    told = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in told] == [
        "warning: W&B (online): no place for it",
        "warning: W&B (offline): no place for it",
    ]


def test_an_archive_holds_records_and_what_made_them_and_nothing_unfinished(tmp_path, monkeypatch):
    from archive import archive

    config = composition.compose_with_hydra("whole_study", ["study=smoke"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CastError, match="holds no records"):
        archive(config)
    for name in ("conf/study/smoke.yaml", "results/smoke/width_sweep/a/b.parquet", "results/smoke/logs/x.log"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    archive(config)
    bundle = Path("outputs/archive/smoke.zip")
    with zipfile.ZipFile(bundle) as content:
        assert content.namelist() == [
            "smoke/results/smoke/width_sweep/a/b.parquet",
            "smoke/conf/study/smoke.yaml",
            "smoke/SHA256SUMS",
        ]
        assert hashlib.sha256(b"conf/study/smoke.yaml").hexdigest() in content.read("smoke/SHA256SUMS").decode()
    before = bundle.read_bytes()
    Path("results/smoke/width_sweep/a/b.parquet.partial").touch()  # a failed job's, for a retry
    archive(config)
    assert bundle.read_bytes() == before
    Path("results/smoke/width_sweep/a/c.parquet.partial").touch()
    with pytest.raises(CastError, match="unfinished"):
        archive(config)
