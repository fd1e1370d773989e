import math

import numpy as np
import pandas as pd
import pytest
from test_records import decode_row, failed_row

from cast.errors import CastError
from cast.experiments.bootstrap import MIN_PROMPTS, bootstrap_interval, ratio_of_means
from cast.experiments.records import DECODE
from cast.experiments.statistics import (
    cell_summary,
    median_runs,
    repeat_summary,
    seed_summary,
    setting_summary,
    width_gap,
)


def run(method, budget, prompt, ms_per_token, **changes):
    """A measured row; new_tokens = 50, and R = 50 / rounds unless given."""
    row = {"method": method, "budget": budget, "prompt_id": f"p{prompt}", "prompt_index": prompt}
    row |= {"ms_per_token": ms_per_token, "new_tokens": 50, "rounds": 20, "committed_tokens": 50} | changes
    return decode_row(**row, decode_ms=row["ms_per_token"] * row["new_tokens"])


def records(*rows):
    return DECODE.validate(pd.DataFrame(rows))


def cell(summary, method, budget, **where):
    for column, value in ({"method": method, "budget": budget} | where).items():
        summary = summary[summary[column] == value]
    assert len(summary) == 1
    return summary.iloc[0]


def three_methods(prompts=6, **changes):
    rows = []
    for i in range(prompts):
        rows += [
            run("autoregressive", 0, i, 40.0 + i, rounds=50, **changes),
            run("dflash", 15, i, 20.0 + i, **changes),
            run("cast", 31, i, 15.0 + i % 3, **changes),
        ]
    return rows


def test_means_ratios_and_counts():
    summary = cell_summary(records(*three_methods()), resamples=200)
    assert summary[["method", "budget"]].to_numpy().tolist() == [
        ["autoregressive", 0],
        ["cast", 31],
        ["dflash", 15],
    ]
    cast = cell(summary, "cast", 31)
    assert cast["ms_per_token"] == pytest.approx(16.0)
    assert cast["speedup"] == pytest.approx(42.5 / 16.0)
    assert cast["gain"] == pytest.approx(22.5 / 16.0 - 1)
    assert cast["gain_low"] < cast["gain"] < cast["gain_high"]
    plain, tree = (np.array(times, float) for times in ([40 + i for i in range(6)], [15 + i % 3 for i in range(6)]))
    low, high = bootstrap_interval([np.stack([plain, tree])], lambda s: ratio_of_means(s)[0] + 1, resamples=200)
    assert (cast["speedup_low"], cast["speedup_high"]) == pytest.approx((low, high))
    assert cast["speedup_low"] < cast["speedup"] < cast["speedup_high"]
    assert (cast["prompts"], cast["prompts_paired"], cast["prompts_dropped"], cast["failed_rows"]) == (
        6,
        6,
        0,
        0,
    )
    chain = cell(summary, "dflash", 15)
    assert chain["gain"] == 0.0 and math.isnan(chain["gain_low"])
    assert chain["prompts_dropped"] == 0
    alone = cell(summary, "autoregressive", 0)
    assert alone["speedup"] == 1.0 and math.isnan(alone["speedup_low"])
    assert alone["gain"] == pytest.approx(22.5 / 42.5 - 1)


def test_both_r_statistics_and_both_times():
    rows = [
        run("cast", 31, 0, 10.0, new_tokens=10, rounds=2, committed_tokens=10),
        run("cast", 31, 1, 20.0, new_tokens=50, rounds=50, committed_tokens=50),
    ]
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 31)
    assert cast["r_prompt_mean"] == pytest.approx((5 + 1) / 2)
    assert cast["r_pooled"] == pytest.approx(60 / 52)
    assert cast["ms_per_token"] == pytest.approx(15.0)
    assert cast["ms_per_token_pooled"] == pytest.approx((100 + 1000) / 60)
    for missing in ("gain", "gain_low", "speedup"):  # neither baseline was measured
        assert math.isnan(cast[missing])


