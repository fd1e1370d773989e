"""Shared budgets: brute force over every division."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cast.width import hindsight, shared_best_first

MASSES = st.lists(
    st.lists(st.floats(0, 1, width=32), min_size=0, max_size=4).map(lambda row: sorted(row, reverse=True)),
    min_size=1,
    max_size=4,
)


def padded(rows, filler):
    """Rows of several lengths as one array, one column longer than the longest."""
    width = 1 + max(map(len, rows))
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows], float)


def divisions(requests, budget, most):
    return (
        counts for counts in itertools.product(*(range(most[r] + 1) for r in range(requests))) if sum(counts) <= budget
    )


@settings(max_examples=60, deadline=None)
@given(masses=MASSES, budget=st.integers(0, 10))
def test_best_first_is_the_best_division_of_a_shared_budget(masses, budget):
    counts = shared_best_first(padded(masses, -np.inf), budget)
    assert counts.sum() == min(budget, sum(map(len, masses)))

    def worth(division):
        return sum(sum(row[:n]) for row, n in zip(masses, division, strict=True))

    assert worth(counts) == pytest.approx(
        max(map(worth, divisions(len(masses), budget, [len(row) for row in masses]))), abs=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(
    needed=st.lists(st.sets(st.integers(1, 6), max_size=3).map(sorted), min_size=1, max_size=4),
    budget=st.integers(0, 12),
)
def test_hindsight_is_the_best_division_once_the_outcome_is_known(needed, budget):
    counts = hindsight(padded(needed, budget + 1).astype(int), budget)
    assert counts.sum() <= budget

    def accepted(division):
        return sum(sum(step <= n for step in steps) for steps, n in zip(needed, division, strict=True))

    assert accepted(counts) == max(map(accepted, divisions(len(needed), budget, [6] * len(needed))))


def test_batches_are_divided_one_by_one():
    random = np.random.default_rng(0)
    masses = -np.sort(-random.random((2, 5, 3, 6)), axis=-1)
    needed = np.sort(random.integers(1, 12, (2, 5, 3, 4)), axis=-1)
    for divide, of in ((shared_best_first, masses), (hindsight, needed)):
        together = divide(of, 7)
        assert together.shape == (2, 5, 3)
        for batch in np.ndindex(2, 5):
            np.testing.assert_array_equal(together[batch], divide(of[batch], 7))


def test_equal_masses_go_to_the_earlier_request():
    assert shared_best_first(np.full((3, 2), 0.5), 3).tolist() == [2, 1, 0]


def test_requests_without_candidates():
    assert shared_best_first(np.empty((2, 0)), 3).tolist() == [0, 0]
    assert hindsight(np.empty((2, 0), int), 3).tolist() == [0, 0]
