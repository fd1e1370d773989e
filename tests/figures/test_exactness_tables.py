"""Greedy equivalence, total variation and the shared device: numbers from synthetic records."""

import numpy as np
import pandas as pd
import pytest
from synthetic_records import decode_row, failed, identity

from cast.experiments.records import DECODE, EQUIVALENCE, TOTAL_VARIATION
from figures import data, fig_total_variation, table_equivalence, table_shared_device, table_total_variation

EDGES = [0.0, 0.001, 0.25, 1.0, np.inf]
BF16, FP32 = "smollm2_bf16", "smollm2_fp32"


def output(setting, method, budget, prompt, positions, departs=None, verdict="same", fp32_agrees=None, domain="math"):
    """Rows of one output: positions by interval; ``departs``: interval and gap."""
    common = identity("greedy_equivalence", setting, domain) | {"method": method, "budget": budget}
    common |= {"prompt_id": f"{domain}/{prompt}", "prompt_index": prompt, "top_k": 8, "block_size": 16}
    common |= {"max_new_tokens": 64}
    rows = []
    for place, count in enumerate(positions):
        here = departs is not None and departs[0] == place
        rows.append(
            common
            | {"gap_from": EDGES[place], "gap_to": EDGES[place + 1], "positions": count, "departures": int(here)}
            | {"verdict": verdict if here else "same", "departure": 3 if here else None}
            | {"departure_gap": departs[1] if here else np.nan, "fp32_agrees": fp32_agrees if here else None}
        )
    return rows


def ours(table):
    return table.data[table.data["source"] == "ours"]


@pytest.fixture
def equivalence(folder):
    whole = [1, 9, 20, 34]
    for setting in (BF16, FP32):
        rows = [row for prompt in range(3) for row in output(setting, "autoregressive", 0, prompt, whole)]
        rows += [row for prompt in range(3) for row in output(setting, "dflash", 15, prompt, whole)]
        if setting == BF16:
            rows += output(setting, "cast", 31, 0, [1, 4, 5, 10], (1, 0.125), "departure", fp32_agrees=True)
            rows += output(setting, "cast", 31, 1, [0, 4, 5, 11], (2, 0.5), "departure", fp32_agrees=False)
        else:
            rows += output(setting, "cast", 31, 0, [1, 4, 5, 10], (0, 0.0005), "near_tie")
            rows += output(setting, "cast", 31, 1, [1, 4, 5, 10], (2, 0.75), "violation")
        rows += output(setting, "cast", 31, 2, [0, 10, 0, 0])
        folder._write("greedy_equivalence", setting, "math", rows, EQUIVALENCE, 1.0)
    broken = output(FP32, "cast", 31, 0, [1, 2, 3, 4], domain="code")[:1]
    gone = dict.fromkeys(["positions", "departures", "verdict", "departure_gap"])
    broken = [row | gone | {"status": "failed", "reason": "out of memory"} for row in broken]
    folder._write("greedy_equivalence", FP32, "code", broken, EQUIVALENCE, 1.0)
    return table_equivalence.build(data.load(folder.root, settings=[BF16, FP32]))


def test_departures_by_width_with_their_gaps(equivalence):
    frame = ours(equivalence)
    cells = frame[(frame["domain"] == "math")].set_index(["setting", "method"])
    tree = cells.loc[(BF16, "cast")]
    assert (tree["prompts"], tree["outputs"], tree["same"], tree["departures"]) == (3, 3, 1, 2)
    assert (tree["fp32_agrees"], tree["fp32_compared"]) == (1, 2)
    assert (tree["violations"], tree["near_ties"], tree["largest_gap"]) == (0, 0, 0.5)
    assert tree["tokens_compared"] == 50
    assert tree["share_near_percent"] == pytest.approx(100 * 19 / 50)
    assert (tree["rate_near_per_1000"], tree["rate_beyond_per_1000"]) == pytest.approx((1000 / 19, 1000 / 31))
    exact = cells.loc[(FP32, "cast")]
    assert (exact["same"], exact["near_ties"], exact["violations"], exact["departures"]) == (1, 1, 1, 0)
    assert cells.loc[(BF16, "dflash"), "same"] == 3
    assert "autoregressive" not in set(frame["method"])  # it is what the others are compared with


def test_rates_by_gap_over_all_cells_of_a_setting(equivalence):
    frame = ours(equivalence)
    by_gap = frame[(frame["setting"] == BF16) & frame["gap_to"].notna()].set_index("gap_to")
    assert by_gap["departures"].tolist() == [0, 1, 1, 0]
    assert by_gap["tokens_compared"].sum() == 3 * 64 + 50
    assert by_gap.loc[0.25, "rate_per_1000"] == pytest.approx(1000 / (3 * 9 + 18))
    assert by_gap["share_percent"].sum() == pytest.approx(100)
    note = next(note for note in equivalence.notes if note.startswith(BF16))
    assert note.endswith("0–0.001: 0 of 4; 0.001–0.25: 1 of 45; 0.25–1: 1 of 70; beyond: 0 of 123.")


