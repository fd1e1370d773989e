"""Candidate trees of several requests, built and masked together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from cast.errors import NAN_LOGITS, CastError
from cast.trees import CandidateTree
from cast.trees.candidate import ROOT


@dataclass(frozen=True)
class Forest:
    """One candidate tree for each request, request by request, each with ancestors before descendants.

    Attributes:
        sizes: int64 [B], nodes N_r of each request.
        tokens, depth: int64 [M].
        parent: int64 [M], index of the parent among its request's nodes, -1 where the parent is the root.
        log_mass: float32 [M], log of the plug-in score.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    log_mass: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def starts(self) -> np.ndarray:
        """Index of each request's first node, int64 [B + 1]."""
        return np.concatenate(([0], np.cumsum(self.sizes)))

    @property
    def widest(self) -> int:
        """Nodes of the largest tree."""
        return int(self.sizes.max(initial=0))

    def tree(self, request: int) -> CandidateTree:
        """The tree of one request."""
        nodes = slice(self.starts[request], self.starts[request + 1])
        return CandidateTree(
            *(torch.from_numpy(field[nodes]) for field in (self.tokens, self.parent, self.depth, self.log_mass))
        )

    def of(self, requests: np.ndarray) -> Forest:
        """The trees of some requests, in that order."""
        nodes = np.concatenate([np.arange(self.starts[r], self.starts[r + 1]) for r in requests])
        fields = (self.tokens, self.parent, self.depth, self.log_mass)
        return Forest(self.sizes[requests], *(field[nodes] for field in fields))

    def visible(self) -> np.ndarray:
        """Who sees whom inside each pack: bool [B + M, 1 + widest].

        Rows are packed rows, request by request with its root first; columns are the rows of the same pack.
        True where the column is the row itself or its ancestor.
        """
        pack = np.repeat(np.arange(len(self.sizes)), self.sizes)  # of each node
        rows = np.arange(len(self)) + pack + 1
        visible = np.zeros((len(self) + len(self.sizes), 1 + self.widest), bool)
        visible[:, 0] = True
        visible[rows, np.arange(len(self)) - self.starts[pack] + 1] = True
        parent_rows = self.starts[pack] + pack + self.parent + 1
        # Ancestors precede descendants in level order, so one vectorised step per depth completes the closure.
        for depth in range(2, int(self.depth.max(initial=0)) + 1):
            level = self.depth == depth
            visible[rows[level]] |= visible[parent_rows[level]]
        return visible


def chain_forest(tokens: np.ndarray) -> Forest:
    """The top-1 chain of each request; it carries no scores.

    Args:
        tokens: int64 [B, L], the most likely token of each position.
    """
    requests, length = tokens.shape
    return Forest(
        sizes=np.full(requests, length),
        tokens=tokens.reshape(-1),
        parent=np.tile(np.arange(-1, length - 1), requests),
        depth=np.tile(np.arange(1, length + 1), requests),
        log_mass=np.full(requests * length, np.nan, np.float32),
    )


