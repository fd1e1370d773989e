"""One verifier budget shared by a batch of requests, replayed (Proposition 2; appendix F, allocation oracle).

A request is a round of the log: a root with its best-first order and the path the target takes there. Batches of
requests are drawn at random, and policies split the same number of nodes over each batch.
"""

from __future__ import annotations

import numpy as np

from cast.experiments.replay import Order
from cast.width import hindsight, shared_best_first


def draw_batches(random: np.random.Generator, requests: np.ndarray, batch_size: int, batches: int) -> np.ndarray:
    """Requests of each batch, int [batches, batch_size]: no place of ``requests`` twice in one, if they are so many."""
    few = len(requests) < batch_size
    return np.array([random.choice(requests, batch_size, replace=few) for _ in range(batches)])


def shared_budget(order: Order, drawn: np.ndarray, nodes_per_request: int) -> dict[str, np.ndarray]:
    """Accepted nodes of each batch, int [batches], by policy.

    * ``uniform``: every request gets its best ``nodes_per_request`` nodes.
    * ``best_first``: the batch gets the best nodes of all its requests together, by plug-in mass; equal masses
      go to the request that was drawn first.
    * ``hindsight``: the split of the batch's nodes that accepts most, when it is known what each request would
      accept at every budget: an exact multiple-choice knapsack.

    Args:
        order: of all requests to draw from, enumerated to at least ``nodes_per_request`` nodes. A request cannot
            be given more nodes than were enumerated.
        drawn: requests of each batch, as `draw_batches` gives them.
    """
    budget = drawn.shape[1] * nodes_per_request
    given = {
        "uniform": np.full(drawn.shape, nodes_per_request),
        "best_first": shared_best_first(order.log_mass[drawn], budget),
        "hindsight": hindsight(_entries(order, never=budget + 1)[drawn], budget),
    }
    return {policy: order.accepted[drawn, nodes].sum(axis=1, dtype=np.int64) for policy, nodes in given.items()}


def _entries(order: Order, never: int) -> np.ndarray:
    """Smallest budget at which 1, 2, ... nodes are accepted, int [R, longest path]; ``never`` where none does."""
    deepest = int(order.path_depth.max(initial=0))
    entries = np.full((len(order.log_mass), deepest), never)
    root, node = np.nonzero(order.path_depth)
    entries[root, order.path_depth[root, node] - 1] = node + 1
    return entries
