"""Best-first candidate trees over one-pass marginals (paper, section 3.2 and appendix C)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cast.errors import NAN_LOGITS, CastError
from cast.trees.candidate import ROOT, CandidateTree
from cast.trees.ranking import top_candidates

ROUNDING = 1e-6
"""How far above 0 a log-probability may be rounded."""


def best_first_tree(log_probs: Tensor, budget: int, top_k: int = 8) -> CandidateTree:
    """The `budget` candidate sequences of largest plug-in score, within the top `top_k` tokens of each position.

    By Theorem 1 and Corollary 1 this maximises the expected accepted length under the drafter's own
    scores over all prefix-closed trees of that size. The scores are the marginals as given: they are
    not renormalised over the top `top_k`.

    Args:
        log_probs: float [L, V], log-probabilities of the drafter at each future position.
        budget: number of nonroot nodes N; the whole universe is returned when it is smaller.
        top_k: tokens kept at each position (capped at V).

    Returns:
        A tree in best-first order. Equal scores: the shorter sequence first, then the smaller tuple
        of ranks; equal probabilities at one position rank by token id.

    Raises:
        CastError: wrong shape, NaN in `log_probs`, negative `budget`, or `top_k` below 1.
    """
    log_probs = torch.as_tensor(log_probs)
    if log_probs.dim() != 2:
        raise CastError(f"log_probs must have shape [L, V], not {list(log_probs.shape)}")
    return best_first_tree_from_topk(*top_candidates(log_probs, top_k), budget)


def best_first_tree_from_topk(log_probs: Tensor, tokens: Tensor, budget: int) -> CandidateTree:
    """The best-first tree over candidates already cut to their top K.

    Args:
        log_probs: float [L, K], descending within each row.
        tokens: int [L, K], the token ids of those scores.
        budget: number of nonroot nodes N.

    Raises:
        CastError: shapes differ, NaN, scores not descending, or negative `budget`.
    """
    scores = torch.as_tensor(log_probs).detach().to("cpu", torch.float32).numpy()
    token_ids = torch.as_tensor(tokens).detach().to("cpu", torch.int64).numpy()
    if scores.ndim != 2:
        raise CastError(f"log_probs must be [L, K], not {list(scores.shape)}")
    order = best_first_order(scores[None], token_ids[None], budget)
    return CandidateTree(
        tokens=torch.from_numpy(order.tokens),
        parent=torch.from_numpy(order.parent),
        depth=torch.from_numpy(order.depth),
        log_mass=torch.from_numpy(order.log_mass),
    )


@dataclass(frozen=True)
class BestFirstOrder:
    """The candidate sequences of one request or several, each after its prefixes.

    Best first: all of them under a shared budget; those of each request, one request after the other, under budgets of
    their own.

    Attributes:
        request: int64 [N], whose sequence it is.
        tokens: int64 [N], its last token.
        parent: int64 [N], place in this order of the sequence without that token, -1 where none is left.
        depth: int64 [N], its length.
        log_mass: float32 [N], log of its plug-in score.
    """

    request: np.ndarray
    tokens: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    log_mass: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> BestFirstOrder:
        """The order of a smaller shared budget."""
        return BestFirstOrder(*(column[:count] for column in vars(self).values()))


def best_first_order(log_probs: np.ndarray, tokens: np.ndarray, budgets: int | np.ndarray) -> BestFirstOrder:
    """The sequences of largest plug-in score, so many of all requests together (paper, Proposition 2) or of each.

    Equal scores: the shorter sequence first, then the earlier request, then the smaller tuple of ranks.

    Args:
        log_probs: float32 [B, L, K], descending within each position.
        tokens: int64 [B, L, K], the token ids of those scores.
        budgets: sequences in all, or int [B] of each request; everything there is where that is less.

    Raises:
        CastError: shapes differ, NaN, scores not descending or no log-probabilities, or a negative budget.
    """
    _check(log_probs, tokens)
    requests, length, top_k = log_probs.shape
    budget = _BudgetEach(budgets, requests, length) if np.ndim(budgets) else _SharedBudget(budgets)
    scores = np.minimum(log_probs, 0).reshape(requests * length, top_k)  # a child may never outweigh its parent
    # Level by level rather than by a heap, so that every step is one vectorised operation. Inside a level sequences
    # stay ordered by request and rank tuple; a stable sort over all levels then yields exactly the tie rule.
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (row of the scores, place of the parent, rank)
    masses = np.empty(0, np.float32)
    # The sequences to extend: log mass, place among all recorded, and which row of the scores continues them.
    mass, place, row = np.zeros(requests, np.float32), np.full(requests, ROOT), np.arange(requests) * length
    for _ in range(length):
        extended = mass[:, None] + scores.take(row, axis=0)
        kept = budget.still_possible(extended, row)
        if not len(kept):
            break
        origin = kept // top_k
        row = row[origin]
        levels.append((row, place[origin], kept - origin * top_k))
        mass = extended.ravel()[kept]
        place = np.arange(len(masses), len(masses) + len(mass))
        masses = np.concatenate((masses, mass))
        if budget.filled_by(masses, levels):
            promising = budget.still_possible(mass[:, None], row)
            mass, place, row = mass[promising], place[promising], row[promising]
        row = row + 1
    if not levels:
        return BestFirstOrder(*[np.empty(0, np.int64)] * 4, masses)

    row, parent, rank = (np.concatenate(column) for column in zip(*levels, strict=True))
    best = budget.within(masses, row)
    new_place = np.full(len(masses) + 1, ROOT)  # the last entry serves place -1, the root
    new_place[best] = np.arange(len(best))
    row = row[best]
    request, position = np.divmod(row, length)
    return BestFirstOrder(
        request=request,
        tokens=tokens.reshape(requests * length, top_k)[row, rank[best]],
        parent=new_place[parent[best]],
        depth=position + 1,
        log_mass=masses[best],
    )


class _SharedBudget:
    """So many sequences in all: which ones may still be among them.

    A longer sequence that only equals the last of the best so far loses to the shorter ones that fill the budget.
    """

    def __init__(self, budget: int):
        _refuse_negative(budget)
        self.budget = budget
        self.threshold = None if budget else np.inf  # log mass of the last of the best, once the budget is full

    def still_possible(self, mass: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Flat places of the masses [n, any] that may be; `row` [n] names their rows of the scores."""
        return np.arange(mass.size) if self.threshold is None else np.flatnonzero(mass > self.threshold)

    def filled_by(self, masses: np.ndarray, levels: list[tuple[np.ndarray, ...]]) -> bool:
        """Learn the threshold from all sequences recorded so far, level by level; whether there is one."""
        if len(masses) < self.budget:
            return False
        self.threshold = np.partition(masses, len(masses) - self.budget)[len(masses) - self.budget]
        return True

    def within(self, masses: np.ndarray, row: np.ndarray) -> np.ndarray:
        """The places of those within the budget, best first."""
        return np.argsort(-masses, kind="stable")[: self.budget]


