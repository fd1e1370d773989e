"""The paired bootstrap over prompts: scipy's own interval, its coverage, and how long one cell takes."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from cast.experiments.bootstrap import MIN_PROMPTS, bootstrap_interval, mean_of_ratios, ratio_of_means

STATISTICS = {"ratio": ratio_of_means, "prompts": mean_of_ratios}


def first(statistic):
    return lambda strata: statistic(strata)[0]


def paired(prompts, seed=0, studies=1):
    """[2, prompts] ms per token of a chain and a tree whose mean ratio is 1.25, in every study."""
    rng = np.random.default_rng(seed)
    tree = rng.gamma(10.0, 1.0, (studies, prompts))
    chain = tree * rng.lognormal(math.log(1.25) - 0.02, 0.2, (studies, prompts))  # independent of the tree
    return np.stack([chain, tree])


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_a_cell_takes_less_than_a_second(method):
    pair = paired(200)[:, 0]
    started = time.process_time()
    interval = bootstrap_interval([pair], first(mean_of_ratios), method=method)
    assert time.process_time() - started < 1.0
    assert interval == bootstrap_interval([pair], first(mean_of_ratios), method=method)
    assert interval[0] < 0.25 < interval[1]


def test_the_interval_equals_scipys_paired_bootstrap():
    pair = np.random.default_rng(1).gamma(20, 1.0, (2, 30))

    def ratio(chain, tree, axis):
        return chain.mean(axis=axis) / tree.mean(axis=axis) - 1

    reference = stats.bootstrap(
        tuple(pair), ratio, paired=True, vectorized=True, n_resamples=2000, rng=np.random.default_rng(5)
    ).confidence_interval
    ours = bootstrap_interval([pair], first(ratio_of_means), resamples=2000, seed=5)
    assert ours == pytest.approx(tuple(reference))


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_several_values_at_once_are_the_values_one_by_one(method):
    pair = paired(20, studies=3)
    together = np.concatenate([pair[0][:1], pair[1]])  # one chain, three trees
    low, high = bootstrap_interval([together], ratio_of_means, resamples=500, method=method)
    for place in range(3):
        alone = bootstrap_interval([together[[0, place + 1]]], first(ratio_of_means), resamples=500, method=method)
        assert (low[place], high[place]) == pytest.approx(alone)


def test_a_value_without_spread_leaves_the_others_their_interval():
    pair = paired(20)[:, 0]
    low, high = bootstrap_interval([np.stack([pair[0], pair[0], pair[1]])], ratio_of_means, resamples=300)
    alone = bootstrap_interval([pair], first(ratio_of_means), resamples=300)
    assert (low[0], high[0]) == (0.0, 0.0)
    assert (low[1], high[1]) == pytest.approx(alone)


def test_too_few_prompts_have_no_interval():
    pair = paired(MIN_PROMPTS)[:, 0]
    assert all(map(math.isfinite, bootstrap_interval([pair], first(ratio_of_means), resamples=50)))
    assert all(map(math.isnan, bootstrap_interval([pair[:, 1:]], first(ratio_of_means), resamples=50)))
    assert all(map(math.isnan, bootstrap_interval([pair, pair[:, 1:]], first(ratio_of_means), resamples=50)))


@pytest.mark.parametrize("method", ["BCa", "percentile"])
@pytest.mark.parametrize("name", STATISTICS)
def test_the_interval_covers_the_true_gain(name, method):
    """2,000 simulated studies of 100 skewed, correlated prompts: 95% intervals must cover in about 95%."""
    studies, prompts = 2000, 100
    pair = paired(prompts, seed=2, studies=studies)
    series = pair.reshape(2 * studies, prompts)

    def every_study(strata):
        (drawn,) = strata
        chain, tree = drawn[:studies], drawn[studies:]
        return chain.mean(-1) / tree.mean(-1) - 1 if name == "ratio" else (chain / tree - 1).mean(-1)

    low, high = bootstrap_interval([series], every_study, resamples=400, seed=3, method=method)
    covered = np.mean((low <= 0.25) & (high >= 0.25))
    # Its own standard error is 0.5 points; 400 resamples and 100 skewed prompts cost the method about one.
    assert 0.93 <= covered <= 0.965
