"""Tables 3, 10, 14, 15 and Figure 4: numbers from synthetic records, gains' intervals, and what a failed cell says."""

import importlib
import math
import re

import pandas as pd
import pytest
from synthetic_records import decode_row, failed, identity
from test_replay_analyses import SPEC, synthetic_logs
from test_serving_artefacts import goodput_rows, stored

from cast.experiments.records import DECODE, REPLAY, SERVING
from cast.experiments.replay_analyses import analyse
from cast.experiments.statistics import cell_summary
from figures import (
    artefacts,
    data,
    fig4,
    table3,
    table7,
    table8,
    table9,
    table10,
    table14,
    table15,
    table17,
    table_shared_device,
    tables,
)
from figures.panels import panel

S = "smollm2_fp32"
CHAIN_MS = [20.0, 22.0, 24.0, 26.0, 28.0, 30.0]


def write(folder, experiment, rows, domain="math", schema=DECODE):
    folder._write(experiment, S, domain, [row | {"experiment": experiment} for row in rows], schema, 1.0)


def cells(gains, domain="math", r=2.5, **changes):
    """Six prompts: AR, the chain, and a tree at each width with exactly that gain."""
    rows = []
    for prompt, ms in enumerate(CHAIN_MS):
        timed = {("autoregressive", 0): (2 * ms, 1.0), ("dflash", 15): (ms, 1.9)}
        timed |= {("cast", width): (ms / (1 + gain), r) for width, gain in gains.items()}
        rows += [decode_row(S, domain, *cell, prompt, *numbers, **changes) for cell, numbers in timed.items()]
    return rows


def ours(table):
    return table.data[table.data["source"] == "ours"].reset_index(drop=True)


def write_replay(folder):
    """A replayed domain, and the width whose threshold stands beside it."""
    rows = [identity("replay", S, "math") | row for row in analyse(synthetic_logs(prompts=6, roots=12), SPEC)]
    frame = pd.DataFrame(rows).reindex(columns=list(REPLAY.columns))
    write(folder, "replay", frame.fillna({"roots": "", "method": "", "bin": ""}).to_dict("records"), schema=REPLAY)
    folder.width(S, 31)


def test_table3_has_intervals_of_prompts_and_ranges_of_seeds(folder):
    folder.width(S, 31)
    write(folder, "repeated_panel", [row for n in range(3) for row in cells({31: 0.2 + 0.05 * n, 63: 0.1}, repeat=n)])
    write(folder, "sampled_decoding", [
        row for seed in range(3)
        for row in cells({31: 0.1 * (seed + 1)}, seed=seed, temperature=1.0, sampler="recursive")
    ])  # fmt: skip
    greedy, sampled = ours(table3.build(data.load(folder.root))).to_dict("records")
    by_repeat = [20.0, 25.0, 30.0]
    mean_time = sum(1 / (1 + gain / 100) for gain in by_repeat) / 3
    assert greedy["gain_percent"] == pytest.approx(100 * (1 / mean_time - 1))
    assert greedy["low_percent"] == pytest.approx(greedy["gain_percent"])  # every prompt alike
    assert (greedy["width"], greedy["repeats"], greedy["prompts"]) == (31, 3, 6)  # the predicted width alone
    assert greedy["repeat_change_points"] == pytest.approx(10.0)
    assert (greedy["median_run"], greedy["median_run_gain_percent"]) == ("1", pytest.approx(25.0))
    assert greedy["median_run_ms_per_token"] == pytest.approx(20.0)
    assert sampled["gain_percent"] == pytest.approx(20.0)
    assert (sampled["low_percent"], sampled["high_percent"]) == pytest.approx((10.0, 30.0))
    assert sampled["cell_gain_low_percent"] == pytest.approx(20.0)
    row = ours(table10.build(data.load(folder.root))).iloc[0]
    assert (row["gain_percent"], row["seed_gain_low_percent"]) == pytest.approx((20.0, 10.0))
    assert row["r_pooled"] == pytest.approx(2.5)
    assert row["dflash_ms_per_token"] == pytest.approx(25.0)


GAIN = r"(.*_)?gain(_percent)?(_idle|_shared)?|change_points|over_uniform_percent|(.*_)?speedup(_over_\w+)?"
COMPARED = ("table1", "table4", "table13", "table16", "table17")
BASELINES = ("dflash", "autoregressive")
SWEPT = ("table7", "table8", "table9", "table12", "fig3", "fig5")
OTHERS = (
    "table3",
    "table10",
    "table14",
    "table15",
    "table_shared_device",
    "table_serving",
    "table_continuous_batching",
)