def test_repeats_are_averaged_within_a_prompt_first():
    rows = [run("dflash", 15, 0, 20.0, repeat=r) for r in range(3)] + [run("dflash", 15, 1, 40.0)]
    rows += [run("cast", 31, 0, 10.0 + r, repeat=r) for r in range(3)] + [run("cast", 31, 1, 30.0)]
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 31)
    assert cast["ms_per_token"] == pytest.approx((11 + 30) / 2)
    assert cast["gain"] == pytest.approx(30 / 20.5 - 1)


def test_traced_rows_never_enter():
    plain = three_methods()
    traced = [run("cast", 31, i, 900.0, traced=True, repeat=1) for i in range(6)]
    pd.testing.assert_frame_equal(
        cell_summary(records(*plain, *traced), resamples=50), cell_summary(records(*plain), resamples=50)
    )


def test_prompts_that_only_one_method_has_are_dropped_from_the_pair():
    rows = [row for row in three_methods() if (row["method"], row["prompt_id"]) != ("cast", "p5")]
    rows.append(failed_row(method="cast", budget=31, prompt_id="p5"))
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 31)
    assert (cast["prompts"], cast["prompts_paired"], cast["prompts_dropped"]) == (5, 5, 1)
    assert cast["gain"] == pytest.approx(22.0 / np.mean([15, 16, 17, 15, 16]) - 1)
    assert (cast["failed_rows"], cast["reason"]) == (1, "out of memory")


def test_a_cell_with_nothing_measured_keeps_its_reason():
    rows = [*three_methods(), failed_row(method="cast", budget=127, prompt_id="p0")]
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 127)
    assert cast["prompts"] == 0 and cast["reason"] == "out of memory"
    assert math.isnan(cast["ms_per_token"]) and math.isnan(cast["r_pooled"]) and math.isnan(cast["gain"])


def test_a_pair_never_mixes_sessions():
    rows = [run("dflash", 15, i, 20.0, session="first") for i in range(4)]
    rows += [run("cast", 31, i, 10.0, session="first" if i < 3 else "second") for i in range(4)]
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 31)
    assert (cast["prompts_paired"], cast["prompts_dropped"]) == (3, 1)
    assert cast["gain"] == pytest.approx(1.0)


def test_low_repeat_columns_follow_the_autoregressive_output():
    rows = three_methods(prompts=7)
    for row in rows:
        looping = row["prompt_id"] in ("p5", "p6")
        row["repeat_share"] = 0.5 if looping == (row["method"] == "autoregressive") else 0.0
    cast = cell(cell_summary(records(*rows), resamples=50), "cast", 31)
    assert cast["prompts_low_repeat"] == 5
    assert cast["ms_per_token_low_repeat"] == pytest.approx(np.mean([15, 16, 17, 15, 16]))
    assert cast["gain_low_repeat"] == pytest.approx(22 / 15.8 - 1)
    assert cast["repeat_share"] == pytest.approx(5 * 0.5 / 7)
    assert cast["gain_low_low_repeat"] < cast["gain_low_repeat"] < cast["gain_high_low_repeat"]


def test_departures_count_prompts():
    rows = three_methods()
    rows[2] |= {"departure": 7, "departure_gap": 0.01}
    rows.append(run("cast", 31, 0, 15.0, repeat=1, departure=7, departure_gap=0.01))
    assert cell(cell_summary(records(*rows), resamples=50), "cast", 31)["departures"] == 1


def test_prompts_that_were_not_compared_do_not_count_as_equal():
    rows = three_methods()
    for row in rows:
        row |= {"departure": None} if row["method"] == "cast" else {}
    summary = cell_summary(records(*rows), resamples=50)
    assert math.isnan(cell(summary, "cast", 31)["departures"])
    assert cell(summary, "dflash", 15)["departures"] == 0


