"""A shared budget of nodes divided over a batch of requests: by plug-in mass (Proposition 2), and in hindsight."""

from __future__ import annotations

import math

import numpy as np


def shared_best_first(masses: np.ndarray, budget: int) -> np.ndarray:
    """Nodes of each request when the ``budget`` nodes of largest mass are taken over all of its batch.

    Args:
        masses: float [..., B, m], masses or their logarithms of each request's candidates in best-first order,
            descending; -inf where a request has no more.
        budget: shared nodes M of each batch; everything is taken where there are fewer.

    Returns:
        int64 [..., B]; request r takes the first entry-many nodes of its own best-first tree. Of equal masses the
        earlier request's comes first.
    """
    *batches, requests, most = masses.shape
    flat = masses.reshape(math.prod(batches), requests * most)
    # A request's masses descend, so its share of the best is a run from its first node on.
    best = np.argsort(-flat, axis=1, kind="stable")[:, :budget]
    exists = np.take_along_axis(flat, best, axis=1) > -np.inf
    owner = best // max(most, 1) + requests * np.arange(len(flat))[:, None]
    return np.bincount(owner[exists], minlength=len(flat) * requests).reshape(*batches, requests)


def hindsight(needed: np.ndarray, budget: int) -> np.ndarray:
    """Nodes of each request that would have accepted the most tokens, had the target's choices been known.

    Each request still verifies a prefix of its own best-first order; only its length is chosen afterwards.

    Args:
        needed: int [..., B, steps], entry k - 1 is the least number of the request's nodes with which k tokens are
            accepted; ascending, and above ``budget`` where k never are.
        budget: shared nodes M of each batch.

    Returns:
        int64 [..., B], in each batch at most ``budget`` together; nodes that accept nothing are not spent.
    """
    # Accepted lengths are step functions of the nodes and not concave, so this is a knapsack, solved exactly.
    *batches, requests, steps = needed.shape
    flat = needed.reshape(math.prod(batches), requests, steps)
    sizes, every = np.arange(budget + 1), np.arange(len(flat))
    best = np.zeros((len(flat), budget + 1), np.int64)  # accepted by the requests so far, at every budget
    chosen = np.zeros((requests, len(flat), budget + 1), np.int32)
    for request in range(requests):
        without = best
        for step in range(steps):
            nodes = flat[:, request, step, None]
            if (nodes > budget).all():
                break
            rest = sizes - nodes
            gained = np.take_along_axis(without, np.maximum(rest, 0), axis=1) + step + 1
            better = (rest >= 0) & (gained > best)
            best = np.where(better, gained, best)
            np.copyto(chosen[request], nodes, where=better, casting="same_kind")
    counts, left = np.zeros((len(flat), requests), np.int64), np.full(len(flat), budget)
    for request in reversed(range(requests)):
        counts[:, request] = chosen[request, every, left]
        left -= counts[:, request]
    return counts.reshape(*batches, requests)
