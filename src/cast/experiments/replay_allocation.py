"""One verifier budget shared by a batch of requests, replayed (Proposition 2; appendix F, allocation oracle).

A request is a round of the log: a root with its best-first order and the path the target takes there. Batches of
requests are drawn at random, and policies split the same number of nodes over each batch.
"""

from __future__ import annotations

import numpy as np

from cast.experiments.replay import Order
from cast.width import hindsight, shared_best_first


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