def best_first_forest(log_probs: np.ndarray, tokens: np.ndarray, budgets: int | np.ndarray) -> Forest:
    """The candidate sequences of largest plug-in score, under one shared budget or one budget for each request.

    With a shared budget M this is global best-first expansion (paper, Proposition 2): the M nodes of largest
    mass over all requests, which is prefix-closed inside each. With budgets N_r each request gets its own best
    tree (Theorem 1). Equal masses: the shorter sequence first, then the earlier request, then the smaller
    tuple of ranks; so a request's nodes are always the first ones of its own best-first tree.

    Args:
        log_probs: float32 [B, L, K], descending within each position.
        tokens: int64 [B, L, K], the token ids of those scores.
        budgets: M, or int [B].

    Raises:
        CastError: shapes differ, NaN, or a negative budget.
    """
    if log_probs.ndim != 3 or log_probs.shape != tokens.shape:
        raise CastError(f"log_probs and tokens must both be [B, L, K], not {log_probs.shape} and {tokens.shape}")
    if np.isnan(log_probs).any():
        raise CastError(NAN_LOGITS)
    requests, length, top_k = log_probs.shape
    shared = np.ndim(budgets) == 0
    budgets = np.asarray(budgets, np.int64)
    if budgets.min(initial=0) < 0:
        raise CastError(f"a budget must be 0 or more, not {budgets.min()}")
    scores = np.minimum(log_probs, 0)  # a child may never outweigh its parent

    ranks = np.arange(top_k)
    levels: list[tuple[np.ndarray, ...]] = []  # (request, index of parent, rank, log mass)
    kept = 0
    # The budget-th best mass so far, of each request or of all; a deeper node at or below it is out of the running.
    # NaN while there are fewer: then every comparison lets the node through.
    thresholds = np.full(requests, np.nan, np.float32)
    thresholds[budgets == 0] = np.inf
    request, index, mass = np.arange(requests), np.full(requests, ROOT), np.zeros(requests, np.float32)
    for position in range(length):
        request, parent, rank = request.repeat(top_k), index.repeat(top_k), np.tile(ranks, len(request))
        mass = mass.repeat(top_k) + scores[request, position, rank]
        better = ~(mass <= thresholds[request])
        request, parent, rank, mass = request[better], parent[better], rank[better], mass[better]
        if not len(mass):
            break
        levels.append((request, parent, rank, mass))
        index = np.arange(kept, kept + len(mass))
        kept += len(mass)
        thresholds = np.fmax(thresholds, _thresholds(levels, budgets, requests))
        promising = ~(mass <= thresholds[request])
        request, index, mass = request[promising], index[promising], mass[promising]
    return _selected(levels, tokens, budgets, shared)


def _thresholds(levels: list[tuple[np.ndarray, ...]], budgets: np.ndarray, requests: int) -> np.ndarray:
    """The budget-th largest mass of each request (shared: of all of them), NaN while there are fewer."""
    request = np.concatenate([level[0] for level in levels])
    mass = np.concatenate([level[3] for level in levels])
    thresholds = np.full(requests, np.nan, np.float32)
    if budgets.ndim == 0:
        if 0 < budgets <= len(mass):
            thresholds[:] = np.partition(mass, len(mass) - budgets)[len(mass) - budgets]
        return thresholds
    order = np.lexsort((-mass, request))
    starts = np.searchsorted(request[order], np.arange(requests + 1))
    full = (budgets > 0) & (np.diff(starts) >= budgets)
    thresholds[full] = mass[order[starts[:-1][full] + budgets[full] - 1]]
    return thresholds


def _selected(levels: list[tuple[np.ndarray, ...]], tokens: np.ndarray, budgets: np.ndarray, shared: bool) -> Forest:
    """The best nodes of all levels, request by request, parents renumbered within each request."""
    requests = len(tokens)
    if not levels:
        empty = np.empty(0, np.int64)
        return Forest(np.zeros(requests, np.int64), empty, empty, empty, np.empty(0, np.float32))
    request, parent, rank, mass = (np.concatenate(columns) for columns in zip(*levels, strict=True))
    depth = np.repeat(np.arange(1, len(levels) + 1), [len(level[0]) for level in levels])
    # Levels hold their nodes by request and rank tuple, so a stable sort leaves equal masses in the promised order.
    if shared:
        best = np.argsort(-mass, kind="stable")[:budgets]
        best = best[np.argsort(request[best], kind="stable")]
    else:
        best = np.lexsort((-mass, request))
        place = np.arange(len(best)) - np.searchsorted(request[best], request[best])
        best = best[place < budgets[request[best]]]
    sizes = np.bincount(request[best], minlength=requests)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    within = np.full(len(mass) + 1, ROOT)  # the last entry serves index -1, the root
    within[best] = np.arange(len(best)) - starts[request[best]]
    return Forest(
        sizes=sizes,
        tokens=tokens[request[best], depth[best] - 1, rank[best]],
        parent=within[parent[best]],
        depth=depth[best],
        log_mass=mass[best],
    )
