"""The paired bootstrap over prompts: scipy's own interval, its coverage, and how long one cell takes."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from cast.experiments.bootstrap import (
    MIN_PROMPTS,
    bootstrap_interval,
    expanded_confidence,
    mean_of_ratios,
    ratio_of_means,
    reach,
    student_interval,
)


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


@pytest.mark.parametrize(("prompts", "t"), [(5, 2.776445), (12, 2.200985), (100, 1.984217)])
def test_few_prompts_have_students_reach(prompts, t):
    """From a table of t at 97.5%: the level is that of as many normal deviations."""
    assert reach(prompts) == pytest.approx(t * math.sqrt(prompts / (prompts - 1)), abs=1e-5)
    assert expanded_confidence(prompts) == pytest.approx(1 - math.erfc(reach(prompts) / math.sqrt(2)), abs=1e-12)


def test_an_interval_of_few_draws_has_that_reach_of_their_deviation():
    low, high = student_interval(0.3, [0.1, 0.2, 0.6], 5)  # deviation of the three: sqrt(0.07)
    assert (low, high) == pytest.approx((0.3 - 3.104159 * math.sqrt(0.07), 0.3 + 3.104159 * math.sqrt(0.07)), abs=1e-5)
    assert all(map(math.isnan, student_interval(0.3, [0.1, 0.2, 0.6], MIN_PROMPTS - 1)))
    assert all(map(math.isnan, student_interval(0.3, [0.1, math.nan, 0.6], 5)))


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_the_interval_equals_scipys_paired_bootstrap(method):
    pair = np.random.default_rng(1).gamma(20, 1.0, (2, 30))

    def ratio(chain, tree, axis):
        return chain.mean(axis=axis) / tree.mean(axis=axis) - 1

    reference = stats.bootstrap(
        tuple(pair),
        ratio,
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method=method,
        confidence_level=expanded_confidence(30),
        rng=np.random.default_rng(5),
    ).confidence_interval
    ours = bootstrap_interval([pair], first(ratio_of_means), resamples=2000, seed=5, method=method)
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


def missed(strata_of_studies, of_means, method):
    """Shares of studies whose interval lies above and below the true gain, drawn anew for every fifty of them.

    ``strata_of_studies``: per domain ``[2, studies, prompts]``.
    """
    studies = strata_of_studies[0].shape[1]
    above = below = 0
    for start in range(0, studies, 50):
        series = [stratum[:, start : start + 50].reshape(-1, stratum.shape[-1]) for stratum in strata_of_studies]

        def gains(strata):
            return sum(of_means(*np.split(drawn, 2)) for drawn in strata) / len(strata)

        low, high = bootstrap_interval(series, gains, resamples=1000, seed=start, method=method)
        above += int((low > 0.25).sum())
        below += int((high < 0.25).sum())
    return above / studies, below / studies


def gain_of_means(chain, tree):
    return chain.mean(-1) / tree.mean(-1) - 1


def mean_of_gains(chain, tree):
    return (chain / tree - 1).mean(-1)


@pytest.mark.parametrize("method", ["BCa", "percentile"])
@pytest.mark.parametrize("of_means", [gain_of_means, mean_of_gains])
@pytest.mark.parametrize(("prompts", "least"), [(5, 0.90), (8, 0.92), (12, 0.925), (40, 0.935), (100, 0.94)])
def test_the_interval_covers_the_true_gain(prompts, least, of_means, method, record_property):
    """8,000 simulated studies, times skewed, chain and tree correlated: 95% intervals cover 95%, few prompts 91%."""
    above, below = missed([paired(prompts, seed=2, studies=8000)], of_means, method)
    record_property("coverage", 1 - above - below)
    print(f"{prompts} prompts, {of_means.__name__}, {method}: {1 - above - below:.1%}, {above:.1%} too high")
    # The simulation's own standard error is 0.25 points, of each tail 0.2; without Student's reach five cover 83%.
    assert least <= 1 - above - below <= 0.96
    assert min(above, below) >= 0.012 and max(above, below) <= 0.7 * (1 - least) + 0.002


@pytest.mark.parametrize("method", ["BCa", "percentile"])
@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 40, 40), (12, 12, 12)])
def test_the_interval_of_three_domains_covers_their_mean_gain(sizes, method, record_property):
    """Also where one of them has few prompts and most of the spread."""
    domains = [paired(prompts, seed=seed, studies=8000) for seed, prompts in enumerate(sizes, start=2)]
    above, below = missed(domains, gain_of_means, method)
    record_property("coverage", 1 - above - below)
    print(f"domains of {sizes} prompts, {method}: {1 - above - below:.1%}, {above:.1%} too high")
    assert 0.93 <= 1 - above - below <= 0.99