class _BudgetEach:
    """The same for so many sequences of each request; `within` gives them request by request."""

    def __init__(self, budgets: np.ndarray, requests: int, length: int):
        if np.shape(budgets) != (requests,):
            raise CastError(f"budgets must be one number or one for each of {requests} requests, not {budgets}")
        _refuse_negative(min(budgets))
        self.budgets, self.length = np.asarray(budgets), length
        # NaN while a request has fewer sequences: every comparison with it is false.
        self.thresholds = np.where(self.budgets == 0, np.float32(np.inf), np.float32(np.nan))

    def still_possible(self, mass: np.ndarray, row: np.ndarray) -> np.ndarray:
        return np.flatnonzero(~(mass <= self.thresholds[row // self.length, None]))

    def filled_by(self, masses: np.ndarray, levels: list[tuple[np.ndarray, ...]]) -> bool:
        request = np.concatenate([level[0] for level in levels]) // self.length
        by_request = np.lexsort((-masses, request))
        starts = np.searchsorted(request[by_request], np.arange(len(self.budgets) + 1))
        full = (self.budgets > 0) & (np.diff(starts) >= self.budgets)
        self.thresholds[full] = masses[by_request[starts[:-1][full] + self.budgets[full] - 1]]
        return bool(full.any())

    def within(self, masses: np.ndarray, row: np.ndarray) -> np.ndarray:
        request = row // self.length
        best = np.lexsort((-masses, request))
        nth = np.arange(len(best)) - np.searchsorted(request[best], request[best])  # of its request's
        return best[nth < self.budgets[request[best]]]


def _refuse_negative(budget: int) -> None:
    if budget < 0:
        raise CastError(f"a budget must be 0 or more, not {budget}")


def _check(scores: np.ndarray, tokens: np.ndarray) -> None:
    if scores.shape != tokens.shape:
        raise CastError(f"log_probs {list(scores.shape)} and tokens {list(tokens.shape)} must have one shape")
    if np.isnan(scores).any():
        raise CastError(NAN_LOGITS)
    if (scores > ROUNDING).any():
        raise CastError(f"log_probs holds {scores.max():.3g}, which is no log-probability; apply log_softmax first")
    if (scores[..., 1:] > scores[..., :-1]).any():
        raise CastError("log_probs must be descending within each position")
