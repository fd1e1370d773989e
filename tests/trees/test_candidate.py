"""The tree's own derivations: ancestor mask, children, chains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_trees import ancestors

from cast.trees import CandidateTree, ancestor_mask, best_first_tree, chain_tree


def tree_of(parents):
    """A tree by its parent list; tokens count the siblings."""
    depth, tokens = [], []
    for node, parent in enumerate(parents):
        depth.append(1 if parent == -1 else depth[parent] + 1)
        tokens.append(parents[:node].count(parent))
    as_int = lambda values: torch.tensor(values, dtype=torch.int64)  # noqa: E731
    return CandidateTree(as_int(tokens), as_int(parents), as_int(depth), torch.full((len(parents),), torch.nan))


@st.composite
def parent_lists(draw):
    size = draw(st.integers(0, 40))
    return [draw(st.integers(-1, node - 1)) for node in range(size)]


@settings(deadline=None, max_examples=100)
@given(parent_lists())
def test_mask_is_the_ancestor_walk(parents):
    """Any order with ancestors first, not the best-first one only."""
    mask = ancestor_mask(tree_of(parents))
    assert mask.dtype == torch.bool
    expected = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    expected[0, 0] = True
    for node in range(len(parents)):
        for seen in ancestors(parents, node):
            expected[node + 1, seen + 1] = True
    assert torch.equal(mask, expected)


def test_mask_of_a_chain_is_causal_and_of_no_node_is_the_root():
    assert torch.equal(ancestor_mask(chain_tree(torch.arange(6))), torch.ones(7, 7, dtype=torch.bool).tril())
    assert ancestor_mask(tree_of([])).tolist() == [[True]]


@settings(deadline=None, max_examples=50)
@given(parent_lists())
def test_is_chain(parents):
    assert tree_of(parents).is_chain == (parents == list(range(-1, len(parents) - 1)))


def test_children_by_packed_row():
    tree = tree_of([-1, -1, 0, 0, 3])
    assert tree.children() == [{0: 1, 1: 2}, {0: 3, 1: 4}, {}, {}, {0: 5}, {}]


def test_children_cover_every_node_once():
    tree = best_first_tree(torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).log_softmax(-1), 63)
    rows = [row for children in tree.children() for row in children.values()]
    assert sorted(rows) == list(range(1, 64))


def test_chain_tree_fields(device):
    tokens = torch.tensor([5, 3, 5, 9], device=device)
    tree = chain_tree(tokens, torch.tensor([-1.0, -2.0, -0.5, 0.0], device=device))
    assert tree.tokens.tolist() == [5, 3, 5, 9]
    assert tree.parent.tolist() == [-1, 0, 1, 2]
    assert tree.depth.tolist() == [1, 2, 3, 4]
    assert tree.log_mass.tolist() == [-1.0, -3.0, -3.5, -3.5]
    assert tree.is_chain
    assert len(tree) == 4
    assert chain_tree(tokens).log_mass.isnan().all()


def test_a_chain_is_the_best_first_tree_of_rank_cap_one():
    log_probs = torch.randn(6, 30, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    values, tokens = log_probs.max(-1)
    chain, best = chain_tree(tokens, values), best_first_tree(log_probs, 6, top_k=1)
    assert torch.equal(chain.tokens, best.tokens)
    assert torch.equal(chain.parent, best.parent)
    assert chain.log_mass.tolist() == pytest.approx(best.log_mass.tolist(), abs=1e-6)