def ends_of(gain, columns):
    """The columns of a gain's interval: gain_low_percent or low_percent for gain_percent, and the upper end's."""
    if "_percent" not in gain and "_points" not in gain:
        name = "speedup" if "speedup" in gain else "gain"
        long = [gain.replace(name, f"{name}_{end}") for end in ("low", "high")]
        return long if set(long) <= set(columns) else ["low", "high"]
    unit = gain[gain.rindex("points" if "points" in gain else "percent") :]
    long = [gain.replace(unit, f"{end}_{unit}") for end in ("low", "high")]
    return long if set(long) <= set(columns) else [name.replace("gain_", "") for name in long]


def test_every_gain_and_speedup_has_its_interval(folder):
    """In every artefact with such a column; a baseline is not compared with itself."""
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: 0.15, 31: 0.2, 63: 0.1}))
    for experiment in ("repeated_panel", "generation_length", "shared_device", "drafter_comparison"):
        write(folder, experiment, cells({31: 0.2}))
    for experiment in ("sampled_decoding", "drafter_comparison_sampled"):
        write(folder, experiment, cells({31: 0.2}, temperature=1.0, sampler="walk"))
    write(folder, "block_length", cells({7: 0.3, 15: 0.5}))
    for experiment in ("serving_goodput", "continuous_batching"):
        stored(folder, experiment, goodput_rows(), SERVING)
    study = data.load(folder.root)
    checked = set()
    for name in artefacts():
        module = importlib.import_module(f"figures.{name}")
        if hasattr(module, "plotted"):
            frame = module.plotted(study)
        elif hasattr(module, "build"):
            frame = module.build(study).data
        else:
            continue
        if "source" not in frame:
            continue
        frame = frame[frame["source"] == "ours"]
        for column in (column for column in frame if re.fullmatch(GAIN, column) and frame[column].notna().any()):
            shown = frame[frame[column].notna()]
            if "method" in frame:
                shown = shown[~shown["method"].isin(BASELINES if "speedup" not in column else BASELINES[1:])]
            ends = shown[ends_of(column, frame)]
            assert ends.notna().all().all(), (name, column)
            checked.add(name)
    assert checked >= {*COMPARED, *SWEPT, *OTHERS, "table2", "fig7"}, checked


def test_the_interval_of_a_change_is_that_of_both_gains(folder):
    def mixed(gain, other):  # the prompts gain one or the other, in turns
        pairs = zip(cells({31: gain}), cells({31: other}), strict=True)
        return [pair[pair[0]["prompt_index"] % 2] for pair in pairs]

    folder.sweep(S, "math", mixed(0.1, 0.3))
    write(folder, "shared_device", mixed(0.2, 0.7))
    table = table_shared_device.build(data.load(folder.root))
    row = ours(table).iloc[0]
    reach = {
        (side, end): abs(row[f"gain_{end}_percent_{side}"] - row[f"gain_percent_{side}"])
        for side in ("idle", "shared")
        for end in ("low", "high")
    }
    below = math.hypot(reach["shared", "low"], reach["idle", "high"])
    above = math.hypot(reach["shared", "high"], reach["idle", "low"])
    change = row["gain_percent_shared"] - row["gain_percent_idle"]
    found = row[["change_points", "change_low_points", "change_high_points"]].astype(float).tolist()
    assert found == pytest.approx([change, change - below, change + above])
    assert below > 1 and above > 1
    assert table.rows[0].cells[-1] == f"{change:+.1f} [{change - below:.1f}, {change + above:.1f}]"


def test_table14_tells_lengths_apart_and_finds_the_oracle(folder):
    folder.width(S, 31)
    rows = cells({31: 0.2, 63: 0.3}) + cells({31: 0.1, 63: 0.05}, max_new_tokens=192)
    traced = decode_row(S, "math", "cast", 31, 0, 1.0, 2.5, traced=True, repeat=1, max_new_tokens=16, new_tokens=16)
    rows.append(traced | {"decode_ms": 16.0, "committed_tokens": 15, "rounds": 6})
    write(folder, "generation_length", rows)
    write(folder, "long_prefix", [failed(row, "out of memory") for row in cells({31: 0.2})])
    found = ours(table14.build(data.load(folder.root)))
    short, long, prefix = found.to_dict("records")
    assert (short["max_new_tokens"], short["width"], short["oracle_width"]) == (96, 31, 63)
    assert (short["gain_percent"], short["oracle_gain_percent"]) == pytest.approx((20.0, 30.0))
    assert (long["max_new_tokens"], long["oracle_width"]) == (192, 31)
    assert long["cast_speedup"] == pytest.approx(2.2)
    assert prefix["note"] == "not measured: out of memory"


