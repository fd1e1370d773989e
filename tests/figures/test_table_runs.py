"""What was run and on which assumptions: counts from the records, the rest from the provenance beside them."""

import json

from synthetic_records import decode_row, failed

from figures import data, table_assumptions, table_runs

S = "smollm2_fp32"


def test_a_run_is_counted_and_named(folder):
    rows = [decode_row(S, "math", "dflash", 15, prompt, 20.0, 2.0) for prompt in range(3)]
    folder.sweep(S, "math", [*rows[:2], failed(rows[2], "out of memory")], wall_s=90.0)
    beside = folder.root / "width_sweep" / S / "math.json"
    told = {
        "wall_s": 90.0, "started": "2026-11-30T03:55:36+00:00", "git_commit": "0123456789abcdef", "git_dirty": True,
        "device": {"name": "A CPU", "driver": ""}, "other_users_before": [{"pid": 1}], "other_users_after": [],
        "versions": {"torch": "2.13"}, "seed": 0,
    }  # fmt: skip
    beside.write_text(json.dumps(told))
    table = table_runs.build(data.load(folder.root))
    (record,) = table.data.to_dict("records")
    assert (record["prompts"], record["rows"], record["failed"], record["wall_s"]) == (3, 3, 1, 90.0)
    assert (record["commit"], record["started"]) == ("0123456789*", "2026-11-30 03:55")
    assert (record["device"], record["other_users"], record["versions"]) == ("A CPU", 1, "torch 2.13")
    assert table.notes[0] == "1 runs, 2 minutes of wall time, 1 failed rows."


def test_a_record_without_provenance_is_listed_too(folder):
    folder.sweep(S, "math", [decode_row(S, "math", "dflash", 15, 0, 20.0, 2.0)])
    (folder.root / "width_sweep" / S / "math.json").unlink()
    (row,) = table_runs.build(data.load(folder.root)).rows
    assert row.cells[-1] == "nobody"
    assert "–" in row.cells


def test_the_choices_behind_what_was_measured(folder):
    folder.sweep(S, "math", [decode_row(S, "math", "dflash", 15, 0, 20.0, 2.0)])
    beside = folder.root / "width_sweep" / S / "math.json"
    beside.write_text(json.dumps({"config": {"experiment": {"yields": ["E16"]}}}))
    study = data.load(folder.root)
    assert table_assumptions.measurements(study) == {"E16"}
    table = table_assumptions.build(study)
    expected = [choice["id"] for choice in table_assumptions.read_choices() if "E16" in choice["experiments"]]
    assert list(table.data["id"]) == expected
    assert 0 < len(expected) < len(table_assumptions.read_choices())
