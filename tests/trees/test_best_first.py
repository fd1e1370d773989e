"""The best-first tree against slow references: optimal, deterministic, prefix-closed."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_trees import (
    best_total_by_size,
    heap_order,
    lists,
    prefix_closed_sets,
    ranked,
    tree_lists,
    universe,
)
from safetensors.torch import load_file

from cast.errors import CastError
from cast.trees import best_first_tree, best_first_tree_from_topk, top_candidates

TIED_VALUES = [0.0, -0.0, -0.25, -0.5, -1.0, -3.0, -np.inf]


@st.composite
def tied_log_probs(draw, max_length=4, max_vocabulary=6):
    """Few distinct values, so that nearly every comparison is a tie."""
    length = draw(st.integers(1, max_length))
    vocabulary = draw(st.integers(1, max_vocabulary))
    values = draw(st.lists(st.sampled_from(TIED_VALUES), min_size=1, max_size=4))
    row = st.lists(st.sampled_from(values), min_size=vocabulary, max_size=vocabulary)
    return np.array(draw(st.lists(row, min_size=length, max_size=length)), np.float32)


@st.composite
def random_log_probs(draw, max_length=5, max_vocabulary=12):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, max_length)), draw(st.integers(1, max_vocabulary))
    logits = torch.from_numpy(rng.normal(size=shape) * draw(st.sampled_from([0.1, 1.0, 6.0])))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    return logits.to(dtype).float().log_softmax(-1).to(dtype).float().numpy()


def expected_tree(log_probs, budget, top_k):
    scores, tokens = ranked(log_probs, top_k)
    return tree_lists(scores, tokens, heap_order(scores, budget))


@settings(deadline=None, max_examples=120)
@given(st.one_of(tied_log_probs(), random_log_probs()), st.integers(0, 60), st.integers(1, 8))
def test_equals_a_plain_heap_over_the_rank_capped_universe(log_probs, budget, top_k):
    tree = best_first_tree(torch.from_numpy(log_probs), budget, top_k)
    assert lists(tree) == expected_tree(log_probs, budget, top_k)


@settings(deadline=None, max_examples=25)
@given(st.one_of(tied_log_probs(3, 3), random_log_probs(3, 3)))
def test_has_the_largest_total_mass_of_all_prefix_closed_sets(log_probs):
    scores, _ = ranked(log_probs, 8)
    for size, best in enumerate(best_total_by_size(scores)):
        tree = best_first_tree(torch.from_numpy(log_probs), size)
        assert len(tree) == size
        assert tree.log_mass.double().exp().sum().item() == pytest.approx(best, rel=1e-5, abs=1e-30)


@settings(deadline=None, max_examples=6)
@given(st.one_of(tied_log_probs(3, 3), random_log_probs(3, 3)), st.integers(1, 4))
def test_has_the_largest_total_mass_by_enumeration(log_probs, size):
    """The same without the knapsack: every prefix-closed set, one by one."""
    scores, _ = ranked(log_probs, 8)
    masses = {ranks: np.exp(sum(float(scores[i][r]) for i, r in enumerate(ranks))) for ranks in universe(scores)}
    totals = [sum(masses[ranks] for ranks in chosen) for chosen in prefix_closed_sets(scores, size)]
    if totals:  # fewer nodes than `size`: there is no such set
        tree = best_first_tree(torch.from_numpy(log_probs), size)
        assert tree.log_mass.double().exp().sum().item() == pytest.approx(max(totals), rel=1e-5, abs=1e-30)


@settings(deadline=None, max_examples=60)
@given(st.one_of(tied_log_probs(5, 10), random_log_probs()), st.integers(0, 300), st.integers(1, 8))
def test_is_prefix_closed_with_ancestors_first_and_the_exact_size(log_probs, budget, top_k):
    length, vocabulary = log_probs.shape
    tree = best_first_tree(torch.from_numpy(log_probs), budget, top_k)
    width = min(top_k, vocabulary)
    assert len(tree) == min(budget, sum(width**depth for depth in range(1, length + 1)))
    tokens, parents, depths, masses = lists(tree)
    siblings = set()
    for node, (token, parent, depth) in enumerate(zip(tokens, parents, depths, strict=True)):
        assert -1 <= parent < node
        assert depth == (1 if parent == -1 else depths[parent] + 1)
        siblings.add((parent, token))
    assert len(siblings) == len(tree)
    assert masses == sorted(masses, reverse=True)


@settings(deadline=None, max_examples=60)
@given(st.one_of(tied_log_probs(), random_log_probs()), st.integers(0, 60), st.integers(1, 8))
def test_the_core_agrees_with_the_full_call(log_probs, budget, top_k):
    scores, tokens = ranked(log_probs, top_k)
    core = best_first_tree_from_topk(torch.from_numpy(scores), torch.from_numpy(tokens), budget)
    assert lists(core) == lists(best_first_tree(torch.from_numpy(log_probs), budget, top_k))


def test_a_smaller_budget_is_a_prefix_of_a_larger_one():
    log_probs = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).mul(2).log_softmax(-1)
    largest = lists(best_first_tree(log_probs, 127))
    for budget in (0, 1, 7, 63):
        assert lists(best_first_tree(log_probs, budget)) == tuple(part[:budget] for part in largest)


def test_types_and_shapes(device):
    tree = best_first_tree(torch.randn(4, 30, device=device).log_softmax(-1), 13)
    for field, dtype in (
        (tree.tokens, torch.int64),
        (tree.parent, torch.int64),
        (tree.depth, torch.int64),
        (tree.log_mass, torch.float32),
    ):
        assert field.dtype == dtype
        assert field.shape == (13,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_tree_does_not_depend_on_the_device(device, dtype):
    log_probs = torch.randn(5, 200, generator=torch.Generator().manual_seed(1)).mul(4).log_softmax(-1).to(dtype)
    on_device = best_first_tree(log_probs.to(device), 63)
    assert lists(on_device) == lists(best_first_tree(log_probs, 63))
    assert lists(on_device) == expected_tree(log_probs.float().numpy(), 63, 8)


def test_log_mass_accumulates_in_fp32_from_root_to_leaf():
    # Pairwise or fp64 summation of these numbers rounds differently from left to right in fp32.
    column = np.float32([-0.1, -1e-8, -0.3, -7.7, -1e-8, -0.7])
    tree = best_first_tree(torch.from_numpy(column[:, None]), 6)
    total, expected = np.float32(0), []
    for value in column:
        total = np.float32(total + value)
        expected.append(float(total))
    assert tree.log_mass.tolist() == expected


def test_plain_lists_are_taken():
    tree = best_first_tree([[-0.1, -2.0], [-0.2, -3.0]], 3)
    assert tree.tokens.tolist() == [0, 0, 1]


def test_scores_are_not_renormalised_over_the_top_k():
    log_probs = torch.full((1, 100), 0.01).log()
    assert best_first_tree(log_probs, 3).log_mass.exp().tolist() == pytest.approx([0.01] * 3)


@pytest.mark.parametrize("vocabulary", [17, 40, 3000])
@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_equal_probabilities_rank_by_token_id_across_the_cut(device, vocabulary, top_k):
    rows = torch.zeros(3, vocabulary, device=device)
    rows[1, vocabulary // 2 :] = 1.0  # the whole upper half ties for the cut
    rows[2, -1] = 1.0  # one winner, then a run of ties through the cut
    scores, tokens = top_candidates(rows, top_k)
    half = vocabulary // 2
    assert tokens.tolist() == [
        list(range(top_k)),
        list(range(half, half + top_k)),
        [vocabulary - 1, *range(top_k - 1)],
    ]
    assert scores.tolist() == rows.gather(1, tokens).tolist()


def test_low_precision_logits_rank_like_a_full_stable_sort(device):
    logits = torch.randn(7, 5000, generator=torch.Generator().manual_seed(2)).bfloat16()
    scores, tokens = top_candidates(logits.to(device), 8)
    expected_scores, expected_tokens = ranked(logits.float().numpy(), 8)
    assert tokens.tolist() == expected_tokens.tolist()
    assert scores.tolist() == expected_scores.tolist()


@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_all_scores_equal_gives_shorter_first_then_smaller_ranks(value):
    tree = best_first_tree(torch.full((3, 4), value), 11, top_k=3)
    assert tree.depth.tolist() == [1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    assert tree.tokens.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]
    assert tree.parent.tolist() == [-1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2]


def test_budget_zero_one_and_rank_cap_one():
    log_probs = torch.randn(5, 20).log_softmax(-1)
    assert len(best_first_tree(log_probs, 0)) == 0
    assert best_first_tree(log_probs, 1).tokens.tolist() == [int(log_probs[0].argmax())]
    chain = best_first_tree(log_probs, 50, top_k=1)
    assert chain.is_chain
    assert chain.tokens.tolist() == log_probs.argmax(-1).tolist()


def test_a_budget_beyond_the_universe_returns_the_universe():
    tree = best_first_tree(torch.randn(3, 2).log_softmax(-1), 10_000)
    assert len(tree) == 2 + 4 + 8
    assert len(best_first_tree(torch.zeros(2, 5), 10_000, top_k=3)) == 3 + 9


def test_golden_trees_node_for_node(golden):
    folder = golden / "dflash_tiny_qwen3"
    tensors = load_file(folder / "tree_cases.safetensors")
    compared = 0
    for case in json.loads((folder / "tree_cases.json").read_text())["cases"]:
        log_probs = tensors[f"case_{case['case']:02d}.logits"].float().log_softmax(-1)
        for budget, reference in case["budgets"].items():
            tree = best_first_tree(log_probs, int(budget), top_k=min(int(budget), case["V"]))
            assert tree.tokens.tolist() == reference["node_token_ids"]
            assert tree.depth.tolist() == reference["node_depths"]
            assert (tree.parent + 1).tolist() == reference["parents"][1:]
            assert tree.log_mass.tolist() == pytest.approx(reference["cum_log_probs"], abs=1e-5)
            compared += 1
    assert compared >= 80


NAN = float("nan")


@pytest.mark.parametrize(
    ("log_probs", "budget", "top_k"),
    [
        (torch.zeros(4), 3, 8),
        (torch.zeros(1, 2, 4), 3, 8),
        (torch.zeros(2, 0), 3, 8),
        (torch.zeros(0, 4), 3, 8),
        (torch.tensor([[0.0, NAN]]), 3, 8),
        (torch.tensor([[-1.0] * 100, [-1.0] * 99 + [NAN]]), 3, 2),
        (torch.zeros(2, 4), -1, 8),
        (torch.zeros(2, 4), 3, 0),
        (torch.zeros(2, 4), 3, -2),
    ],
    ids=[
        "1d",
        "3d",
        "no-tokens",
        "no-positions",
        "nan",
        "nan-below-the-cut",
        "budget",
        "top_k-0",
        "top_k-negative",
    ],
)
def test_bad_input_is_one_line(log_probs, budget, top_k):
    with pytest.raises(CastError) as error:
        best_first_tree(log_probs, budget, top_k)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scores", "tokens"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.int64)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.tensor([[-2.0, -1.0]]), torch.tensor([[0, 1]])),
        (torch.tensor([[NAN, -1.0]]), torch.tensor([[0, 1]])),
    ],
    ids=["shapes", "1d", "ascending", "nan"],
)
def test_bad_top_k_input_is_one_line(scores, tokens):
    with pytest.raises(CastError) as error:
        best_first_tree_from_topk(scores, tokens, 2)
    assert "\n" not in str(error.value)


def test_scores_that_are_no_log_probabilities_are_refused():
    """With a positive score a child outweighs its parent, and the best prefixes are not prefix-closed."""
    with pytest.raises(CastError, match="log"):
        best_first_tree(torch.tensor([[-3.0, -4.0], [2.0, 1.0]]), 2)
