"""Tables 1, 4, 13, 16 and 17: which cells they take, and what a round of EAGLE-3 was made of."""

import pandas as pd
import pytest
from synthetic_records import decode_row, identity

from cast.experiments.records import DECODE, REPLAY
from figures import comparison, data, table1, table4, table13, table16, table17, table_replay, tables

FP32 = "smollm2_fp32"


def row(method, budget, ms, prompt, experiment="drafter_comparison", **changes):
    base = decode_row(FP32, "math", method, budget, prompt, ms, 2.0)
    return base | {"experiment": experiment} | changes


def compared():
    """Six prompts: AR 40 ms, chain 20, tree 10, two EAGLE-3 heads of 30 and 16 ms at one budget."""
    cells = [("autoregressive", 0, 40.0, "own"), ("dflash", 15, 20.0, "own"), ("cast", 31, 10.0, "own")]
    cells += [("eagle3", 59, 30.0, "one"), ("eagle3", 59, 16.0, "other")]
    return [row(m, b, ms, prompt, drafter=head) for prompt in range(6) for m, b, ms, head in cells]


@pytest.fixture
def study(folder):
    folder._write("drafter_comparison", FP32, "math", compared(), DECODE, 1.0)
    return data.load(folder.root)


def ours(table):
    return table.data[table.data["source"] == "ours"].dropna(subset=["method"])


def test_two_heads_are_two_lines_with_their_speedups(study):
    table = table1.build(study)
    cells = ours(table)
    eagle = cells[cells["method"] == "eagle3"].set_index("drafter")["speedup"].to_dict()
    assert eagle == pytest.approx({"one": 40 / 30, "other": 40 / 16})
    assert cells[cells["method"] == "cast"]["gain"].tolist() == pytest.approx([1.0])
    labels = [line.cells[2] for line in table.rows if not line.paper]
    assert "EAGLE-3 (59, one)" in labels and "EAGLE-3 (59, other)" in labels


@pytest.mark.parametrize("module", [table1, table4, table13, table16, table17], ids=lambda module: module.__name__)
def test_the_note_defines_speedup_and_time(module, study):
    assert comparison.STATISTICS in tables.markdown(module.build(study))


@pytest.mark.parametrize(
    ("table", "at_31"), [(table4, [4.0, "drafter_comparison"]), (table16, [11.0, "width_sweep"])], ids=["4", "16"]
)
def test_which_of_comparison_and_sweep_goes_first_and_the_sweep_fills_in(folder, table, at_31):
    swept = [
        row(m, b, ms, prompt, "width_sweep")
        for prompt in range(6)
        for m, b, ms in (("autoregressive", 0, 44.0), ("dflash", 15, 22.0), ("cast", 31, 4.0), ("cast", 63, 11.0))
    ]
    own = [record | {"drafter": swept[0]["drafter"]} for record in compared() if record["method"] != "eagle3"]
    folder._write("drafter_comparison", FP32, "math", own, DECODE, 1.0)
    folder.sweep(FP32, "math", swept)
    cells = ours(table.build(data.load(folder.root)))
    found = cells[cells["method"] == "cast"].set_index("budget")[["speedup", "experiment"]]
    assert found.loc[31].tolist() == at_31
    assert found.loc[63].tolist() == [4.0, "width_sweep"]


def test_passes_and_times_of_an_eagle3_round(folder):
    counted = {"rounds": 10, "drafter_passes": 85, "committed_tokens": 95}
    parts = {"draft_ms_per_round": 4.0, "verify_ms_per_round": 6.0, "overhead_ms_per_round": 0.5}
    rows = [row("eagle3", 59, 30.0, prompt, **counted) for prompt in range(2)]
    rows += [row("eagle3", 59, 33.0, 0, traced=True, repeat=1, **counted, **parts)]
    folder._write("drafter_comparison", FP32, "math", rows, DECODE, 1.0)
    (found,) = table13.rounds_of(data.load(folder.root)).to_dict("records")
    assert (found["passes_per_round"], found["draft_ms"], found["verify_ms"], found["overhead_ms"]) == (
        8.5,
        4.0,
        6.0,
        0.5,
    )


def test_a_replayed_number_stands_beside_the_papers(folder):
    common = identity("replay", FP32, "math") | {"roots": "chain", "prompts": 4, "n": 40, "low": 0.4, "high": 0.6}
    rank = common | {"analysis": "rejection_ranks", "quantity": "share", "bin": "2-4", "method": "dflash", "value": 0.5}
    mass = common | {"analysis": "mass_curve", "quantity": "mass", "bin": "", "method": "", "budget": 48, "value": 0.01}
    frame = pd.DataFrame([rank, mass]).reindex(columns=list(REPLAY.columns))
    folder._write("replay", FP32, "math", frame.to_dict("records"), REPLAY, 1.0)
    table = table_replay.build(data.load(folder.root))
    lines = {line.cells[1]: line.cells for line in table.rows}
    header = table.header
    ranks = lines["first rejection: target's rank 2-4"]
    assert ranks[2] == "50.0% [40.0, 60.0] (40)"
    assert ranks[header.index("paper: GSM8K")] == "77%"
    masses = lines["mean mass of candidate 48"]
    assert masses[2].startswith("0.0100 ")
    assert masses[header.index("paper: GSM8K")] == "0.016"