def test_table15_names_the_fastest_of_eight_packed_tokens(folder):
    rows = cells({7: 0.3, 15: 0.5})
    short = []
    for prompt, ms in enumerate(CHAIN_MS):
        for cell, time in ((("dflash", 7), 1.5 * ms), (("cast", 7), 1.2 * ms)):
            short.append(decode_row(S, "math", *cell, prompt, time, 1.7, block_size=8))
    write(folder, "block_length", rows + short)
    table = table15.build(data.load(folder.root))
    frame = ours(table).set_index(["method", "width", "block_size"])
    assert frame.loc[("cast", 7, 8), "ms_per_token"] == pytest.approx(30.0)
    assert frame.loc[("dflash", 15, 16), "r_pooled"] == pytest.approx(1.9)
    # Plain decoding is timed once, with the head's own block, and serves both.
    assert frame.loc[("cast", 7, 8), "speedup"] == pytest.approx(50 / 30)
    assert frame.loc[("dflash", 15, 16), "speedup"] == pytest.approx(2.0)
    # Each block's gain is over its own chain.
    assert frame.loc[("cast", 7, 8), "gain_percent"] == pytest.approx(25.0)
    assert frame.loc[("cast", 7, 16), "gain_percent"] == pytest.approx(30.0)
    bold = [cell.bold for cell in table.rows[0].cells[2:]]
    assert bold == [False, False, True, False, False]


def test_a_cell_that_is_not_in_the_record_says_so(folder):
    write(folder, "block_length", cells({15: 0.5}))
    table = table15.build(data.load(folder.root))
    assert "not measured: not part of this block_length" in set(ours(table)["note"])


def test_places_follow_the_study_and_name_what_it_does_not(folder):
    write(folder, "block_length", cells({7: 0.1}), domain="math")
    write(folder, "block_length", cells({7: 0.1}, domain="chat"), domain="chat")
    study = data.load(folder.root, settings=["other", S], domains=["code"])
    places = panel(study, "block_length", lambda rows: pd.DataFrame()).places
    assert places == [(S, "math"), (S, "chat")]
    nothing = panel(study, "repeated_panel", lambda rows: pd.DataFrame())
    assert nothing.places == [("other", "code"), (S, "code")]
    assert nothing.reason(S, "code") == "no repeated_panel record"


def test_figure4_draws_what_was_replayed(folder, tmp_path):
    write_replay(folder)
    study = data.load(folder.root, settings=[S], domains=["math", "code"])
    plotted = fig4.plotted(study)
    mine = plotted[plotted["source"] == "ours"]
    shares = mine[mine["panel"] == "a"]
    assert shares["at"].tolist() == fig4.BANDS
    assert shares["value"].sum() == pytest.approx(1.0)  # a first rejection has no rank 1 here
    hits = mine[mine["panel"] == "b"]
    assert hits.loc[hits["value"].isin([0.0, 1.0]), "low"].isna().all()
    hits = hits.dropna(subset="low")
    assert len(hits)
    assert (hits["low"] <= hits["value"]).all() and (hits["value"] <= hits["high"]).all()
    masses = mine[(mine["panel"] == "c") & (mine["at"] != "threshold")]
    assert masses["value"].is_monotonic_decreasing and len(masses) == SPEC.largest_budget
    assert mine.loc[mine["at"] == "threshold", "value"].tolist() == [0.02]
    assert mine.loc[mine["domain"] == "code", "note"].tolist() == ["not measured: no replay record"]
    theirs = plotted[plotted["source"] == "paper"]
    assert theirs.loc[theirs["at"] == "2-4", ["low", "high"]].to_numpy().tolist() == [[0.56, 0.77]]
    assert theirs.loc[theirs["x"] == 48, "value"].tolist() == [0.016]
    assert len(fig4.render(study, tmp_path / "fig4")) == 4


