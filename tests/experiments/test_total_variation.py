"""Distances, floors and tests by hand, and the protocol on a tiny pair: right for our samplers, far for a wrong one."""

import math

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from cast.experiments import total_variation
from cast.experiments.records import TOTAL_VARIATION
from cast.experiments.total_variation import (
    TotalVariationSpec,
    chi_square,
    joint_law,
    monte_carlo_floor,
)
from cast.verify import RecursiveSelector

NAME = "dflash_tiny_qwen3"


@pytest.fixture
def pair(golden_pair, stopping_at):
    return stopping_at(golden_pair(NAME))


@pytest.fixture
def prompts(golden_prompts):
    return golden_prompts(NAME)


def spec_of(**changes):
    small = {"draws": (600, 100), "floor_samples": 200, "budget": 15, "temperature": 2.0, "lead_tokens": 4}
    return TotalVariationSpec(**small | changes)


def test_total_variation_by_hand():
    counts = np.array([3, 0, 1])
    assert total_variation.total_variation(counts, np.array([0.5, 0.25, 0.25])) == pytest.approx(0.25)
    assert total_variation.total_variation(counts, counts / 4) == 0


@pytest.mark.parametrize("size", [2, 40])
def test_the_floors_mean_is_that_of_binomial_deviations(size):
    law = np.random.default_rng(size).dirichlet(np.full(size, 0.5))
    draws = [10, 160]
    floors = monte_carlo_floor(law, draws, 3000, np.random.default_rng(0))
    for count, (mean, quantile) in zip(draws, floors, strict=True):
        seen = np.arange(count + 1)[:, None]
        exact = 0.5 * (binom.pmf(seen, count, law) * np.abs(seen / count - law)).sum()
        assert mean == pytest.approx(exact, rel=0.04)
        assert quantile > 1.3 * mean
    assert floors[0][0] > 2.5 * floors[1][0]


def test_a_floor_of_a_law_with_impossible_tokens():
    (mean, quantile), *_ = monte_carlo_floor(np.array([0.0, 1.0, 0.0]), [5], 10, np.random.default_rng(0))
    assert mean == quantile == 0


def test_chi_square_is_scipys_where_nothing_is_pooled():
    law, counts = np.array([0.2, 0.3, 0.5]), np.array([25, 20, 55])
    statistic, freedom, p_value = chi_square(counts, law)
    expected = chisquare(counts, law * 100)
    assert (statistic, freedom, p_value) == pytest.approx((expected.statistic, 2, expected.pvalue))


def test_chi_square_pools_what_expects_too_little():
    law = np.array([0.5, 0.4, 0.04, 0.03, 0.03])
    counts = np.array([48, 41, 5, 3, 3])
    expected = chisquare([48, 41, 11], [50, 40, 10])
    assert chi_square(counts, law) == pytest.approx((expected.statistic, 2, expected.pvalue))
    # A pool that itself expects too little joins the smallest cell.
    joined = chisquare([48, 52], [50, 50])
    assert chi_square(np.array([48, 49, 3]), np.array([0.5, 0.48, 0.02])) == pytest.approx(
        (joined.statistic, 1, joined.pvalue)
    )
    assert chi_square(np.array([99, 1]), np.array([0.99, 0.01])) == (0.0, 0, 1.0)
    assert chi_square(np.array([2, 1]), np.array([0.5, 0.5])) == (0.0, 0, 1.0)


def test_an_impossible_draw_is_no_chance():
    statistic, _, p_value = chi_square(np.array([60, 39, 1]), np.array([0.6, 0.4, 0.0]))
    assert math.isinf(statistic)
    assert p_value == 0


def test_a_joint_law_by_hand():
    laws = {(): [0.25, 0.75, 0], (0,): [0, 0, 1], (1,): [0.5, 0.5, 0]}
    found = joint_law(lambda tokens: np.array(laws[tokens]), 2)
    assert found == {(0, 2): 0.25, (1, 0): 0.375, (1, 1): 0.375}


