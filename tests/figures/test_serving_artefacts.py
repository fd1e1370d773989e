"""Serving tables and figures: their numbers from synthetic runs, what is shown, and what a failed setting says."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from synthetic_records import identity

from cast.experiments.records import SERVING, TOTAL_VARIATION, WIDTH_TAX, write_records
from figures import (
    data,
    fig6,
    fig7,
    table_continuous_batching,
    table_padding,
    table_sampling_under_load,
    table_serving,
    tables,
)
from figures.claims import serving as claims

S = "smollm2_fp32"
ONCE = (0.98, 1.0, 1.03)  # of each repeat, shared by all variants: the machine's drift
GOODPUT = {
    "dense/chain": (40, 60), "dense/fixed_wide": (45, 50), "dense/uniform": (50, 64), "dense/best_first": (50, 56),
    "ragged/chain": (40, 66), "ragged/fixed_wide": (46, 52), "ragged/uniform": (50, 70), "ragged/best_first": (51, 77),
    "ragged/priced": (52, 80), "bucketed_2/best_first": (44, 42),
}  # fmt: skip


def stored(folder, experiment, rows, schema, setting=S, domain="math"):
    frame = pd.DataFrame([identity(experiment, setting, domain) | row for row in rows])
    path = folder.root / experiment / setting / f"{domain}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(frame.reindex(columns=list(schema.columns)), path, schema)


def served(variant, active, goodput, repeat, **changes):
    verifier, policy = variant.split("/")
    tree = policy in ("best_first", "priced")
    return {
        "active": active, "verifier": verifier, "policy": policy, "repeat": repeat, "order": 0, "traced": False,
        "max_new_tokens": 64, "temperature": 0.0, "top_k": 8, "seed": 0, "requests": 2 * active, "rounds": 20,
        "committed_tokens": 500, "new_tokens": 500, "full_rounds": 10, "full_committed_tokens": 400,
        "full_ms": 4e5 / goodput, "goodput_tokens_per_s": goodput, "elapsed_s": 20.0, "tokens_per_s": 25.0,
        "r_pooled": 2.7 if tree else 2.5, "nodes_per_request": 8.0,
        "padded_share": 0.2 if tree and verifier != "ragged" else 0.0,
        "mean_active": active, "wait_s": 0.5, "latency_s": 1.0, "departures": 1, "largest_gap": 0.2,
    } | changes  # fmt: skip


def goodput_rows():
    rows = [
        served(variant, active, at[place] * drift, repeat)
        for variant, at in GOODPUT.items()
        for place, active in enumerate((1, 8))
        for repeat, drift in enumerate(ONCE)
    ]
    traced = [
        served(f"{verifier}/best_first", 8, 9.0, 0, traced=True, verify_ms_per_round=ms, draft_ms_per_round=5.0)
        for verifier, ms in (("dense", 112.0), ("ragged", 100.0))
    ]
    return rows + traced


def tax_rows():
    return [
        {"component": part, "batch": batch, "packed_tokens": packed, "prefix_tokens": 256, "iteration": i}
        | {"latency_ms": (10 + (slope + 0.1) * batch * packed) * factor}
        for part, slope in (("verify_dense", 1.0), ("verify_ragged", 0.9))
        for batch in (1, 2, 4, 8)
        for packed in (1, 4, 16, 48, 64)
        for i, factor in enumerate((0.9, 1.0, 1.1))
    ] + [
        {"component": "draft", "batch": 8, "packed_tokens": 16, "prefix_tokens": 256, "iteration": 0, "latency_ms": 9.0}
    ]


def law_rows():
    return [
        {
            "level": "first", "depth": 0, "sampler": sampler, "dtype": "float64", "prompt_id": f"p{prompt}",
            "prompt_index": prompt, "budget": 8, "top_k": 8, "temperature": 1.0, "seed": 0, "walks": walks,
            "draws": walks, "prefix_tokens": 30, "total_variation": (0.4 + 0.1 * prompt) / math.sqrt(walks),
            "floor_mean": 0.5 / math.sqrt(walks), "floor_q999": 0.48 / math.sqrt(walks), "chi_square": 1.0,
            "degrees_of_freedom": 2, "p_value": 0.5,
        }
        for sampler in ("autoregressive", "walk", "recursive")
        for prompt in range(2)
        for walks in (500, 2000, 8000)
    ]  # fmt: skip


def ours(frame):
    return frame[frame["source"] == "ours"].reset_index(drop=True)


@pytest.fixture
def study(folder):
    stored(folder, "serving_goodput", goodput_rows(), SERVING)
    arriving = [row | {"load": 1.5, "arrivals_per_s": 2.0} for row in goodput_rows() if not row["traced"]]
    arriving = [
        row for row in arriving if (row["verifier"], row["policy"]) in (("ragged", "uniform"), ("ragged", "best_first"))
    ]
    stored(folder, "continuous_batching", arriving, SERVING)
    stored(folder, "width_tax", tax_rows(), WIDTH_TAX, domain="random")
    stored(folder, "sampling_under_load", law_rows(), TOTAL_VARIATION)
    return data.load(folder.root)


def test_paired_ratios_are_free_of_what_a_repeat_shares(study):
    frame = ours(table_serving.build(study).data)
    at = frame[frame["active"] == 8].set_index("ratio")
    over = at.loc["best-first over uniform, ragged"]
    assert (over["gain_percent"], over["low_percent"], over["high_percent"]) == pytest.approx((10.0, 10.0, 10.0))
    assert at.loc["R of best-first over uniform, dense", "gain_percent"] == pytest.approx(8.0)
    assert at.loc["ragged over dense, best-first", "gain_percent"] == pytest.approx(37.5)
    static = at.loc["ragged best-first over best static (ragged, uniform)"]
    assert (static["over"], static["gain_percent"]) == ("ragged/uniform", pytest.approx(10.0))
    priced = at.loc["ragged best-first, priced over best static (dense, uniform)"]
    assert (priced["policy"], priced["gain_percent"]) == ("priced", pytest.approx(25.0))
    variants = frame[frame["ratio"].isna() & (frame["active"] == 8)]
    assert len(variants) == len(GOODPUT)
    chain = variants[(variants["verifier"] == "dense") & (variants["policy"] == "chain")].iloc[0]
    assert chain["goodput_low_tokens_per_s"] < chain["goodput_mean_tokens_per_s"] < chain["goodput_high_tokens_per_s"]
    assert chain["goodput_mean_tokens_per_s"] == pytest.approx(60 * np.prod(ONCE) ** (1 / 3))
    text = tables.markdown(table_serving.build(study))
    assert "+10.0% [10.0, 10.0]" in text
    assert "nan" not in text


def test_goodput_of_full_rounds_stands_beside_that_of_the_whole_run(folder):
    rows = [
        served(f"ragged/{policy}", 8, goodput, repeat, elapsed_s=500 / whole, tokens_per_s=whole, **counts)
        for policy, goodput, whole, counts in (
            ("uniform", 50, 20.0, {}),
            ("best_first", 60, 21.0, {"departures": None, "largest_gap": None}),
        )
        for repeat in range(3)
    ]
    stored(folder, "serving_goodput", rows, SERVING)
    table = table_serving.build(data.load(folder.root))
    by_ratio = ours(table.data).set_index("ratio")
    over = by_ratio.loc["best-first over uniform, ragged, whole run"]
    assert (over["quantity"], over["gain_percent"]) == ("tokens_per_s", pytest.approx(5.0))
    assert (over["low_percent"], over["high_percent"]) == pytest.approx((5.0, 5.0))
    uniform = ours(table.data).iloc[0]
    assert (uniform["policy"], uniform["full_rounds"], uniform["rounds"]) == ("uniform", 30, 60)
    assert (uniform["departures"], uniform["outputs"], uniform["largest_gap"]) == (3, 48, 0.2)
    assert uniform["whole_mean_tokens_per_s"] == pytest.approx(20.0)
    even, tree, ratio = ([cell.text for cell in row.shown[3:]] for row in table.rows[:3])
    assert (even[0], even[3], even[6:]) == ("ragged, uniform", "30 of 60", ["3 of 48", "0.2"])
    assert (tree[0], tree[6:]) == ("ragged, best-first", [tables.NONE] * 2)  # compared with nothing
    assert ratio[:3] == ["best-first over uniform, ragged", "+20.0% [20.0, 20.0]", "+5.0% [5.0, 5.0]"]


@pytest.mark.parametrize(
    ("prompts", "told"),
    [
        (40, "B = 8: 48 requests from 40 prompts over 3 repeats, none twice in one."),
        (10, "B = 8: 48 requests from 10 prompts over 3 repeats."),
        (48, ""),
        (None, ""),
    ],
)
def test_repeats_that_share_prompts_are_told(folder, prompts, told):
    stored(folder, "serving_goodput", goodput_rows(), SERVING)
    provenance = folder.root / "serving_goodput" / S / "math.json"
    provenance.write_text(json.dumps({"config": {"prompt_limit": prompts}}))
    notes = [note for note in table_serving.build(data.load(folder.root)).notes if "share prompts" in note]
    assert len(notes) == bool(told)
    assert all(note.endswith(told) and "B = 1:" not in note for note in notes)


def test_the_scorecard_gives_the_ratios_and_intervals_of_the_tables(folder):
    """Per domain, as geometric means with Student intervals; the paper's static widths are the dense ones."""
    lifts = {"math": (1.05, 1.10, 1.30), "code": (1.02, 0.99, 1.20)}
    for domain, by_repeat in lifts.items():
        rows = [
            served(variant, 8, goodput * (by_repeat[repeat] if variant == "ragged/best_first" else 1.0), repeat)
            for variant, goodput in (("dense/uniform", 50), ("ragged/uniform", 55), ("ragged/best_first", 60))
            for repeat in range(3)
        ]
        stored(folder, "serving_goodput", rows, SERVING, domain=domain)
        arriving = [row | {"load": 1.5, "arrivals_per_s": 2.0} for row in rows if row["verifier"] == "ragged"]
        stored(folder, "continuous_batching", arriving, SERVING, domain=domain)
    study = data.load(folder.root)

    def shown(module, ratio):
        rows = [[cell.text for cell in row.shown] for row in module.build(study).rows]
        return [f"{S}, {row[1].lower()}, {row[2]} active: {row[4]}" for row in rows if row[3] == ratio]

    by_claim = {
        claims.ragged_over_uniform: shown(table_serving, "ragged best-first over dense uniform"),
        claims.ragged_over_static: shown(table_serving, "ragged best-first over best static (dense, uniform)"),
        claims.continuous_batching_gains: shown(table_continuous_batching, "best-first over uniform, goodput"),
    }
    for claim, rows in by_claim.items():
        assert len(rows) == 2
        assert claim(study, [S]).ours == "; ".join(rows)
    assert "math, 8 active: +37.4% [4.0, 81.6]" in by_claim[claims.ragged_over_uniform][0]
    assert shown(table_serving, "ragged best-first over best static (ragged, uniform)")


