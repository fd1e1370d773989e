"""Best-first candidate trees over one-pass marginals (paper, section 3.2 and appendix C)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cast.errors import NAN_LOGITS, CastError
from cast.trees.candidate import ROOT, CandidateTree

ROUNDING = 1e-6
"""How far above 0 a log-probability may be rounded."""

COLUMN = 0x7FFFFFFF
"""The bits of a key that hold its column, see `descending_keys`."""

GROUP = 64
"""Columns compared at once before the search for the best ones."""


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


def top_candidates(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The `top_k` largest scores of each row and their token ids, ties by token id, on the CPU.

    Args:
        scores: float [L, V], on any device; from another one the result comes over in a single copy.
        top_k: how many to keep; capped at V.

    Returns:
        (scores float32 [L, K], tokens int64 [L, K]), rows in descending order.

    Raises:
        CastError: `top_k` below 1, or no position or token to choose from.
    """
    return to_host(*ranked_candidates(scores, top_k))


def to_host(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 values and int64 tokens of one shape on the CPU, in a single copy from elsewhere."""
    if values.device.type == "cpu":
        return values, tokens
    values, tokens = torch.stack((values.double(), tokens.double())).cpu()  # both are exact in fp64
    return values.float(), tokens.long()


def ranked_candidates(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """`top_candidates` where the scores are, without a copy to the host. NaN ranks first."""
    if top_k < 1:
        raise CastError(f"top_k must be at least 1, not {top_k}")
    if scores.numel() == 0:
        raise CastError(f"no candidates in scores of shape {list(scores.shape)}")
    top_k = min(top_k, scores.shape[-1])
    groups = scores.shape[-1] // GROUP
    search = _ranked_by_groups if scores.device.type == "cpu" and groups > 4 * top_k else _ranked
    tokens = search(scores, top_k)
    return scores.gather(-1, tokens).float(), tokens


def descending_keys(scores: Tensor, columns: Tensor) -> Tensor:
    """int64 keys whose descending order is that of the scores, equal ones by ascending column; NaN comes first."""
    scores = scores.float().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) + 0.0  # -0.0 equals 0.0
    bits = scores.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # below 0, floats order backwards by their bits
    return (ordered.long() << 32) | (COLUMN - columns)


def _ranked(scores: Tensor, top_k: int) -> Tensor:
    """Columns [L, K] of the largest scores, equal ones by column.

    torch.topk leaves the choice among equal values open, and low-precision logits tie often. So score and column
    become one integer, and no two are equal.
    """
    if scores.dtype == torch.float64:
        return scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    keys = descending_keys(scores, torch.arange(scores.shape[-1], device=scores.device))
    return COLUMN - (keys.topk(top_k, dim=-1).values & COLUMN)


def _ranked_by_groups(scores: Tensor, top_k: int) -> Tensor:
    """The same for long rows on a CPU, where maxima of groups of columns cost a tenth of a search.

    The K-th largest maximum bounds the K-th largest score from below, so only groups that reach it matter.
    """
    vocabulary = scores.shape[-1]
    groups, kept = vocabulary // GROUP, 2 * top_k
    whole = groups * GROUP
    # Strided groups: torch takes a maximum across the rows of a matrix at memory speed, within short rows it does not.
    best, chosen = scores[:, :whole].unflatten(-1, (GROUP, groups)).amax(dim=1).topk(kept + 1, dim=-1)
    chosen = chosen[:, :kept].sort(dim=-1).values
    pool = (torch.arange(0, whole, groups)[:, None] + chosen[:, None]).flatten(1)  # ascending, as ties need it
    if whole < vocabulary:
        pool = torch.cat((pool, torch.arange(whole, vocabulary).expand(len(pool), -1)), dim=-1)
    tokens = pool.gather(-1, _ranked(scores.gather(-1, pool), top_k))
    bound = best[:, top_k - 1]
    # Groups beyond those kept may tie with the bound: common in low precision over a flat row, and with NaN.
    for row in torch.nonzero(~(best[:, kept] < bound)).flatten().tolist():
        near = torch.nonzero(~(scores[row] < bound[row])).flatten()
        tokens[row] = near[_ranked(scores[row, near][None], top_k)[0]]
    return tokens


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
    _check(scores, token_ids, budget)
    scores = np.minimum(scores, 0)  # a child may never outweigh its parent
    parent, depth, rank, mass = _best_prefixes(scores, budget)
    return CandidateTree(
        tokens=torch.from_numpy(token_ids[depth - 1, rank]),
        parent=torch.from_numpy(parent),
        depth=torch.from_numpy(depth),
        log_mass=torch.from_numpy(mass),
    )


def _check(scores: np.ndarray, tokens: np.ndarray, budget: int) -> None:
    if scores.ndim != 2 or scores.shape != tokens.shape:
        raise CastError(f"log_probs and tokens must both be [L, K], not {scores.shape} and {tokens.shape}")
    if budget < 0:
        raise CastError(f"budget must be 0 or more, not {budget}")
    if np.isnan(scores).any():
        raise CastError(NAN_LOGITS)
    if (scores > ROUNDING).any():
        raise CastError(f"log_probs holds {scores.max():.3g}, which is no log-probability; apply log_softmax first")
    if (scores[:, 1:] > scores[:, :-1]).any():
        raise CastError("log_probs must be descending within each position")


def _best_prefixes(scores: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Parent, depth, rank and log mass of the `budget` best prefixes, best first.

    Level by level rather than by a heap, so that every step is one vectorised operation. Inside a level
    nodes stay in the order of their rank tuples; a stable sort over the concatenated levels then yields
    exactly the tie rule (shorter first, then the smaller rank tuple).
    """
    length, top_k = scores.shape
    ranks = np.arange(top_k)
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (index of parent, rank, log mass)
    kept_mass = np.empty(0, np.float32)
    frontier_mass = np.zeros(1, np.float32)
    frontier_index = np.array([ROOT])
    threshold = None  # log mass of the budget-th best prefix so far, once there are that many
    for position in range(length if budget else 0):
        mass = (frontier_mass[:, None] + scores[position]).ravel()
        parent = frontier_index.repeat(top_k)
        rank = np.tile(ranks, len(frontier_index))
        if threshold is not None:
            # A deeper prefix equal to the threshold loses to the shorter ones that already fill the budget.
            better = np.flatnonzero(mass > threshold)
            mass, parent, rank = mass[better], parent[better], rank[better]
        if not len(mass):
            break
        index = np.arange(len(kept_mass), len(kept_mass) + len(mass))
        kept_mass = np.concatenate((kept_mass, mass))
        levels.append((parent, rank, mass))
        frontier_mass, frontier_index = mass, index
        if len(kept_mass) >= budget:
            threshold = np.partition(kept_mass, len(kept_mass) - budget)[len(kept_mass) - budget]
            promising = np.flatnonzero(mass > threshold)
            frontier_mass, frontier_index = mass[promising], index[promising]
    if not levels:
        empty = np.empty(0, np.int64)
        return empty, empty, empty, np.empty(0, np.float32)

    parent, rank = (np.concatenate([level[field] for level in levels]) for field in (0, 1))
    depth = np.repeat(np.arange(1, len(levels) + 1), [len(level[0]) for level in levels])
    best = np.argsort(-kept_mass, kind="stable")[:budget]
    new_index = np.full(len(kept_mass) + 1, ROOT)  # the last entry serves index -1, the root
    new_index[best] = np.arange(len(best))
    return new_index[parent[best]], depth[best], rank[best], kept_mass[best]