def test_draws_of_our_samplers_are_those_of_the_target(pair, prompts, as_records):
    units = list(total_variation.run(pair, prompts[:2], spec_of()))
    assert [key for key, _ in units] == [prompt.id for prompt in prompts[:2]]
    frame = as_records([row for _, rows in units for row in rows], TOTAL_VARIATION)
    assert set(frame["dtype"]) == {"float64", "bfloat16"}
    assert set(frame["sampler"]) == {"autoregressive", "walk", "recursive"}
    first, deeper = (frame[frame["level"] == level] for level in ("first", "deeper"))
    assert len(first) == 2 * 2 * 3 * 2  # prompts, precisions, samplers, numbers of walks
    assert (first["draws"] == first["walks"]).all()
    assert sorted(first["walks"].unique()) == [100, 600]
    assert (deeper["draws"] <= deeper["walks"]).all()
    assert deeper["draws"].max() > 100
    exact = frame[frame["dtype"] == "float64"]
    assert (exact["law_distance"].dropna() < 1e-9).all()
    assert (exact["total_variation"] < exact["floor_q999"] + 0.02).all()
    assert (exact["p_value"] > 1e-4).all()
    assert exact["degrees_of_freedom"].max() > 3
    assert frame["law_distance"].isna().equals(frame["sampler"] == "autoregressive")
    means = first.groupby("walks")["floor_mean"].mean()
    assert means[100] > 1.8 * means[600]


def test_a_seed_fixes_the_record_and_another_changes_it(pair, prompts):
    spec = {"dtypes": ("float64",), "draws": (50,), "floor_samples": 20}
    runs = [list(total_variation.run(pair, prompts[:1], spec_of(seed=seed, **spec))) for seed in (1, 1, 2)]
    assert repr(runs[0]) == repr(runs[1]) != repr(runs[2])


def test_a_wrong_sampler_is_found(pair, prompts, monkeypatch):
    class Wrong(RecursiveSelector):
        """Accepts what the drafter would draw."""

        def _accepted(self, residual, elsewhere, log_q):
            return self.chance.index([math.exp(value) for value in log_q])

    monkeypatch.setitem(total_variation.SAMPLERS, "recursive", Wrong)
    ((_, rows),) = total_variation.run(pair, prompts[:1], spec_of(dtypes=("float64",), samplers=("recursive",)))
    found = {row["sampler"]: row for row in rows if row["level"] == "first" and row["walks"] == 600}
    assert found["recursive"]["p_value"] < 1e-9
    assert found["recursive"]["total_variation"] > 2 * found["recursive"]["floor_q999"]
    assert found["autoregressive"]["p_value"] > 1e-3


def test_the_law_of_processed_logits(pair, prompts, as_records):
    ((_, rows),) = total_variation.run(pair, prompts[:1], spec_of(dtypes=("float64",), top_p=0.6))
    frame = as_records(rows, TOTAL_VARIATION)
    assert (frame["top_p"] == 0.6).all()
    assert (frame["p_value"] > 1e-4).all()
    assert np.isfinite(frame["chi_square"]).all()  # nothing outside the set was drawn


def test_the_joint_law_of_three_tokens(pair, prompts, as_records):
    spec = spec_of(dtypes=("float64",), draws=(40,), temperature=5.0, sequence_draws=150, sequence_top_k=2)
    units = dict(total_variation.run(pair, prompts[:1], spec))
    frame = as_records(units["sequence"], TOTAL_VARIATION)
    assert (frame["depth"] == 3).all()
    assert sorted(frame["walks"].unique()) == [40, 150]
    assert (frame["p_value"] > 1e-3).all()
    assert np.isfinite(frame["chi_square"]).all()
    assert frame["degrees_of_freedom"].max() >= 3
    assert frame[frame["walks"] == 150]["total_variation"].nunique() > 1  # each sampler has draws of its own


def test_finished_prompts_and_a_time_limit(pair, prompts):
    spec = spec_of(dtypes=("float64",), draws=(5,), floor_samples=5, sequence_draws=2)
    keys = [key for key, _ in total_variation.run(pair, prompts[:3], spec, done={"sequence", prompts[0].id})]
    assert keys == [prompts[1].id, prompts[2].id]
    limited = spec_of(dtypes=("float64",), draws=(5,), floor_samples=5, time_limit_s=0)
    assert len(list(total_variation.run(pair, prompts[:3], limited))) == 1


def test_an_empty_tree(pair, prompts, as_records):
    ((_, rows),) = total_variation.run(pair, prompts[:1], spec_of(budget=0, dtypes=("float64",), draws=(20,)))
    frame = as_records(rows, TOTAL_VARIATION)
    assert set(frame["level"]) == {"first"}
    assert (frame["siblings"] == 0).all()