def test_the_baseline_is_the_full_block():
    rows = three_methods() + [run("dflash", 7, i, 5.0, block_size=8) for i in range(6)]
    summary = cell_summary(records(*rows), resamples=50)
    assert cell(summary, "cast", 31)["gain"] == pytest.approx(22.5 / 16.0 - 1)
    assert cell(summary, "dflash", 7)["gain"] == pytest.approx(22.5 / 5.0 - 1)


@pytest.mark.parametrize(("prompts", "known"), [(1, False), (MIN_PROMPTS - 1, False), (MIN_PROMPTS, True)])
def test_few_prompts_have_a_gain_but_no_interval(prompts, known):
    frame = records(*three_methods(prompts=prompts))
    cells = cell_summary(frame, resamples=50)
    for row in (cell(cells, "cast", 31), cell(setting_summary(cells, frame, resamples=50), "cast", 31)):
        assert row["gain"] > 0
        assert math.isfinite(row["gain_low"]) is known
        assert math.isfinite(row["gain_high"]) is known


def test_prompts_that_are_all_alike_have_an_interval_of_no_width():
    rows = [run(m, b, i, t) for i in range(5) for m, b, t in (("dflash", 15, 20.0), ("cast", 31, 16.0))]
    cast = cell(cell_summary(records(*rows), resamples=100), "cast", 31)
    assert (cast["gain"], cast["gain_low"], cast["gain_high"]) == pytest.approx((0.25, 0.25, 0.25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 1.0}, "rows with different temperature"),
        ({"max_new_tokens": 128}, "rows with different max_new_tokens"),
        ({"experiment": "other"}, "rows with different experiment"),
        ({"block_size": 8}, "rows with different block_size"),
        ({"prompt_id": "p0", "top_k": 8, "drafter": "tiny-head"}, "occurs twice"),
    ],
)
def test_protocols_are_not_averaged(change, message):
    frame = pd.DataFrame([*three_methods(), run("cast", 31, 9, 15.0) | change])
    with pytest.raises(CastError, match=message) as caught:
        cell_summary(frame, resamples=50)
    assert "\n" not in str(caught.value)


def two_domains():
    rows = three_methods(domain="math")
    rows += [
        row | {"ms_per_token": row["ms_per_token"] * 2, "decode_ms": row["decode_ms"] * 2}
        if row["method"] == "dflash"
        else row
        for row in three_methods(domain="code")
    ]
    return rows


def test_a_setting_is_the_mean_of_its_domains():
    frame = records(*two_domains())
    cells = cell_summary(frame, resamples=300)
    cast = cell(setting_summary(cells, frame, resamples=300), "cast", 31)
    assert cast["gain"] == pytest.approx(((22.5 / 16 - 1) + (45 / 16 - 1)) / 2)
    assert cast["gain_low"] < cast["gain"] < cast["gain_high"]
    assert (cast["domains"], cast["domains_missing"]) == (2, 0)
    assert cast["speedup"] == pytest.approx(42.5 / 16)
    assert cast["speedup_low"] < cast["speedup"] < cast["speedup_high"]
    assert math.isnan(cell(setting_summary(cells, frame, resamples=50), "dflash", 15)["gain_low"])


def test_a_missing_domain_is_counted():
    frame = records(*(row for row in two_domains() if (row["method"], row["domain"]) != ("cast", "code")))
    cast = cell(setting_summary(cell_summary(frame, resamples=50), frame, resamples=50), "cast", 31)
    assert (cast["domains"], cast["domains_missing"]) == (1, 1)
    assert cast["gain"] == pytest.approx(22.5 / 16 - 1)


def sweep():
    rows = two_domains()
    rows += [run("cast", 63, i, 12.0 + i % 2, domain=d) for i in range(6) for d in ("math", "code")]
    rows += [run("cast", 127, i, 11.0, domain="math") for i in range(6)]  # ran out of memory on code
    return rows


