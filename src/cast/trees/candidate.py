"""The candidate tree and its ancestor mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROOT = -1


@dataclass(frozen=True)
class CandidateTree:
    """A prefix-closed set of candidate continuations of the pending root, ancestors before descendants.

    Node i stands for the candidate sequence read from the root down to it. The root itself is not
    stored: packed row 0 is the root, packed row i + 1 is node i.

    Attributes:
        tokens: int64 [N], last token of each node's candidate sequence.
        parent: int64 [N], index of the parent node, -1 where the parent is the root.
        depth: int64 [N], length of the candidate sequence, from 1.
        log_mass: float32 [N], log of the plug-in score (paper, equation 1).
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    log_mass: Tensor

    def __len__(self) -> int:
        return self.tokens.numel()

    @property
    def is_chain(self) -> bool:
        """True when every node has at most one child and node i's parent is node i - 1."""
        n = len(self)
        return bool(torch.equal(self.parent, torch.arange(-1, n - 1)))

    def children(self) -> list[dict[int, int]]:
        """For each packed row (root first), its children as {token: packed row}."""
        rows: list[dict[int, int]] = [{} for _ in range(len(self) + 1)]
        for node, (token, parent) in enumerate(zip(self.tokens.tolist(), self.parent.tolist(), strict=True)):
            rows[parent + 1][token] = node + 1
        return rows


def ancestor_mask(tree: CandidateTree) -> Tensor:
    """Who sees whom inside the pack: bool [N + 1, N + 1], True where the column is the row or its ancestor.

    Row 0 is the pending root. The cached prefix, which every row sees, is not part of this mask
    (paper, section 2 and Lemma 1).
    """
    n = len(tree)
    mask = torch.eye(n + 1, dtype=torch.bool)
    mask[:, 0] = True
    parent_row = tree.parent + 1
    # Ancestors precede descendants in level order, so one vectorised step per depth completes the closure.
    for depth in range(2, int(tree.depth.max()) + 1 if n else 0):
        level = torch.nonzero(tree.depth == depth).squeeze(1)
        mask[level + 1] |= mask[parent_row[level]]
    return mask
