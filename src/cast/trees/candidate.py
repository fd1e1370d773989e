"""The candidate tree and its ancestor mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
        visible: bool [N + 1, N + 1], see `ancestor_mask`, of a tree that was built on a GPU and stays there.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    log_mass: Tensor
    visible: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.numel()

    @property
    def is_chain(self) -> bool:
        """True when every node has at most one child and node i's parent is node i - 1."""
        return torch.equal(self.parent, torch.arange(-1, len(self) - 1, device=self.parent.device))

    def children(self) -> list[dict[int, int]]:
        """For each packed row (root first), its children as {token: packed row}."""
        rows: list[dict[int, int]] = [{} for _ in range(len(self) + 1)]
        for node, (token, parent) in enumerate(zip(*torch.stack((self.tokens, self.parent)).tolist(), strict=True)):
            rows[parent + 1][token] = node + 1
        return rows


def ancestor_mask(tree: CandidateTree) -> Tensor:
    """Who sees whom inside the pack: bool [N + 1, N + 1], True where the column is the row or its ancestor.

    Row 0 is the pending root. The cached prefix, which every row sees, is not part of this mask
    (paper, section 2 and Lemma 1).
    """
    if tree.visible is not None:
        return tree.visible
    n = len(tree) + 1
    seen = [1]  # for each packed row an integer whose bit j says that it sees row j
    for row, parent in enumerate(tree.parent.tolist(), start=1):
        seen.append(seen[parent + 1] | 1 << row)
    width = -(-n // 8)
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in seen), np.uint8)
    bits = np.unpackbits(packed.reshape(n, width), axis=1, count=n, bitorder="little")
    return torch.from_numpy(bits).view(torch.bool)
