"""Allocators: how the requests of a round divide the verifier's work (paper, section 3.3 and appendix B.4)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cast.decode.checks import check_least
from cast.decode.proposers import most_likely, top_log_probs
from cast.errors import CastError
from cast.serving.forest import Forest, best_first_forest, by_request, chain_forest
from cast.trees import best_first_order
from cast.width import LatencyCurve


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

    def most_nodes(self, requests: int) -> int:
        """The largest budget of such a round whose verification was measured."""
        return int(self.latency.packed_tokens[-1]) - requests


def cost_between(costs: Mapping[int, RoundCost], requests: int) -> RoundCost:
    """What a round of so many requests costs, by the nearest measured numbers of requests below and above.

    Proposition 3 prices drafting and verifying at the round's own B. Both are linear here in the number of requests,
    verification at equal packed tokens of each of them, so that all budgets from the roots alone on have a price.

    Args:
        costs: number of requests to what a round of so many costs.

    Raises:
        CastError: fewer or more requests than any measured.
    """
    fewer = max((known for known in costs if known <= requests), default=None)
    more = min((known for known in costs if known >= requests), default=None)
    if fewer is None or more is None:
        raise CastError(
            f"the cost of a round of {requests} requests is not known from rounds of {min(costs)} to {max(costs)}; "
            f"probe {requests} as well"
        )
    if fewer == more:
        return costs[requests]
    share = (requests - fewer) / (more - fewer)
    low, high = costs[fewer], costs[more]
    # Packed tokens of each request, where both were measured.
    of_low, of_high = low.latency.packed_tokens / fewer, high.latency.packed_tokens / more
    each = np.union1d(of_low, of_high)
    each = each[(each >= max(of_low[0], of_high[0])) & (each <= min(of_low[-1], of_high[-1]))]
    below, above = np.interp(each, of_low, low.latency.latency_ms), np.interp(each, of_high, high.latency.latency_ms)
    return RoundCost(
        LatencyCurve(requests * each, below + share * (above - below)),
        low.draft_ms + share * (high.draft_ms - low.draft_ms),
        low.overhead_ms + share * (high.overhead_ms - low.overhead_ms),
    )


def stopping_budget(masses: np.ndarray, cost: RoundCost, roots: int) -> int:
    """The shared budget M with the most tokens per ms (Proposition 3, on the cost curve as measured).

    No budget passes the measured packed tokens: the curve is never extrapolated. M = 0 is one of them: where another
    token costs more than the likeliest node is worth, the roots are verified alone.

    Args:
        masses: [m], the masses of the merged forest, largest first.
        cost: of a round of so many requests.
        roots: requests B.

    Raises:
        CastError: B packed tokens, the roots alone, were not measured.
    """
    most = max(min(len(masses), cost.most_nodes(roots)), 0)
    tokens = roots + np.concatenate(([0.0], np.cumsum(masses[:most])))
    ms = cost.draft_ms + cost.overhead_ms + cost.latency.at(roots + np.arange(most + 1))
    return int(np.argmax(tokens / ms))


class Allocator(ABC):
    """Turns the drafter's marginals for a batch into the forest that is verified."""

    @abstractmethod
    def most_nodes(self, requests: int) -> int:
        """Nodes that one of so many requests, or of fewer, may get at most; cache memory is set aside for them."""

    @abstractmethod
    def allocate(self, logits: Tensor) -> Forest:
        """The forest of a round.

        Args:
            logits: [B, L, V], of every request's next positions.
        """


class Chain(Allocator):
    """Standard DFlash decoding of every request: the most likely token of each of the first `length` positions."""

    def __init__(self, length: int):
        check_least(length=(length, 0))
        self.length = length

    def most_nodes(self, requests: int) -> int:
        return self.length

    def allocate(self, logits: Tensor) -> Forest:
        return chain_forest(most_likely(logits[:, : self.length]).numpy())


class _TreeAllocator(Allocator):
    def __init__(self, top_k: int = 8):
        check_least(top_k=(top_k, 1))
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

    def __init__(self, width: int, top_k: int = 8):
        super().__init__(top_k)
        check_least(width=(width, 0))
        self.width = width

    def most_nodes(self, requests: int) -> int:
        return self.width

    def forest(self, log_probs, tokens):
        return best_first_forest(log_probs, tokens, np.full(len(tokens), self.width))


class BestFirst(_TreeAllocator):
    """One shared budget of `average` nodes for each active request, to the largest masses of all."""

    def __init__(self, average: int, top_k: int = 8):
        super().__init__(top_k)
        check_least(average=(average, 0))
        self.average = average

    def most_nodes(self, requests: int) -> int:
        return self.average * requests

    def forest(self, log_probs, tokens):
        return best_first_forest(log_probs, tokens, self.average * len(tokens))


class Priced(_TreeAllocator):
    """Best-first with the shared budget that the stopping rule picks in each round (Proposition 3).

    Args:
        costs: number of active requests to what a round of so many costs, each measured from the roots alone on; the
            largest measured pack bounds the budget. Requests leave one by one, so a server needs the cost of one
            request and of the most at once; what lies between is interpolated (`cost_between`).
    """

    def __init__(self, costs: Mapping[int, RoundCost], top_k: int = 8):
        super().__init__(top_k)
        if not costs:
            raise CastError("no measured cost to set a budget by; probe at least one batch size")
        for requests, cost in costs.items():
            first = cost.latency.packed_tokens[0]
            if first > requests:
                raise CastError(
                    f"the cost of {requests} requests was measured from {first:g} packed tokens on; probe the "
                    f"{requests} roots alone as well"
                )
        self._cost = functools.cache(functools.partial(cost_between, dict(costs)))

    def most_nodes(self, requests: int) -> int:
        return max(self._cost(active).most_nodes(active) for active in range(1, requests + 1))

    def forest(self, log_probs, tokens):
        requests = len(tokens)
        cost = self._cost(requests)
        order = best_first_order(log_probs, tokens, cost.most_nodes(requests))
        budget = stopping_budget(np.exp(order.log_mass.astype(np.float64)), cost, requests)
        return by_request(order.first(budget), requests)
