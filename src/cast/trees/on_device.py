"""The best-first tree where its scores are: fixed shapes, no copy to the host, so that a CUDA graph can hold it."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.trees.candidate import ROOT, CandidateTree
from cast.trees.ranking import COLUMN, descending_keys


def best_first_tree_on_device(log_probs: Tensor, tokens: Tensor, budget: int) -> CandidateTree:
    """The tree of `best_first_tree_from_topk`, node for node, with its ancestor mask, on the scores' device.

    A level keeps its `budget` best prefixes: one that is not among them has as many better ones of its own length,
    so it is not in the tree. What reads a value is refused nowhere; NaN scores give NaN masses.

    Args:
        log_probs: float [L, K], descending within each row.
        tokens: int64 [L, K], the token ids of those scores.
        budget: number of nonroot nodes N, at least 1; the universe is returned when it is smaller.
    """
    device, (length, top_k) = log_probs.device, log_probs.shape
    scores = log_probs.float().clamp(max=0)
    mass, first = torch.zeros(1, device=device), -1  # the frontier's masses; the number of its first prefix
    levels = []  # (log mass, number of the parent, rank) of each level's prefixes, in the order of their rank tuples
    for position in range(length):
        size = len(mass)
        mass = (mass[:, None] + scores[position]).flatten()
        kept = torch.arange(len(mass), device=device)
        if len(mass) > budget:
            kept = _best(mass, budget).sort().values
            mass = mass[kept]
        levels.append((mass, first + kept // top_k, kept % top_k))
        first += size
    sizes = [len(level[0]) for level in levels]
    mass, parent, rank = (torch.cat(part) for part in zip(*levels, strict=True))
    depth = torch.cat([torch.full((size,), i, device=device) for i, size in enumerate(sizes, start=1)])
    best = _best(mass, min(budget, len(mass)))
    node = torch.full((len(mass) + 1,), ROOT, device=device)  # the last entry serves number -1, the root
    node[best] = torch.arange(len(best), device=device)
    depth, parent = depth[best], node[parent[best]]
    return CandidateTree(
        tokens=tokens[depth - 1, rank[best]],
        parent=parent,
        depth=depth,
        log_mass=mass[best],
        visible=_visible(parent, min(length, len(best))),
    )


def _best(mass: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest masses, equal ones by index, best first."""
    keys = descending_keys(mass, torch.arange(len(mass), device=mass.device))
    return COLUMN - (keys.topk(count).values & COLUMN)


def _visible(parent: Tensor, depth: int) -> Tensor:
    """Each packed row's ancestors of up to `depth` generations; every step doubles the generations known."""
    up = torch.cat((parent.new_zeros(1), parent + 1))  # each packed row's parent row, the root its own
    rows = torch.arange(len(up), device=up.device)
    known, generations = torch.stack((rows, up), dim=-1), 1
    while generations < depth:
        up = up[up]
        known, generations = torch.cat((known, up[known]), dim=-1), 2 * generations + 1
    return torch.zeros(len(up), len(up), dtype=torch.bool, device=up.device).scatter_(1, known, True)
