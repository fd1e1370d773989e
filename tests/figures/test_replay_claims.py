"""Claims that replays judge: each bar from rows that just meet or just miss it."""

import pandas as pd
import pytest
from synthetic_records import identity
from test_other_experiments import cells

from cast.experiments.records import REPLAY, SCORE_LOG, write_records
from figures import claims, data, scorecard
from figures.claims import replay
from figures.claims.finding import NotMeasured

S = "smollm2_fp32"


def row(analysis, quantity, value, low=None, high=None, **place):
    empty = {"roots": "", "method": "", "bin": "", "budget": None, "top_k": None}
    numbers = {"quantity": quantity, "value": value, "low": low, "high": high, "n": 100, "prompts": 9}
    return identity("replay", S, "math") | empty | {"analysis": analysis} | numbers | place


def stored(folder, experiment, rows, schema):
    path = folder.root / experiment / S / "math.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(pd.DataFrame(rows), path, schema)


def judged(folder, name, rows):
    stored(folder, "replay", rows, REPLAY)
    finding = getattr(replay, name)(data.load(folder.root, settings=[S], domains=["math"]), [S])
    assert finding.settings == (S,)
    assert finding.ours
    return finding.reproduced, finding.direction


def shapes(tree, schedule, binary):
    place = {"roots": "own", "budget": 47}
    gains = {"dflash": (0.0, 0.0, 0.0), "cast": tree, "schedule_8_4_2_2_1": schedule, "binary": binary}
    return [row("fixed_shapes", "r_gain_over_chain", *gain, method=name, **place) for name, gain in gains.items()]


def bands(near, further, beyond=0.0):
    shares = {"1": 0.0, "2-4": near, "5-8": further, "9-32": 1 - near - further - beyond, "beyond 32": beyond}
    return [row("rejection_ranks", "share", share, bin=band, method="dflash") for band, share in shares.items()]


def hits(sure, middle, half=0.01):
    place = {"roots": "chain", "top_k": 8}
    return [
        row("reliability", "hit_rate", value, value - half, value + half, bin=name, **place)
        for name, value in (("0.9-1.0", sure), ("0.6-0.7", middle))
    ]


@pytest.mark.parametrize("place", [0, 1])
def test_a_hit_rate_without_an_interval_is_not_judged(folder, place):
    rows = hits(0.95, 0.65)
    rows[place] |= {"low": None, "high": None}
    with pytest.raises(NotMeasured, match="1 of 2 values have no interval"):
        judged(folder, "calibrated_at_depth_one", rows)


def capped(at_32, at_63):
    place = {"roots": "chain", "method": "cast", "top_k": 8}
    return [row("rank_cap", "r_capped_over_full", v, v, v, budget=n, **place) for n, v in ((32, at_32), (63, at_63))]


def regret(broken):
    place = {"method": "cast", "budget": 63, "top_k": 8}
    return [
        row("plug_in_regret", "rounds_above_bound", broken, roots="every", **place),
        row("plug_in_regret", "regret", 0.7, 0.6, 0.8, roots="chain", **place),
    ]


def allocation(gain, low, **place):
    place = {"method": "best_first", "budget": 4} | place
    return [row("shared_budget", "accepted_over_uniform", gain, low, gain + 0.01, **place)]


def abundance(gain, scarce=0.18):
    return allocation(scarce, scarce - 0.01) + allocation(gain, gain - 0.01, budget=64)


def hindsight(adds):
    place = {"method": "hindsight", "budget": 4}
    return [row("shared_budget", "ahead_of_best_first", adds, adds - 0.01, adds + 0.01, **place)]


def masses(factor):
    """The paper's first mass, and its 48th and 64th by a factor."""
    at = {1: 0.86, 48: 0.016 * factor, 64: 0.011 * factor}
    return [row("mass_curve", "mass", mass, budget=place) for place, mass in at.items()]