def test_the_equivalence_table_as_read(equivalence):
    rows = {(row.cells[0], row.cells[1], row.cells[2]): row.cells for row in equivalence.rows if not row.paper}
    chain = rows[(f"{BF16} (bfloat16)", "math", "DFlash, 15")]
    assert chain[5] == "3 of 3"
    violation = rows[(f"{FP32} (float32)", "math", "CAST, 31")][8]
    assert (violation.text, violation.bold) == ("1", True)
    assert next(row.cells for row in equivalence.rows if row.cells[:2] == [FP32, "code"])[2].missing == "out of memory"
    paper_rows = [row.cells for row in equivalence.rows if row.paper]
    assert [(cells[3], cells[8], cells[10]) for cells in paper_rows] == [("–", "0", "–"), ("600", "–", "≤ 0.25")]


def test_a_share_that_no_interval_ends_at_is_not_guessed(folder, monkeypatch):
    rows = output(BF16, "dflash", 15, 0, [1, 9, 20, 34])
    folder._write("greedy_equivalence", BF16, "math", rows, EQUIVALENCE, 1.0)
    monkeypatch.setattr(table_equivalence, "near_tie", lambda: 0.3)
    frame = ours(table_equivalence.build(data.load(folder.root)))
    near = ["share_near_percent", "rate_near_per_1000", "rate_beyond_per_1000"]
    assert frame.loc[frame["domain"] == "math", near].isna().all(axis=None)


