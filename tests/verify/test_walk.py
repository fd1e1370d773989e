"""The walk on small hand-made trees."""

import pytest
import torch

from cast.trees import chain_tree
from cast.verify import walk

# root -> 7 (row 1) -> 7 (row 3) -> 2 (row 5);  root -> 4 (row 2) -> 9 (row 4)
NODES = (7, -1), (4, -1), (7, 0), (9, 1), (2, 2)


@pytest.mark.parametrize(
    ("choices", "rows", "accepted", "next_root"),
    [
        ({0: 1}, [0], [], 1),
        ({0: 2}, [0], [], 2),  # 2 is in the tree, but not below the root
        ({0: 7, 1: 4}, [0, 1], [7], 4),  # 4 is a child of the root, not of row 1
        ({0: 4, 2: 9, 4: 0}, [0, 2, 4], [4, 9], 0),
        ({0: 7, 1: 7, 3: 2, 5: 2}, [0, 1, 3, 5], [7, 7, 2], 2),  # a leaf's choice is never a child
        ({0: 7, 1: 7, 3: 7}, [0, 1, 3], [7, 7], 7),
    ],
)
def test_hand_made_tree(tree_of, choices, rows, accepted, next_root):
    asked = []

    def select(row, path, siblings):
        asked.append((row, list(path), dict(siblings)))
        return choices[row]

    result = walk(tree_of(*NODES), select)
    assert result.rows == rows
    assert result.accepted == accepted
    assert result.next_root == next_root
    assert result.committed == len(accepted) + 1
    # Each visited row is asked once, with the tokens on the way to it and its children.
    children = {0: {7: 1, 4: 2}, 1: {7: 3}, 2: {9: 4}, 3: {2: 5}}
    assert asked == [(row, accepted[:i], children.get(row, {})) for i, row in enumerate(rows)]


def test_no_nodes(tree_of):
    for tree in (None, tree_of()):
        result = walk(tree, lambda row, path, siblings: 3)
        assert (result.rows, result.accepted, result.next_root, result.committed) == ([0], [], 3, 1)


@pytest.mark.parametrize("agreeing", range(5))
def test_chain(agreeing):
    result = walk(chain_tree(torch.tensor([1, 2, 3, 4])), lambda row, path, siblings: row + 1 if row < agreeing else 0)
    assert result.rows == list(range(agreeing + 1))
    assert result.accepted == [1, 2, 3, 4][:agreeing]
    assert result.next_root == 0
