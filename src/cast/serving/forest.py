"""Candidate trees of several requests, built and masked together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from cast.errors import CastError
from cast.trees import BestFirstOrder, CandidateTree, best_first_order
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
        CastError: shapes differ, NaN, scores not descending, or a negative budget.
    """
    if log_probs.ndim != 3 or log_probs.shape != tokens.shape:
        raise CastError(f"log_probs and tokens must both be [B, L, K], not {log_probs.shape} and {tokens.shape}")
    return by_request(best_first_order(log_probs, tokens, budgets), len(tokens))


def by_request(order: BestFirstOrder, requests: int) -> Forest:
    """The forest of a shared order: each request's own sequences, still best first."""
    sizes = np.bincount(order.request, minlength=requests)
    grouped = np.argsort(order.request, kind="stable")
    place = np.full(len(order) + 1, ROOT)  # of a node among its request's; the last entry serves parent -1, the root
    place[grouped] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Forest(
        sizes=sizes,
        tokens=order.tokens[grouped],
        parent=place[order.parent[grouped]],
        depth=order.depth[grouped],
        log_mass=order.log_mass[grouped],
    )