def test_gap_to_the_sweep_oracle():
    frame = records(*sweep())
    behind = width_gap(frame, {"laptop-tiny": 31}, resamples=300).iloc[0]
    gains = {31: (22.5 / 16 + 45 / 16) / 2 - 1, 63: (22.5 / 12.5 + 45 / 12.5) / 2 - 1}
    assert (behind["width"], behind["oracle_width"], behind["widths_compared"]) == (31, 63, 2)
    assert behind["gain"] == pytest.approx(gains[31]) and behind["oracle_gain"] == pytest.approx(gains[63])
    assert behind["gap_points"] == pytest.approx(100 * (gains[31] - gains[63]))
    assert behind["gap_low"] < behind["gap_points"] < behind["gap_high"] <= 0
    best = width_gap(frame, {"laptop-tiny": 63}, resamples=300).iloc[0]
    assert best["gap_points"] == 0 and best["gap_high"] == 0


def test_a_gap_that_cannot_be_known():
    gaps = width_gap(records(*sweep()), {"laptop-tiny": 127, "elsewhere": 63}, resamples=50)
    assert gaps["gap_points"].isna().all() and gaps["oracle_width"].isna().all()
    assert gaps["reason"].str.contains("not both measured").all()


def repeated_panel(repeats=3):
    """Six prompts, three repeats: each prompt's chain and tree move together, and repeat 2 is a slow moment."""
    rows = []
    for i in range(6):
        for r in range(repeats):
            chain, tree = 20.0 + i + r, 16.0 + i % 2 + (2.0 if r == 2 else 0.0)
            rows += [run("dflash", 15, i, chain, repeat=r), run("cast", 31, i, tree, repeat=r)]
    return rows


def test_gains_of_prompts_and_of_repeats():
    """The mean gain of prompts averages each prompt's repeats first; every gain has its interval."""
    row = cell(repeat_summary(records(*repeated_panel()), resamples=400), "cast", 31)
    assert (row["prompts"], row["repeats"]) == (6, 3)
    chain = np.array([np.mean([20.0 + i + r for r in range(3)]) for i in range(6)])
    tree = np.array([np.mean([16.0 + i % 2, 16.0 + i % 2, 18.0 + i % 2]) for i in range(6)])
    assert row["prompt_gain"] == pytest.approx((chain / tree - 1).mean())
    assert row["gain"] == pytest.approx(chain.mean() / tree.mean() - 1)
    for name in ("prompt_gain", "prompt_gain_percentile", "gain"):
        middle = row["gain"] if name == "gain" else row["prompt_gain"]
        assert row[f"{name}_low"] < middle < row[f"{name}_high"], name
    by_repeat = [np.mean([20.0 + i + r for i in range(6)]) / (16.5 + 2.0 * (r == 2)) - 1 for r in range(3)]
    assert (row["repeat_gain_low"], row["repeat_gain_high"]) == pytest.approx((min(by_repeat), max(by_repeat)))
    assert row["repeat_change_points"] == pytest.approx(100 * (max(by_repeat) - min(by_repeat)))


@pytest.mark.parametrize("failed", ["dflash", "cast"])
def test_a_prompt_without_one_of_its_repeats_is_in_none(failed):
    """Else repeat 2 would be of other prompts than the rest, and its gain of their difference."""
    whole = repeated_panel()
    broken = [row for row in whole if (row["method"], row["prompt_id"], row["repeat"]) != (failed, "p5", 2)]
    without = [row for row in whole if row["prompt_id"] != "p5"]
    for summary in (repeat_summary, median_runs):
        pd.testing.assert_frame_equal(
            summary(records(*broken), resamples=100), summary(records(*without), resamples=100)
        )


def test_one_repeat_does_not_change():
    row = cell(repeat_summary(records(*repeated_panel(repeats=1)), resamples=100), "cast", 31)
    assert (row["repeats"], row["repeat_change_points"]) == (1, 0.0)