def law_rows(level, dtype, sampler, prompt, draws, scale, depth=0):
    """The distance falls as the root of the draws, from ``scale`` times the mean floor."""
    common = identity("total_variation", FP32, "math") | {"dtype": dtype, "level": level, "sampler": sampler}
    common |= {"prompt_id": f"math/{prompt}", "prompt_index": prompt, "depth": depth, "budget": 63, "top_k": 8}
    common |= {"temperature": 1.0, "top_p": np.nan, "seed": 0, "prefix_tokens": 40, "siblings": 8}
    law = np.nan if sampler == "autoregressive" or level == "sequence" else 1e-3 * (prompt + 1)
    return [
        common
        | {"walks": count, "draws": count if level != "deeper" else count // 2, "law_distance": law}
        | {"floor_mean": count**-0.5, "floor_q999": 1.52 * count**-0.5, "total_variation": scale * count**-0.5}
        | {"chi_square": 3.0, "degrees_of_freedom": 4, "p_value": 0.02 if scale > 1.5 else 0.5}
        for count in draws
    ]


@pytest.fixture
def sampled(folder):
    scales = {"autoregressive": 1.0, "walk": 0.91, "recursive": 1.6}
    rows = [
        row
        for dtype in ("float64", "bfloat16")
        for level in ("first", "deeper")
        for sampler, scale in scales.items()
        for prompt in range(2)
        for row in law_rows(level, dtype, sampler, prompt, [400, 1600, 6400], scale if prompt else 0.8)
    ]
    rows += [r for name in scales for r in law_rows("sequence", "float64", name, 0, [400], 0.7, depth=3)]
    folder._write("total_variation", FP32, "math", rows, TOTAL_VARIATION, 1.0)
    return data.load(folder.root, settings=[FP32])


def test_distances_by_sampler_dtype_and_prefix(sampled):
    table = table_total_variation.build(sampled)
    rows = [dict(zip(table.header, row.cells, strict=True)) for row in table.rows if not row.paper]
    assert [row["Prefix"] for row in rows] == ["math/0", "math/1", "all prefixes"] * 4 + ["math/0"]
    first = rows[1]
    assert (first["What is drawn"], first["Draws"]) == ("first token, fp64", "6,400")
    assert (first["Floor, mean"], first["Floor, 99.9%"]) == ("0.0125", "0.0190")
    assert first["Recursive"].text == "0.0200 (p = 0.020)" and first["Recursive"].bold
    assert first["Direct walk"].text == "0.0114 (p = 0.500)" and not first["Direct walk"].bold
    assert first["Law of the tree pass"] == "2.0e-03"
    assert rows[2]["Recursive"].text == "0.0150; 1 of 2 above; least p = 0.020"
    assert rows[-1]["What is drawn"] == "joint law of 3 tokens, fp64"
    assert rows[-1]["Law of the tree pass"] == "–"
    assert [row["What is drawn"] for row in rows[3:12:3]] == [
        "first token, bf16", "token after the likeliest child, fp64", "token after the likeliest child, bf16",
    ]  # fmt: skip
    assert len(ours(table)) == 2 * 2 * 3 * 2 * 3 + 3  # every number of draws
    theirs = table.data[table.data["source"] == "paper"]
    assert sorted(theirs["total_variation"].dropna()) == [0.003, 0.004, 0.004]
    assert theirs["floor_mean"].dropna().tolist() == [0.013]


def test_another_temperature_than_the_papers_is_named_and_kept_apart(folder):
    rows = [row | {"temperature": 5.0} for row in law_rows("first", "float64", "walk", 0, [400, 1600], 1.0)]
    folder._write("total_variation", FP32, "math", rows, TOTAL_VARIATION, 1.0)
    study = data.load(folder.root, settings=[FP32])
    shown = [row for row in table_total_variation.build(study).rows if not row.paper]
    assert [row.cells[2] for row in shown] == ["first token, fp64, T = 5"]
    frame = fig_total_variation.plotted(study)
    assert set(frame.loc[frame["source"] == "ours", "panel"]) == {"first token, fp64, T = 5"}
    # The paper's points are drawn into panels of their own name.
    assert set(frame.loc[frame["source"] == "paper", "panel"]) == {"first token, fp64", "first token, bf16"}


def test_the_decay_is_drawn_with_its_exponent(sampled, tmp_path):
    frame = fig_total_variation.plotted(sampled)
    mine = frame[frame["source"] == "ours"]
    assert set(mine["panel"]) == {"first token, fp64", "first token, bf16", "joint law of 3 tokens, fp64"}
    means = mine[(mine["panel"] == "first token, fp64") & (mine["prompt_id"] == "")]
    walk = means[means["series"] == "recursive"]
    assert walk["value"].tolist() == pytest.approx([1.2 * n**-0.5 for n in (400, 1600, 6400)])
    exponents = means["decay_exponent"].unique()
    assert len(means) == 5 * 3 and exponents == pytest.approx([-0.5] * len(exponents))
    assert mine.loc[mine["panel"].str.startswith("joint"), "decay_exponent"].isna().all()  # one number of draws
    assert len(fig_total_variation.render(sampled, tmp_path / "out")) == 4


def test_no_power_law_through_a_zero():
    assert fig_total_variation.decay(np.array([1.0, 4.0]), np.array([0.5, 0.0])) is None
    assert fig_total_variation.decay(np.array([1.0, 4.0]), np.array([2.0, 1.0])) == pytest.approx(-0.5)


def cells(experiment, gain, prompts, slower=1.0, **changes):
    rows = []
    for prompt, ms in enumerate(prompts):
        timed = {("autoregressive", 0): 2 * ms, ("dflash", 15): ms, ("cast", 31): ms / (1 + gain)}
        rows += [
            decode_row(FP32, "math", *cell, prompt, slower * time, 2.5, **changes) | {"experiment": experiment}
            for cell, time in timed.items()
        ]
    return rows


def test_shared_and_idle_gain_on_common_prompts(folder):
    times = [20.0, 24.0, 28.0, 22.0, 26.0]
    folder.sweep(FP32, "math", cells("width_sweep", 0.16, [*times, 900.0]))
    folder._write("shared_device", FP32, "math", cells("shared_device", 0.21, times, slower=2.0), DECODE, 1.0)
    table = table_shared_device.build(data.load(folder.root))
    row = ours(table).iloc[0]
    assert (row["gain_percent_idle"], row["gain_percent_shared"]) == pytest.approx((16.0, 21.0))
    assert (row["gain_low_percent_shared"], row["gain_high_percent_idle"]) == pytest.approx((21.0, 16.0))
    assert (row["ar_ms_per_token_idle"], row["ar_ms_per_token_shared"]) == pytest.approx((48.0, 96.0))
    assert row["change_points"] == pytest.approx(5.0)
    assert table.rows[0].cells[3] == "5"  # the sweep's sixth prompt was not measured beside the neighbour
    theirs = table.data[table.data["source"] == "paper"].iloc[0]
    assert (theirs["gain_percent_idle"], theirs["gain_percent_shared"], theirs["change_points"]) == (16, 21, 5)


@pytest.mark.parametrize(
    ("sweep", "reason"),
    [
        (cells("width_sweep", 0.2, [20.0, 21.0], max_new_tokens=192), "at another length"),
        ([failed(row, "the GPU was busy") for row in cells("width_sweep", 0.2, [20.0])], "the GPU was busy"),
        (None, "no width_sweep record"),
    ],
)
def test_an_idle_cell_that_cannot_be_compared_says_why(folder, sweep, reason):
    if sweep:
        folder.sweep(FP32, "math", sweep)
    folder._write("shared_device", FP32, "math", cells("shared_device", 0.2, [20.0, 21.0]), DECODE, 1.0)
    table = table_shared_device.build(data.load(folder.root))
    row = ours(table).iloc[0]
    assert reason in row["note"] and pd.isna(row["change_points"])
    assert row["gain_percent_shared"] == pytest.approx(20.0)
