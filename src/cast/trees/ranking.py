"""The best tokens of each position: ties by token id, whatever the device or the precision."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.errors import CastError

COLUMN = 0x7FFFFFFF
"""The bits of a key that hold its column, see `descending_keys`."""

GROUP = 64
"""Columns compared at once before the search for the best ones."""


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