def test_the_repeat_of_the_median_gain_brings_all_its_numbers():
    rows = records(
        *repeated_panel(), *(run("autoregressive", 0, i, 40.0 + r, repeat=r) for i in range(6) for r in range(3))
    )
    by_repeat = [np.mean([20.0 + i + r for i in range(6)]) / (16.5 + 2.0 * (r == 2)) - 1 for r in range(3)]
    assert sorted(by_repeat)[1] == by_repeat[0]
    for summary in (median_runs(rows, resamples=200), repeat_summary(rows, resamples=200)):
        row = cell(summary, "cast", 31)
        assert (row["median_run"], row["median_run_of"]) == ("0", 3)
        assert row["median_run_gain"] == pytest.approx(by_repeat[0])
        assert row["median_run_gain_low"] < row["median_run_gain"] < row["median_run_gain_high"]
        times = [row[f"median_run_{name}ms_per_token"] for name in ("", "dflash_", "ar_")]
        assert times == pytest.approx([16.5, 22.5, 40.0])
        assert row["median_run_r_pooled"] == pytest.approx(2.5)


def test_two_repeats_have_no_middle_one_and_are_averaged():
    row = cell(median_runs(records(*repeated_panel(repeats=2)), resamples=100), "cast", 31)
    assert (row["median_run"], row["median_run_of"]) == ("0, 1", 2)
    assert row["median_run_gain"] == pytest.approx(23.0 / 16.5 - 1)


def test_gains_of_seeds_have_their_range_and_their_interval():
    rows = []
    for i in range(6):
        for seed in range(3):
            rows += [
                run("dflash", 15, i, 20.0 + i, seed=seed, temperature=1.0, rounds=25),
                run("cast", 31, i, 14.0 + i % 3 + seed, seed=seed, temperature=1.0),
            ]
    lost = [row for row in rows if (row["method"], row["prompt_id"], row["seed"]) == ("cast", "p5", 2)]
    rows.append(run("dflash", 15, 9, 1.0, seed=0, temperature=1.0))  # no tree was measured for it
    everything = cell(seed_summary(records(*rows), resamples=300), "cast", 31)
    gains = [22.5 / (15.0 + seed) - 1 for seed in range(3)]
    assert (everything["prompts"], everything["seeds"]) == (6, 3)
    assert everything["gain"] == pytest.approx(np.mean(gains))
    assert (everything["seed_gain_low"], everything["seed_gain_high"]) == pytest.approx((min(gains), max(gains)))
    assert everything["seed_ms_deviation"] == pytest.approx(1 / 16)
    assert everything["gain_low"] < everything["gain"] < everything["gain_high"]
    assert (everything["r_pooled"], everything["dflash_r_pooled"]) == pytest.approx((2.5, 2.0))
    fewer = seed_summary(records(*(row for row in rows if row not in lost)), resamples=300)
    assert cell(fewer, "cast", 31)["prompts"] == 5  # a prompt without one of its seeds is in no mean


def two_heads():
    return three_methods() + [
        run("eagle3", 59, i, ms, drafter=head) for i in range(6) for head, ms in (("one", 25.0), ("other", 10.0))
    ]


def test_two_heads_at_one_budget_are_two_cells():
    rows = records(*two_heads())
    summary = cell_summary(rows, resamples=100)
    for head, ms in (("one", 25.0), ("other", 10.0)):
        found = cell(summary, "eagle3", 59, drafter=head)
        assert found["ms_per_token"] == ms
        assert found["gain"] == pytest.approx(22.5 / ms - 1)
        assert found["prompts_paired"] == 6
    averages = setting_summary(summary, rows, resamples=100)
    assert cell(averages, "eagle3", 59, drafter="other")["gain"] == pytest.approx(1.25)
    assert set(repeat_summary(rows, resamples=100)["drafter"]) == {"one", "other", rows["drafter"].iloc[0]}


def test_the_baseline_is_of_one_head():
    rows = records(*three_methods(), run("dflash", 15, 9, 20.0, drafter="other"))
    with pytest.raises(CastError, match="rows with different drafter"):
        cell_summary(rows, resamples=50)