def beyond_cap(*shares):
    return [row("rank_cap", "share_beyond_cap", share, bin=f"depths {n}") for n, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("adaptive_beats_fixed_shapes", shapes((0.2, 0.1, 0.3), (-0.4, -0.5, -0.3), (-0.1, -0.2, 0.0)), (True, True)),
        ("adaptive_beats_fixed_shapes", shapes((0.2, 0.1, 0.3), (-0.4, -0.5, -0.3), (0.1, 0.05, 0.2)), (False, True)),
        ("adaptive_beats_fixed_shapes", shapes((0.1, 0.05, 0.2), (-0.4, -0.5, -0.3), (0.2, 0.1, 0.3)), (False, False)),
        ("rejections_near_the_top", bands(0.60, 0.2), (True, True)),
        ("rejections_near_the_top", bands(0.50, 0.3), (False, True)),
        ("rejections_near_the_top", bands(0.30, 0.4), (False, False)),
        ("rejections_further_down", bands(0.60, 0.12), (True, True)),
        ("rejections_further_down", bands(0.60, 0.10), (False, True)),
        ("rejections_further_down", bands(0.60, 0.15), (False, True)),
        ("rejections_further_down", bands(0.20, 0.30), (False, False)),
        ("rejections_out_of_reach", bands(0.60, 0.12, beyond=0.05), (True, True)),
        ("rejections_out_of_reach", bands(0.60, 0.12, beyond=0.01), (False, True)),
        ("rejections_out_of_reach", bands(0.60, 0.12, beyond=0.15), (False, True)),
        ("rejections_out_of_reach", bands(0.60, 0.12, beyond=0.25), (False, False)),
        ("masses_fall", masses(1.2), (True, True)),
        ("masses_fall", masses(0.6), (False, True)),
        ("masses_fall", masses(1.6), (False, True)),
        ("masses_fall", masses(0.4), (False, False)),
        ("masses_fall", masses(2.2), (False, False)),
        ("beyond_the_cap", beyond_cap(0.30, 0.10, 0.50), (True, True)),
        ("beyond_the_cap", beyond_cap(0.30, 0.05, 0.50), (False, True)),
        ("beyond_the_cap", beyond_cap(0.30, 0.16, 0.50), (False, False)),
        ("calibrated_at_depth_one", hits(0.985, 0.7), (True, True)),
        ("calibrated_at_depth_one", hits(0.93, 0.6), (False, True)),
        ("calibrated_at_depth_one", hits(0.8, 0.7), (False, False)),
        ("calibrated_at_depth_one", hits(0.95, 0.7, half=0.04), (True, True)),
        ("calibrated_at_depth_one", hits(0.95, 0.7, half=0.06), (False, True)),  # wider than 0.9 to 1.0
        ("rank_cap_is_free", capped(-0.004, -0.010), (True, True)),
        ("rank_cap_is_free", capped(-0.010, -0.010), (False, True)),
        ("rank_cap_is_free", capped(-0.04, 0.0), (False, False)),
        ("regret_within_bound", regret(0), (True, True)),
        ("regret_within_bound", regret(1), (False, False)),
        ("allocation_adds_acceptance", allocation(0.18, 0.17), (True, True)),
        ("allocation_adds_acceptance", allocation(0.05, 0.04), (False, True)),
        ("allocation_adds_acceptance", allocation(0.01, -0.01), (False, False)),
        ("allocation_adds_acceptance", allocation(0.18, -0.01), (False, False)),
        ("abundance_needs_no_allocation", abundance(0.015), (True, True)),
        ("abundance_needs_no_allocation", abundance(0.05), (False, True)),
        ("abundance_needs_no_allocation", abundance(-0.02), (False, True)),
        ("abundance_needs_no_allocation", abundance(0.20), (False, False)),
        ("hindsight_is_near", hindsight(0.04), (True, True)),
        ("hindsight_is_near", hindsight(0.10), (False, True)),
        ("hindsight_is_near", hindsight(0.20), (False, False)),
    ],
)
def test_bars(folder, name, rows, expected):
    assert judged(folder, name, rows) == expected


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        (0.04, (True, True)),
        (-0.04, (True, True)),
        (0.10, (False, True)),
        (-0.10, (False, True)),
        (0.20, (False, False)),
        (-0.20, (False, False)),
    ],
)
def test_a_replayed_tree_is_held_against_the_live_one(folder, off, expected):
    folder.sweep(S, "math", cells({47: 0.3}, r=2.5))
    place = {"roots": "own", "method": "cast", "budget": 47, "top_k": 8}
    replayed = [row("budget_sweep", "r_pooled", 2.5 * (1 + off), **place)]
    assert judged(folder, "replay_is_the_live_tree", replayed) == expected


@pytest.mark.parametrize(
    ("off", "expected"), [(0.04, (True, True)), (-0.04, (True, True)), (-0.20, (False, True)), (0.10, (False, False))]
)
def test_replayed_rounds_are_held_against_the_emitted_tokens(folder, off, expected):
    log = {
        "prompt_tokens": 40, "new_tokens": 100, "output_tokens": 115, "roots": 99, "departures": 0,
        "max_new_tokens": 100, "block_size": 16, "top": 8,
    }  # fmt: skip
    prompts = [{"prompt_id": f"p{n}", "prompt_index": n} for n in range(2)]
    logged = [identity("score_log", S, "math") | log | prompt for prompt in prompts]
    stored(folder, "score_log", logged, SCORE_LOG)
    # A hundred rounds.
    chain = [row("fixed_shapes", "r_pooled", 2.0 * (1 + off), roots="own", method="dflash", budget=15)]
    assert judged(folder, "rounds_account_for_tokens", chain) == expected


def test_without_a_replay_the_scorecard_says_so(folder):
    folder.width(S, 31)
    found = {verdict["id"]: verdict for verdict in scorecard.judge(data.load(folder.root, settings=[S]))}
    assert found["rank-cap-is-free"]["verdict"] == "not measured"
    assert found["rank-cap-is-free"]["why"] == "no replay record"


def test_a_failed_replay_gives_its_reason(folder):
    empty = dict.fromkeys(["value", "low", "high", "n", "prompts"])
    failed = row("score_log", "rounds", None) | empty | {"status": "failed", "reason": "the score log failed (busy)"}
    with pytest.raises(claims.NotMeasured, match=r"the score log failed \(busy\)"):
        judged(folder, "rank_cap_is_free", [failed])