def test_padding_against_the_ragged_pass_and_bucketing_against_one_pass(study):
    frame = ours(table_padding.build(study).data)
    rows = frame[frame["active"] == 8].set_index("verifier")
    assert list(rows.index) == ["dense", "ragged", "bucketed_2"]
    assert rows.loc["dense", "padded_percent"] == pytest.approx(20.0)
    assert rows.loc["dense", "share_above_ragged_percent"] == pytest.approx(100 * 12 / 112)
    assert rows.loc["bucketed_2", "goodput_over_dense_gain_percent"] == pytest.approx(-25.0)
    assert math.isnan(rows.loc["bucketed_2", "verify_ms_per_round"])


def test_continuous_batching(study):
    frame = ours(table_continuous_batching.build(study).data)
    at = frame[frame["active"] == 8]
    assert at.set_index("ratio").loc["best-first over uniform, goodput", "gain_percent"] == pytest.approx(10.0)
    uniform = at[at["policy"] == "uniform"].iloc[0]
    assert (uniform["departures"], uniform["outputs"], uniform["arrivals_per_s"]) == (3, 48, 2.0)
    assert (uniform["full_rounds"], uniform["rounds"]) == (30, 60)


def test_sampling_under_load_has_the_largest_distance_of_all_prefixes(study):
    table = table_sampling_under_load.build(study)
    row = ours(table.data).query("sampler == 'walk' and draws == 8000").iloc[0]
    assert row["total_variation_largest"] == pytest.approx(0.5 / math.sqrt(8000))
    assert (row["above"], row["prefixes"]) == (1, 2)
    assert row["decay_exponent"] == pytest.approx(-0.5)
    theirs = table.data[table.data["source"] == "paper"]
    assert theirs[["total_variation_largest", "floor_mean"]].max().tolist() == [0.006, 0.013]


