"""Proposers: what each method asks the target to verify. The loop is the same for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from cast.decode.timer import Trace
from cast.errors import CastError
from cast.models import Pair
from cast.trees import CandidateTree, best_first_tree_from_topk, chain_tree, top_candidates


class Proposer(ABC):
    """Turns the state of a round into a candidate tree. One instance serves one generation."""

    taps: Sequence[int] = ()
    """Target layers whose hidden states `propose` wants for every committed position."""

    lookahead: int = 1
    """Cache entries needed beyond the committed sequence: the largest pack or block."""

    passes: int = 0
    """Drafter passes so far."""

    def start(self, capacity: int) -> None:  # noqa: B027 (optional: plain decoding allocates nothing)
        """Allocate for a sequence of `capacity` entries, lookahead included."""

    @abstractmethod
    def propose(self, features: Tensor | None, root: Tensor, trace: Trace | None = None) -> CandidateTree | None:
        """The tree to verify next.

        Args:
            features: [c, taps * H], of the positions committed since the last call; None without taps.
            root: int64 [1], the pending root.
            trace: charge the drafter's forward to its stage "draft".
        """


class Autoregressive(Proposer):
    """The tree of zero nodes: plain decoding."""

    def propose(self, features, root, trace=None) -> None:
        return None


class _BlockProposer(Proposer):
    """Shared by the methods that draft with one DFlash pass."""

    def __init__(self, pair: Pair, block_size: int | None):
        if pair.drafter is None:
            raise CastError("this method needs a drafter: load_pair(target, drafter) or pair.with_drafter(drafter)")
        own = pair.drafter.block_size
        if block_size is not None and not 2 <= block_size <= own:
            raise CastError(f"block_size must be between 2 and the drafter's own {own}, not {block_size}")
        self.target, self.drafter = pair.target, pair.drafter
        self.block_size = block_size or own
        self.taps = pair.drafter.target_layer_ids
        self.lookahead = self.block_size

    def start(self, capacity: int) -> None:
        self.cache = self.drafter.new_cache(capacity)

    def marginals(self, features: Tensor, root: Tensor, trace: Trace | None) -> Tensor:
        """Logits [L, V] of the next block, in one drafter pass."""
        if trace:
            trace.lap("other")
        logits = self.drafter.draft(self.target, features, root, self.cache, self.block_size)
        self.passes += 1
        if trace:
            trace.lap("draft")
        return logits


class DFlashChain(_BlockProposer):
    """Standard DFlash decoding: the most likely token of each position, as a chain."""

    def propose(self, features, root, trace=None) -> CandidateTree:
        best, tokens = self.marginals(features, root, trace).max(dim=-1)
        tokens, undefined = torch.stack((tokens, best.isnan().long())).cpu()  # max propagates NaN
        if undefined.any():
            raise CastError("the drafter returned NaN logits; check its checkpoint and dtype")
        return chain_tree(tokens)


class CastTree(_BlockProposer):
    """The best-first tree of `budget` nodes over the top `top_k` tokens of each position."""

    def __init__(self, pair: Pair, budget: int, top_k: int, block_size: int | None):
        super().__init__(pair, block_size)
        if budget < 0:
            raise CastError(f"budget must be 0 or more, not {budget}")
        if top_k < 1:
            raise CastError(f"top_k must be at least 1, not {top_k}")
        self.budget, self.top_k = budget, top_k
        self.lookahead = max(self.block_size, budget + 1)

    def propose(self, features, root, trace=None) -> CandidateTree:
        logits = self.marginals(features, root, trace)
        return best_first_tree_from_topk(*top_log_probs(logits, self.top_k), self.budget)


def top_log_probs(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Top-K log-probabilities of the full softmax (not renormalised over the K), fp32 [L, K], and token ids."""
    return top_candidates(logits, top_k, logits.float().logsumexp(dim=-1, keepdim=True))


METHODS = ("autoregressive", "dflash", "cast")


def make_proposer(
    pair: Pair, method: str, *, budget: int = 63, top_k: int = 8, block_size: int | None = None
) -> Proposer:
    """The proposer of a method.

    Raises:
        CastError: unknown method, no drafter where one is needed, or a setting out of range.
    """
    if method == "autoregressive":
        return Autoregressive()
    if method == "dflash":
        return DFlashChain(pair, block_size)
    if method == "cast":
        return CastTree(pair, budget, top_k, block_size)
    raise CastError(f"unknown method {method!r}; methods: {', '.join(METHODS)}")
