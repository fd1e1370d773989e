"""Allocators: brute force over every division of a budget, and the batched stopping rule."""

import numpy as np
import pytest
import torch

from cast import CastError
from cast.serving import (
    BestFirst,
    Chain,
    Priced,
    RoundCost,
    Uniform,
    best_first_forest,
    shared_best_first,
    stopping_budget,
)
from cast.width import LatencyCurve


def test_the_forest_divides_as_the_masses_say(random_scores):
    scores, tokens = random_scores(5, 3, 4, 3)
    whole = best_first_forest(scores, tokens, np.full(3, 30))
    masses = whole.log_mass.reshape(3, 30)
    for budget in (0, 1, 7, 40):
        np.testing.assert_array_equal(
            best_first_forest(scores, tokens, budget).sizes, shared_best_first(masses, budget)
        )


@pytest.mark.parametrize("roots", [1, 4, 16])
def test_the_stopping_rule_maximises_tokens_per_ms(roots):
    masses = np.sort(np.random.default_rng(roots).random(60) ** 3)[::-1]
    packed = np.array([roots, roots + 10, roots + 30, roots + 80])
    cost = RoundCost(LatencyCurve(packed, [20, 22, 40, 90]), draft_ms=3, overhead_ms=1)

    def rate(budget):
        return (masses[:budget].sum() + roots) / (4 + cost.latency.at(roots + budget))

    chosen = stopping_budget(masses, cost, roots, largest=50)
    assert chosen == max(range(1, 51), key=rate)
    assert stopping_budget(masses, cost, roots, largest=5) <= 5
    assert stopping_budget(masses[:0], cost, roots, largest=5) == 0
    # Half of the requests have left: budgets below the first measured point are not priced.
    assert stopping_budget(masses, cost, max(roots // 2, 1), largest=50) >= roots - max(roots // 2, 1)
    assert stopping_budget(masses, RoundCost(LatencyCurve([90, 99], [1, 2]), 1), roots, largest=7) == 7


def test_dearer_verification_buys_fewer_nodes(random_scores):
    scores, tokens = random_scores(1, 4, 5, 4)
    sizes = [
        len(
            Priced({4: RoundCost(LatencyCurve([4, 68], [10, 10 + 64 * slope]), draft_ms=2)}, largest=64).forest(
                scores, tokens
            )
        )
        for slope in (0, 0.5, 3.0)
    ]
    assert sizes[0] == 64
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[1] < 64


def test_the_cost_of_the_nearest_batch_size_is_used(random_scores):
    cheap, dear = (RoundCost(LatencyCurve([1, 100], [10, top]), draft_ms=1) for top in (10, 4000))
    allocator = Priced({1: cheap, 8: dear}, largest=20)
    assert len(allocator.forest(*random_scores(1, 2, 5, 4))) == 20
    assert len(allocator.forest(*random_scores(1, 7, 5, 4))) < 20


def test_every_allocator_keeps_to_what_it_announces(random_scores):
    logits = torch.randn(3, 5, 20, generator=torch.Generator().manual_seed(0))
    cost = RoundCost(LatencyCurve([1, 100], [10, 20]), draft_ms=1)
    for allocator, total in (
        (Chain(5), 15),
        (Uniform(4), 12),
        (Uniform(0), 0),
        (BestFirst(4), 12),
        (Priced({3: cost}, largest=30), None),
    ):
        forest = allocator.allocate(logits)
        assert total is None or len(forest) == total
        assert forest.widest <= allocator.most_nodes(3)
    assert Chain(5).allocate(logits).tree(1).tokens.tolist() == logits[1].argmax(-1).tolist()


def test_nonsense_is_refused():
    for make, what in (
        (lambda: Uniform(-1), "0 or more"),
        (lambda: BestFirst(-1), "0 or more"),
        (lambda: BestFirst(4, top_k=0), "top_k"),
        (lambda: Priced({}, largest=3), "cost"),
        (lambda: Chain(2).allocate(torch.full((1, 2, 4), torch.nan)), "NaN"),
    ):
        with pytest.raises(CastError, match=what):
            make()