def test_plain_decoding_serves_the_blocks_of_its_own_cell_alone(folder):
    for domain, block in (("math", 8), ("chat", 16)):
        drafted = [row | {"block_size": block} for row in cells({7: 0.3}, domain) if row["method"] == "cast"]
        plain = [row for row in cells({}, domain) if row["method"] == "autoregressive"]
        write(folder, "block_length", [*plain, *drafted], domain)
    block = panel(data.load(folder.root), "block_length", cell_summary, split="block_size")
    found = block.cells[["domain", "block_size", "method", "speedup"]]
    assert sorted(found.itertuples(index=False, name=None)) == [
        ("chat", 16, "autoregressive", 1.0), ("chat", 16, "cast", pytest.approx(2.6)),
        ("math", 8, "autoregressive", 1.0), ("math", 8, "cast", pytest.approx(2.6)),
    ]  # fmt: skip


def test_a_sweep_of_several_runs_gives_the_run_of_the_median_gain(folder):
    """As the paper does on Blackwell: 10%, 40% and 20% in three runs; ours averages their times first."""
    folder.width(S, 15)
    folder.sweep(S, "math", [row for n, gain in enumerate((0.1, 0.4, 0.2)) for row in cells({15: gain}, repeat=n)])
    study = data.load(folder.root)
    for module in (table7, table8, table9):
        table = module.build(study)
        row = ours(table).set_index(ours(table)["width" if module is not table7 else "predicted_width"]).loc[15]
        assert (row["median_run"], row["median_run_of"]) == ("2", 3)
        assert row["median_run_gain_percent"] == pytest.approx(20.0)
        assert row["gain_percent"] == pytest.approx(100 * (3 / (1 / 1.1 + 1 / 1.4 + 1 / 1.2) - 1))
        shown = [cell for cell in table.rows[0].cells if "median of 3 runs +20.0%" in str(cell)]
        assert len(shown) == (module is not table8)  # the wide table has it in the CSV


def test_a_sweep_of_one_run_says_nothing_of_a_median(folder):
    folder.width(S, 15)
    folder.sweep(S, "math", cells({15: 0.1}) + cells({15: 0.1}, repeat=1, traced=True))
    assert data.load(folder.root).median_runs == {}


def test_without_sweep_and_probe_tables_take_what_there_is_and_name_what_is_not(folder):
    write(folder, "drafter_comparison", cells({7: 0.1, 15: 0.2}))
    study = data.load(folder.root)
    taken = ours(table3.build(study))
    assert taken.query("temperature == 0")["gain_percent"].tolist() == pytest.approx([10.0, 20.0])
    assert taken.query("temperature == 0")["experiment"].unique().tolist() == ["drafter_comparison"]
    assert taken.query("temperature == 1")["note"].tolist() == ["not measured: no sampled_decoding record"]
    (shape,) = ours(table15.build(study)).query("method == 'cast' and width == 15").to_dict("records")
    assert (shape["ms_per_token"], shape["r_prompt_mean"]) == pytest.approx((25 / 1.2, 2.5))
    swept = ours(table17.build(study)).set_index(["method", "budget"])
    assert swept.loc[("cast", 15), "speedup"] == pytest.approx(2 * 1.2)
    told = {
        table3: ["T = 0: Not measured: no repeated_panel record in this study", "not measured: no sampled_decoding"],
        table15: ["not measured: no block_length record", "instead, cells of drafter_comparison are shown"],
        table17: ["Not measured: no width_sweep record in this study"],
    }
    for module, words in told.items():
        text = tables.markdown(module.build(study))
        assert all(word in text for word in words), text
    row = next(row for row in table15.build(study).rows if not row.paper)
    assert not any(cell.bold for cell in row.shown)  # one of three configurations is not the fastest of them


def test_other_records_name_the_settings_of_a_study_without_sweep_and_probe(folder):
    write(folder, "shared_device", cells({31: 0.2}))
    study = data.load(folder.root)
    assert study.settings == [S]
    missing = {table3: "repeated_panel", table15: "block_length", table17: "width_sweep", table14: "long_prefix"}
    for module, experiment in missing.items():
        ours_shown = [row for row in module.build(study).rows if not row.paper]
        assert any(f"no {experiment} record" in cell.text for row in ours_shown for cell in row.shown), module.__name__


def test_a_table_of_the_papers_rows_alone_says_so(folder):
    folder.root.mkdir()
    table = table3.build(data.load(folder.root))
    for written in (tables.markdown(table), tables.latex(table), tables.html(table)):
        assert "not measured: no record in this study has what this table shows" in written
