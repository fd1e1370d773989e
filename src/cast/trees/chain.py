"""The top-1 chain that standard DFlash decoding verifies."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.trees.candidate import CandidateTree


def chain_tree(tokens: Tensor, log_probs: Tensor | None = None) -> CandidateTree:
    """The chain of one token at each position.

    Args:
        tokens: int64 [L], the most likely token of each position.
        log_probs: float [L], their log-probabilities. Standard decoding does not score its chain; without
            them `log_mass` is NaN.
    """
    n = tokens.numel()
    log_mass = torch.full((n,), torch.nan) if log_probs is None else log_probs.to("cpu", torch.float32).cumsum(0)
    return CandidateTree(
        tokens=tokens.to("cpu", torch.int64),
        parent=torch.arange(-1, n - 1),
        depth=torch.arange(1, n + 1),
        log_mass=log_mass,
    )
