"""Both builders against a plain heap on many random cases, most of them full of ties; the search on long rows."""

import numpy as np
import pytest
import torch
from reference_trees import heap_order, lists, mass_of, ranked, tree_lists

from cast.trees import (
    ancestor_mask,
    best_first_tree_from_topk,
    best_first_tree_on_device,
    ranked_candidates,
    top_candidates,
)

SUITE, ALL = 300, 10_000
FEW_VALUES = [-0.0, 0.0, -0.25, -0.5, -1.0, -3.0, -np.inf]


def case(seed):
    """Scores [L, K], tokens [L, K] and a budget; two cases in three draw from few values."""
    rng = np.random.default_rng(seed)
    length, vocabulary = rng.integers(1, 7), rng.integers(1, 12)
    logits = rng.normal(size=(length, vocabulary)) * rng.choice([0.2, 1.0, 5.0])
    kind = seed % 3
    if kind == 0:
        log_probs = rng.choice(FEW_VALUES, size=logits.shape)
    else:
        log_probs = torch.from_numpy(logits).log_softmax(-1)
        log_probs = (log_probs.bfloat16() if kind == 1 else log_probs).double().numpy()
    scores, tokens = ranked(log_probs.astype(np.float32), int(rng.integers(1, 9)))
    return scores, tokens, int(rng.integers(1, 60))


def tied_case_of_a_round(seed):
    """The same at the size of a round, from few values; in every other case one token of each position leads."""
    rng, length, vocabulary = np.random.default_rng(seed), 15, 12
    log_probs = rng.choice(FEW_VALUES, size=(length, vocabulary))
    if seed % 2:
        log_probs = np.minimum(log_probs, -0.5)
        log_probs[np.arange(length), rng.integers(vocabulary, size=length)] = 0.0
    return *ranked(log_probs.astype(np.float32), 8), 127


def check(seeds, device, make=case):
    for seed in seeds:
        scores, tokens, budget = make(seed)
        expected = tree_lists(scores, tokens, heap_order(scores, budget))
        given = torch.from_numpy(scores).to(device), torch.from_numpy(tokens).to(device)
        host, resident = best_first_tree_from_topk(*given, budget), best_first_tree_on_device(*given, budget)
        assert lists(host) == expected, seed
        assert lists(resident) == expected, seed
        assert torch.equal(resident.visible.cpu(), ancestor_mask(host)), seed


def test_builders_equal_a_plain_heap(device):
    check(range(SUITE), device)


@pytest.mark.slow
def test_builders_equal_a_plain_heap_on_ten_thousand_cases():
    check(range(SUITE, ALL), torch.device("cpu"))


def test_builders_equal_a_plain_heap_on_tied_cases_of_the_size_of_a_round(device):
    check(range(48), device, tied_case_of_a_round)


def test_every_other_case_of_that_size_is_deep_and_tied_where_it_ends():
    """A path through all positions, and equal masses on both sides of the cut."""
    for seed in range(1, 48, 2):
        scores, _, budget = tied_case_of_a_round(seed)
        order = heap_order(scores, budget + 1)
        last, next_one = order[-2:]
        assert mass_of(scores, last) == mass_of(scores, next_one)
        assert max(map(len, order)) == len(scores)


def test_the_resident_builder_at_the_size_of_a_round(device):
    generator = torch.Generator().manual_seed(0)
    for budget in (1, 15, 127, 512):
        log_probs = torch.randn(15, 300, generator=generator).mul(2).log_softmax(-1).to(device)
        resident = best_first_tree_on_device(*ranked_candidates(log_probs, 8), budget)
        host = best_first_tree_from_topk(*top_candidates(log_probs, 8), budget)
        assert lists(resident) == lists(host)
        assert torch.equal(resident.visible.cpu(), ancestor_mask(host))
        assert resident.tokens.device.type == device.type


def test_nan_scores_show_in_the_masses_of_the_resident_tree(device):
    scores = torch.tensor([[-0.1, -2.0], [torch.nan, -1.0]], device=device)
    tree = best_first_tree_on_device(scores, torch.zeros(2, 2, dtype=torch.int64, device=device), 4)
    assert bool(tree.log_mass.isnan().any())


@pytest.mark.parametrize("vocabulary", [2047, 2113, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["spread", "flat", "equal", "few-values"])
def test_the_best_of_a_long_row_are_those_of_a_stable_sort(device, vocabulary, dtype, kind):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, generator=generator)
    logits = {"spread": logits * 3, "flat": logits * 0.01, "equal": logits * 0, "few-values": logits.round()}[kind]
    logits = logits.to(dtype)
    for top_k in (1, 7, 8):
        scores, tokens = top_candidates(logits.to(device), top_k)
        expected = logits.double().sort(dim=-1, descending=True, stable=True)
        assert torch.equal(tokens, expected.indices[:, :top_k])
        assert torch.equal(scores, expected.values[:, :top_k].float())


@pytest.mark.parametrize("column", [0, 2500, 4999])
def test_nan_anywhere_in_a_long_row_comes_first(device, column):
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(5))
    logits[1, column] = -torch.tensor(torch.nan)
    scores, tokens = top_candidates(logits.to(device), 3)
    assert scores[1, 0].isnan()
    assert tokens[1, 0] == column
    assert not scores[0].isnan().any()
