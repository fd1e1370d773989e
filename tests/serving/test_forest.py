"""The forest: the same trees as one request alone, the optimum of Proposition 2, and its masks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cast import CastError
from cast.serving import best_first_forest, chain_forest
from cast.trees import ancestor_mask, best_first_tree_from_topk

SEEDS = st.integers(0, 10**6)


def same_tree(tree, other):
    return all(
        torch.equal(getattr(tree, field), getattr(other, field)) for field in ("tokens", "parent", "depth", "log_mass")
    )


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, coarse=st.booleans(), budgets=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_with_its_own_budget_each_request_gets_the_tree_it_gets_alone(random_scores, seed, coarse, budgets):
    scores, tokens = random_scores(seed, len(budgets), 4, 3, coarse)
    forest = best_first_forest(scores, tokens, np.array(budgets))
    for request, budget in enumerate(budgets):
        alone = best_first_tree_from_topk(torch.from_numpy(scores[request]), torch.from_numpy(tokens[request]), budget)
        assert same_tree(forest.tree(request), alone)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, coarse=st.booleans(), requests=st.integers(1, 4), budget=st.integers(0, 60))
def test_a_shared_budget_takes_the_largest_masses_of_all(random_scores, seed, coarse, requests, budget):
    scores, tokens = random_scores(seed, requests, 3, 3, coarse)
    forest = best_first_forest(scores, tokens, budget)
    whole = best_first_forest(scores, tokens, np.full(requests, 3 + 9 + 27))
    assert len(forest) == min(budget, requests * 39)
    np.testing.assert_array_equal(np.sort(forest.log_mass), np.sort(whole.log_mass)[::-1][: len(forest)][::-1])
    for request, size in enumerate(forest.sizes):
        alone = best_first_tree_from_topk(
            torch.from_numpy(scores[request]), torch.from_numpy(tokens[request]), int(size)
        )
        assert same_tree(forest.tree(request), alone)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_no_prefix_closed_selection_is_worth_more(random_scores, seed, budget):
    """Brute force over every prefix-closed selection in two requests of two positions and two ranks."""
    scores, tokens = random_scores(seed, 2, 2, 2)
    nodes = [
        (request, ranks)
        for request in range(2)
        for depth in (1, 2)
        for ranks in itertools.product(range(2), repeat=depth)
    ]
    mass = {
        (request, ranks): np.exp(sum(scores[request, i, rank] for i, rank in enumerate(ranks)))
        for request, ranks in nodes
    }
    best = max(
        sum(mass[node] for node in chosen)
        for chosen in itertools.combinations(nodes, budget)
        if all(len(ranks) == 1 or (request, ranks[:1]) in chosen for request, ranks in chosen)
    )
    forest = best_first_forest(scores, tokens, budget)
    assert np.exp(forest.log_mass.astype(float)).sum() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("budgets", [30, np.array([0, 7, 1, 22])])
def test_packs_see_their_ancestors(random_scores, budgets):
    forest = best_first_forest(*random_scores(3, 4, 6, 3), budgets)
    visible, start = forest.visible(), 0
    for request, size in enumerate(forest.sizes + 1):
        pack = visible[start : start + size]
        assert (pack[:, :size] == ancestor_mask(forest.tree(request)).numpy()).all()
        assert not pack[:, size:].any()
        start += size
    assert start == len(visible)


def test_some_requests_of_a_forest(random_scores):
    forest = best_first_forest(*random_scores(3, 4, 6, 3), 30)
    part = forest.of(np.array([1, 3]))
    assert same_tree(part.tree(0), forest.tree(1))
    assert same_tree(part.tree(1), forest.tree(3))


def test_chains():
    forest = chain_forest(np.array([[5, 6, 7], [8, 9, 1]]))
    assert all(forest.tree(request).is_chain for request in range(2))
    assert forest.tree(1).tokens.tolist() == [8, 9, 1]
    assert forest.visible().shape == (8, 4)


def test_nonsense_is_refused(random_scores):
    scores, tokens = random_scores(0, 2, 3, 2)
    for arguments, what in (
        ((scores, tokens, -1), "0 or more"),
        ((scores, tokens[:1], 3), r"\[B, L, K\]"),
        ((scores * np.nan, tokens, 3), "NaN"),
        ((scores[..., ::-1], tokens, 3), "descending"),
        ((scores, tokens, np.array([3])), "one for each of 2 requests"),
        ((scores, tokens, np.array([3, -1])), "0 or more"),
    ):
        with pytest.raises(CastError, match=what):
            best_first_forest(*arguments)
