"""Paired goodput ratios by brute force: Student's interval found by search, pairing, the best static policy."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cast.experiments.serving_statistics import best_static, compare, paired_ratio, spread


def runs_of(goodputs):
    """{(verifier, policy): [goodput by repeat]} as rows, shuffled; None is a run that is not there."""
    rows = [
        {"verifier": verifier, "policy": policy, "repeat": repeat, "goodput_tokens_per_s": value}
        for (verifier, policy), values in goodputs.items()
        for repeat, value in enumerate(values)
        if value is not None
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=1)


def test_the_interval_holds_every_ratio_that_a_t_test_does_not_reject():
    over, under = np.array([12.0, 15.0, 11.0, 14.0]), np.array([10.0, 11.0, 11.0, 10.0])
    found = paired_ratio(over, under)
    logs = np.log(over / under)
    grid = np.linspace(-0.5, 1.5, 20_001)
    kept = grid[stats.ttest_1samp(logs[:, None], np.log1p(grid)).pvalue >= 0.05]
    assert (found.low, found.high) == pytest.approx((min(kept), max(kept)), abs=2e-4)
    assert found.gain == pytest.approx(math.prod(over / under) ** 0.25 - 1)
    assert (found.least, found.most) == pytest.approx((0.0, 0.4))
    assert found.median == pytest.approx(np.median(over / under) - 1)


def test_a_true_ratio_is_covered_as_often_as_stated():
    random = np.random.default_rng(5)
    held = 0
    for _ in range(2000):
        shared, noise = random.lognormal(3, 0.5, 4), random.lognormal(0, 0.02, (2, 4))
        found = paired_ratio(1.1 * shared * noise[0], shared * noise[1])
        held += found.low <= 0.1 <= found.high
    assert 0.935 <= held / 2000 <= 0.965


def test_runs_of_one_repeat_are_paired_and_lone_ones_left_out():
    goodputs = {("ragged", "best_first"): [11.0, None, 33.0, 44.0], ("ragged", "uniform"): [10.0, 7.0, 30.0, 40.0]}
    found = compare(runs_of(goodputs), *goodputs)
    assert found.repeats == 3
    assert (found.gain, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert compare(runs_of(goodputs), ("dense", "chain"), ("ragged", "uniform")).repeats == 0


def test_two_repeats_have_no_interval():
    found = paired_ratio([11.0, 12.0], [10.0, 10.0])
    assert found.gain == pytest.approx(math.sqrt(1.1 * 1.2) - 1)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_best_static_policy_is_the_best_of_all():
    random = np.random.default_rng(0)
    names = list(itertools.product(("dense", "ragged"), ("chain", "fixed_wide", "uniform", "best_first", "priced")))
    goodputs = {name: list(random.uniform(5, 9, 3)) for name in names}
    goodputs["ragged", "best_first"] = goodputs["ragged", "priced"] = [99.0] * 3
    static = {name: math.prod(values) for name, values in goodputs.items() if name[1] not in ("best_first", "priced")}
    assert best_static(runs_of(goodputs)) == max(static, key=static.get)
    ragged = {name: value for name, value in static.items() if name[0] == "ragged"}
    assert best_static(runs_of(goodputs), ("ragged",)) == max(ragged, key=ragged.get)
    goodputs["dense", "chain"] = [50.0, None, None]  # one lucky run is no mean of three
    assert best_static(runs_of(goodputs)) != ("dense", "chain")
    assert best_static(runs_of({("ragged", "priced"): [1.0]})) is None


def test_the_spread_of_a_variant():
    found = spread(runs_of({("dense", "chain"): [10.0, 20.0, 40.0]}), ("dense", "chain"))
    assert (found["median"], found["mean"], found["repeats"]) == pytest.approx((20.0, 20.0, 3))
    assert found["low"] < 20 < found["high"]