def test_figure_6_is_relative_to_one_packed_token(study):
    frame = ours(fig6.plotted(study)).set_index(["component", "batch", "packed_tokens"])
    cell = frame.loc["verify_dense", 8, 64]
    assert cell["latency_ms"] == pytest.approx(10 + 1.1 * 512)
    assert cell["over_one_percent"] == pytest.approx(100 * ((10 + 1.1 * 512) / 18.8 - 1))
    assert cell["low_ms"] < cell["latency_ms"] < cell["high_ms"]
    theirs = fig6.plotted(study).query("source == 'paper' and component == 'verify_dense'")
    assert dict(zip(theirs["batch"], theirs["over_one_percent"], strict=True)) == {1: 10, 8: 79, 32: 237}


def test_figure_7_has_the_papers_four_series_and_ours(study):
    frame = ours(fig7.plotted(study))
    last = frame[frame["active"] == 8].set_index(["verifier", "policy"])
    assert set(last.index) == set(fig7.SERIES)
    over = last.loc[("dense", "best_first"), [f"over_uniform_{end}percent" for end in ("", "low_", "high_")]]
    assert over.tolist() == pytest.approx([-12.5] * 3)
    assert (last["low"] < last["mean"]).all()


def test_a_setting_that_failed_says_why_beside_one_that_did_not(folder, tmp_path):
    stored(folder, "serving_goodput", goodput_rows(), SERVING)
    lost = served("dense/chain", 1, 1.0, 0)
    lost = {name: lost[name] for name in ("active", "verifier", "policy", "repeat", "order", "traced", "max_new_tokens",
                                          "temperature", "top_k", "seed")}  # fmt: skip
    stored(folder, "serving_goodput", [lost | {"status": "failed", "reason": "out of memory"}], SERVING, "smollm2_bf16")
    study = data.load(folder.root)
    for build in (table_serving.build, table_padding.build):
        text = tables.markdown(build(study))
        assert "not measured: out of memory" in text
        assert "nan" not in text
    fig7.render(study, tmp_path / "fig7")
    assert "not measured: out of memory" in (tmp_path / "fig7.csv").read_text()


def test_two_repeats_leave_points_without_intervals(folder, tmp_path):
    stored(folder, "serving_goodput", [row for row in goodput_rows() if row["repeat"] < 2], SERVING)
    study = data.load(folder.root)
    assert "+10.0%" in tables.markdown(table_serving.build(study))
    assert ours(fig7.plotted(study))["low"].isna().all()
    fig7.render(study, tmp_path / "fig7")


def test_the_figures_of_a_measured_study_are_drawn(study, tmp_path):
    stored(data.Study(study.root, study.decode, study.latency), "width_tax", tax_rows(), WIDTH_TAX, "other", "random")
    study = data.load(study.root)
    for module, name in ((fig6, "fig6"), (fig7, "fig7")):
        written = module.render(study, tmp_path / name)
        assert [path.suffix for path in written] == [".pdf", ".svg", ".png", ".csv"]
