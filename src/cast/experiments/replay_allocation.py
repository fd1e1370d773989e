"""One verifier budget shared by a batch of requests, replayed (Proposition 2; appendix F, allocation oracle).

A request is a round of the log: a root with its best-first order and the path the target takes there. Batches of
requests are drawn at random, and policies split the same number of nodes over each batch.
"""

from __future__ import annotations

import numpy as np

from cast.experiments.replay import Order

POLICIES = ("uniform", "best_first", "hindsight")


def shared_budget(
    order: Order, *, batch_size: int, batches: int, nodes_per_request: int, seed: int
) -> dict[str, np.ndarray]:
    """Accepted nodes of each batch, int [batches], by policy.

    * ``uniform``: every request gets its best ``nodes_per_request`` nodes.
    * ``best_first``: the batch gets the best nodes of all its requests together, by plug-in mass; equal masses
      go to the request that was drawn first.
    * ``hindsight``: the split of the batch's nodes that accepts most, when it is known what each request would
      accept at every budget: an exact multiple-choice knapsack.

    Args:
        order: of all requests to draw from, enumerated to at least ``nodes_per_request`` nodes. A request cannot
            be given more nodes than were enumerated.
        batch_size: requests of a batch, drawn without replacement.
        batches: how many batches.
    """
    random = np.random.default_rng(seed)
    drawn = np.array([random.choice(len(order.log_mass), batch_size, replace=False) for _ in range(batches)])
    budget = batch_size * nodes_per_request
    given = {
        "uniform": np.full(drawn.shape, nodes_per_request),
        "best_first": _best_first_split(order.log_mass[drawn], budget),
    }
    accepted = {policy: order.accepted[drawn, nodes].sum(axis=1, dtype=np.int64) for policy, nodes in given.items()}
    return accepted | {"hindsight": _knapsack(_entries(order)[drawn], budget)}


def _best_first_split(log_mass: np.ndarray, budget: int) -> np.ndarray:
    """Nodes of each request among the ``budget`` best of its batch: [batches, B, nodes] to int [batches, B]."""
    batches, size, nodes = log_mass.shape
    flat = log_mass.reshape(batches, size * nodes)
    # A request's masses descend, so its share of the best is a run from its first node on.
    best = np.argsort(-flat, axis=1, kind="stable")[:, :budget]
    exists = np.take_along_axis(flat, best, axis=1) > -np.inf
    owner = best // nodes + np.arange(batches)[:, None] * size
    return np.bincount(owner[exists], minlength=batches * size).reshape(batches, size)


def _entries(order: Order) -> np.ndarray:
    """Smallest budget at which 1, 2, ... nodes are accepted, int [R, longest path]; more than there are: never."""
    nodes = order.log_mass.shape[1]
    deepest = int(order.path_depth.max(initial=0))
    entries = np.full((len(order.log_mass), deepest), nodes + 1)
    root, node = np.nonzero(order.path_depth)
    entries[root, order.path_depth[root, node] - 1] = node + 1
    return entries


def _knapsack(entries: np.ndarray, budget: int) -> np.ndarray:
    """Most accepted nodes of each batch: [batches, B, steps] budgets of 1, 2, ... accepted, to int [batches]."""
    batches, size, steps = entries.shape
    sizes = np.arange(budget + 1)
    best = np.zeros((batches, budget + 1), np.int64)  # of the requests so far, at every budget
    for request in range(size):
        options = [best]
        for step in range(steps):
            rest = sizes - entries[:, request, step, None]
            value = np.take_along_axis(best, np.maximum(rest, 0), axis=1) + step + 1
            options.append(np.where(rest >= 0, value, 0))
        best = np.maximum.reduce(options)
    return best[:, -1]
