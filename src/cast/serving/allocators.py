"""Allocators: how the requests of a round divide the verifier's work (paper, section 3.3 and appendix B.4)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cast.decode.proposers import most_likely, top_log_probs
from cast.errors import CastError
from cast.serving.forest import Forest, best_first_forest, chain_forest
from cast.width import LatencyCurve, MassCurve, predict_width


@dataclass(frozen=True)
class RoundCost:
    """What a round of B requests costs, as measured on this device.

    Attributes:
        latency: verification ms against packed tokens B + M.
        draft_ms: one drafter pass for B requests.
        overhead_ms: everything else of the round.
    """

    latency: LatencyCurve
    draft_ms: float
    overhead_ms: float = 0.0


def stopping_budget(masses: np.ndarray, cost: RoundCost, roots: int, largest: int) -> int:
    """The shared budget M with the most tokens per ms (Proposition 3, on the cost curve as measured).

    Args:
        masses: [m], the masses of the merged forest, largest first.
        roots: requests B.
        largest: no budget above it.

    Budgets outside the measured range of packed tokens are not considered: the curve is never extrapolated.
    """
    first, last = cost.latency.packed_tokens[[0, -1]] - roots
    most = min(largest, len(masses), int(last))
    if most < 1:
        return 0
    if first > most:  # far fewer requests than the cost was measured for: every budget is below its first point
        return most
    grid = range(max(1, math.ceil(first)), most + 1)
    return predict_width(
        MassCurve(masses),
        cost.latency,
        draft_ms=cost.draft_ms,
        overhead_ms=cost.overhead_ms,
        grid=grid,
        cost="measured",
        roots=roots,
    ).width


class Allocator(ABC):
    """Turns the drafter's marginals for a batch into the forest that is verified."""

    name: str

    @abstractmethod
    def most_nodes(self, requests: int) -> int:
        """Nodes that one of so many requests may get at most; cache memory is set aside for them."""

    @abstractmethod
    def allocate(self, logits: Tensor) -> Forest:
        """The forest of a round.

        Args:
            logits: [B, L, V], of every request's next positions.
        """


class Chain(Allocator):
    """Standard DFlash decoding of every request: the most likely token of each position."""

    name = "chain"

    def __init__(self, length: int):
        self.length = length

    def most_nodes(self, requests: int) -> int:
        return self.length

    def allocate(self, logits: Tensor) -> Forest:
        return chain_forest(most_likely(logits).numpy())


class _TreeAllocator(Allocator):
    def __init__(self, top_k: int = 8):
        if top_k < 1:
            raise CastError(f"top_k must be at least 1, not {top_k}")
        self.top_k = top_k

    def allocate(self, logits: Tensor) -> Forest:
        requests, length, vocabulary = logits.shape
        scores, tokens = top_log_probs(logits.reshape(-1, vocabulary), self.top_k)
        shape = (requests, length, -1)
        return self.forest(scores.view(shape).numpy(), tokens.view(shape).numpy())

    @abstractmethod
    def forest(self, log_probs: np.ndarray, tokens: np.ndarray) -> Forest:
        """The forest from top-K scores [B, L, K], descending, and their token ids."""


class Uniform(_TreeAllocator):
    """The same number of nodes for every request, whatever its scores."""

    def __init__(self, width: int, top_k: int = 8, name: str = "uniform"):
        super().__init__(top_k)
        if width < 0:
            raise CastError(f"a width must be 0 or more, not {width}")
        self.width, self.name = width, name

    def most_nodes(self, requests: int) -> int:
        return self.width

    def forest(self, log_probs, tokens):
        return best_first_forest(log_probs, tokens, np.full(len(tokens), self.width))


class BestFirst(_TreeAllocator):
    """One shared budget of `average` nodes for each active request, to the largest masses of all."""

    name = "best_first"

    def __init__(self, average: int, top_k: int = 8):
        super().__init__(top_k)
        if average < 0:
            raise CastError(f"an average width must be 0 or more, not {average}")
        self.average = average

    def most_nodes(self, requests: int) -> int:
        return self.average * requests

    def forest(self, log_probs, tokens):
        return best_first_forest(log_probs, tokens, self.average * len(tokens))


class Priced(_TreeAllocator):
    """Best-first with the shared budget that the stopping rule picks in each round (Proposition 3).

    Args:
        costs: number of active requests to what a round of so many costs; a number that was not measured
            uses the nearest one that was.
        largest: no round gets more nodes.
    """

    name = "priced"

    def __init__(self, costs: Mapping[int, RoundCost], largest: int, top_k: int = 8):
        super().__init__(top_k)
        if not costs:
            raise CastError("no measured cost to set a budget by; probe at least one batch size")
        self.costs, self.largest = dict(costs), largest

    def most_nodes(self, requests: int) -> int:
        return self.largest

    def forest(self, log_probs, tokens):
        requests = len(tokens)
        nearest = min(self.costs, key=lambda measured: (abs(measured - requests), measured))
        whole = best_first_forest(log_probs, tokens, self.largest)
        masses = np.sort(np.exp(whole.log_mass.astype(np.float64)))[::-1]
        budget = stopping_budget(masses, self.costs[nearest], requests, self.largest)
        return whole if budget == len(whole) else best_first_forest(log_probs, tokens, budget)
