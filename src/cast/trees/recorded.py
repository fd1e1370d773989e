"""The tree of a search that records scored candidates, parents before children."""

from __future__ import annotations

import numpy as np
import torch

from cast.trees.candidate import ROOT, CandidateTree


def best_recorded(tokens: np.ndarray, parent: np.ndarray, scores: np.ndarray, budget: int) -> CandidateTree:
    """The `budget` candidates of largest score, in the order in which they were recorded.

    Of equal scores the earlier is kept, so where no child scores above its parent the tree is prefix-closed.

    Args:
        tokens: int64 [M], each candidate's last token.
        parent: int64 [M], index of the candidate it extends, -1 for the root.
        scores: float32 [M]; they become the tree's `log_mass`.
        budget: number of nonroot nodes N.
    """
    kept = np.sort(np.argsort(-scores, kind="stable")[:budget])
    place = np.full(len(scores) + 1, ROOT)  # the last entry serves index -1, the root
    place[kept] = np.arange(len(kept))
    above = place[parent[kept]]
    depth = np.ones(len(kept), np.int64)
    for node in np.flatnonzero(above != ROOT):
        depth[node] = depth[above[node]] + 1
    return CandidateTree(*map(torch.from_numpy, (tokens[kept], above, depth, scores[kept])))
