"""Allocators: brute force over every division of a budget, and the batched stopping rule."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from cast.serving.allocators import cost_between
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

    assert stopping_budget(masses, cost, roots) == max(range(61), key=rate)
    assert stopping_budget(masses[:5], cost, roots) <= 5
    assert stopping_budget(masses[:0], cost, roots) == 0
    with pytest.raises(CastError, match="not measured"):
        stopping_budget(masses, cost, roots + 81)


@settings(deadline=None, max_examples=60)
@given(
    masses=st.lists(st.floats(0, 1), max_size=40).map(lambda values: np.sort(values)[::-1]),
    roots=st.integers(1, 9),
    fixed_ms=st.floats(0.1, 50),
    slope=st.floats(0, 20),
)
def test_the_stopping_rule_on_an_affine_cost_is_proposition_3(masses, roots, fixed_ms, slope):
    """Node by node: the next one is added while its mass reaches the exchange rate, from no node on."""
    cost = RoundCost(LatencyCurve([roots, roots + 40], [fixed_ms, fixed_ms + 40 * slope]), draft_ms=1.0)
    budget, total, exchanged = 0, float(roots), []
    while budget < len(masses):
        exchanged.append((masses[budget], total / (1 + fixed_ms + slope * budget) * slope))
        if masses[budget] < exchanged[-1][1]:
            break
        total += masses[budget]
        budget += 1
    if all(abs(mass - rate) > 1e-9 for mass, rate in exchanged):  # at a tie both budgets are best
        assert stopping_budget(masses, cost, roots) == budget


def affine_cost(requests, each=(1, 2, 4, 8)):
    """Drafting, and verification of so many packed tokens of each request, linear in requests and packed tokens."""
    packed = requests * np.array(each)
    return RoundCost(LatencyCurve(packed, 5 + 2 * requests + 0.25 * packed), 1 + 0.5 * requests, 0.1 * requests)


@pytest.mark.parametrize("requests", range(1, 9))
def test_a_round_is_priced_at_its_own_number_of_requests(requests):
    cost = cost_between({known: affine_cost(known) for known in (1, 2, 4, 8)}, requests)
    expected = affine_cost(requests)
    assert cost.draft_ms == pytest.approx(expected.draft_ms)
    assert cost.overhead_ms == pytest.approx(expected.overhead_ms)
    assert cost.most_nodes(requests) == 7 * requests
    packed = np.arange(requests, 8 * requests + 1)  # the roots alone are among them
    np.testing.assert_allclose(cost.latency.at(packed), 5 + 2 * requests + 0.25 * packed)


def test_costs_of_other_grids_are_read_where_both_were_measured():
    costs = {2: affine_cost(2, (0.5, 1, 6)), 6: affine_cost(6, (1, 3, 9))}
    cost = cost_between(costs, 3)
    assert cost.latency.packed_tokens[[0, -1]].tolist() == [3, 18]
    np.testing.assert_allclose(cost.latency.at([3, 10, 18]), 11 + 0.25 * np.array([3, 10, 18]))
    for outside in (1, 7):
        with pytest.raises(CastError, match=f"of {outside} requests is not known from rounds of 2 to 6"):
            cost_between(costs, outside)


def test_the_requests_that_remain_are_priced_alone(random_scores):
    """By what eight requests cost, one alone would fill its measured range; by its own cost it takes what pays."""
    many = RoundCost(LatencyCurve([8, 256], [30, 30.1]), draft_ms=1)
    one = RoundCost(LatencyCurve([1, 3, 32], [5, 5.1, 500]), draft_ms=1)
    allocator = Priced({1: one, 8: many})
    assert len(allocator.forest(*random_scores(1, 1, 5, 4))) == 2
    assert len(allocator.forest(*random_scores(1, 8, 5, 4))) == 248
    assert allocator.most_nodes(8) == 248
    assert allocator.most_nodes(1) == 31


def test_no_node_where_none_pays(random_scores):
    dear = RoundCost(LatencyCurve([4, 40], [1, 1000]), draft_ms=0.0)
    forest = Priced({4: dear}).forest(*random_scores(1, 4, 5, 4))
    assert forest.sizes.tolist() == [0, 0, 0, 0]


def test_priced_trees_are_those_of_their_budget(random_scores):
    scores, tokens = random_scores(3, 4, 5, 4)
    cost = RoundCost(LatencyCurve([4, 20, 84], [10, 12, 80]), draft_ms=2)
    forest = Priced({4: cost}).forest(scores, tokens)
    again = best_first_forest(scores, tokens, len(forest))
    assert 0 < len(forest) < 80
    for name in ("sizes", "tokens", "parent", "depth", "log_mass"):
        np.testing.assert_array_equal(getattr(forest, name), getattr(again, name))


def test_dearer_verification_buys_fewer_nodes(random_scores):
    scores, tokens = random_scores(1, 4, 5, 4)
    sizes = [
        len(Priced({4: RoundCost(LatencyCurve([4, 68], [10, 10 + 64 * slope]), draft_ms=2)}).forest(scores, tokens))
        for slope in (0, 0.5, 3.0)
    ]
    assert sizes[0] == 64
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[1] < 64


def test_every_allocator_keeps_to_what_it_announces(random_scores):
    logits = torch.randn(3, 5, 20, generator=torch.Generator().manual_seed(0))
    cost = RoundCost(LatencyCurve([1, 100], [10, 20]), draft_ms=1)
    for allocator, total in (
        (Chain(5), 15),
        (Chain(2), 6),
        (Chain(9), 15),
        (Uniform(4), 12),
        (Uniform(0), 0),
        (BestFirst(4), 12),
        (Priced({1: cost, 3: cost}), None),
    ):
        forest = allocator.allocate(logits)
        assert total is None or len(forest) == total
        assert forest.widest <= allocator.most_nodes(3)
    assert Chain(5).allocate(logits).tree(1).tokens.tolist() == logits[1].argmax(-1).tolist()
    assert Chain(2).allocate(logits).tree(1).tokens.tolist() == logits[1, :2].argmax(-1).tolist()


def test_nonsense_is_refused():
    cost = RoundCost(LatencyCurve([4, 40], [1, 2]), draft_ms=1)
    for make, what in (
        (lambda: Uniform(-1), "width must be at least 0"),
        (lambda: Uniform(2.5), "width must be a whole number"),
        (lambda: BestFirst(-1), "average must be at least 0"),
        (lambda: Chain(-1), "length must be at least 0"),
        (lambda: BestFirst(4, top_k=0), "top_k"),
        (lambda: Priced({}), "cost"),
        (lambda: Priced({3: cost}), "probe the 3 roots alone"),
        (lambda: Priced({4: cost}).most_nodes(4), "probe 1 as well"),  # the last request of a batch is alone
        (lambda: Chain(2).allocate(torch.full((1, 2, 4), torch.nan)), "NaN"),
    ):
        with pytest.raises(CastError, match=what):
            make()
