"""Methods that draft a whole block with one DFlash pass."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from cast.decode.checks import check_budget, check_least
from cast.decode.proposers.base import Proposer, drafter_of, universe
from cast.decode.timer import Trace
from cast.errors import NAN_LOGITS, CastError
from cast.models import DFlashDrafter, GraphTarget, Pair, Target
from cast.trees import (
    CandidateTree,
    best_first_tree_from_topk,
    best_first_tree_on_device,
    chain_tree,
    ranked_candidates,
    to_host,
)

ROWS_AT_ONCE = 5


class _BlockProposer(Proposer):
    """Shared by the methods that draft with one DFlash pass.

    For a target of captured passes the tree is built on the device, so that a round waits for its walk alone.
    """

    def __init__(self, pair: Pair, block_size: int | None = None):
        self.target, self.drafter = pair.target, drafter_of(pair, DFlashDrafter)
        own = self.drafter.block_size
        if block_size is not None and not 2 <= block_size <= own:
            raise CastError(f"block_size must be between 2 and the drafter's own {own}, not {block_size}")
        self.block_size = block_size or own
        self.taps = self.drafter.target_layer_ids
        self.lookahead = self.block_size

    @abstractmethod
    def tree(self, logits: Tensor) -> CandidateTree:
        """What to verify, from the logits [L, V] of the next block."""

    def rehearse(self) -> None:
        """Have the building of trees captured, where it is, before a clock runs."""
        if isinstance(self.target, GraphTarget):
            shape = self.block_size - 1, self.target.vocab_size
            self.tree(torch.zeros(shape, dtype=self.target.dtype, device=self.target.device))

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

    def propose(self, features, root, trace=None) -> CandidateTree:
        return self.tree(self.marginals(features, root, trace))


class DFlashChain(_BlockProposer):
    """Standard DFlash decoding: the most likely token of each position, as a chain."""

    def __init__(self, pair: Pair, block_size: int | None = None):
        super().__init__(pair, block_size)
        self.rehearse()

    def tree(self, logits: Tensor) -> CandidateTree:
        if isinstance(self.target, GraphTarget):
            return self.target.repeat(_resident_chain, logits)
        return chain_tree(most_likely(logits))


class CastTree(_BlockProposer):
    """The best-first tree of `budget` nodes over the top `top_k` tokens of each position."""

    def __init__(self, pair: Pair, budget: int = 63, top_k: int = 8, block_size: int | None = None):
        super().__init__(pair, block_size)
        check_budget(budget)
        check_least(top_k=(top_k, 1))
        self.budget, self.top_k = budget, top_k
        self.nodes = min(budget, universe(min(top_k, pair.target.vocab_size), self.block_size - 1))
        self.lookahead = max(self.block_size, self.nodes + 1)
        self.rehearse()

    @property
    def packs(self) -> tuple[int]:
        return (self.nodes + 1,)  # the block may be longer

    def tree(self, logits: Tensor) -> CandidateTree:
        return candidate_tree(self.target, logits, self.budget, self.top_k)


def candidate_tree(target: Target, logits: Tensor, budget: int, top_k: int) -> CandidateTree:
    """The best-first tree over a block's logits [L, V].

    A target of captured passes has it built on the device, in one launch; the next tree of that budget overwrites it.
    """
    if isinstance(target, GraphTarget) and budget > 0:
        return target.repeat(_resident_tree, logits, budget=budget, top_k=top_k)
    return best_first_tree_from_topk(*top_log_probs(logits, top_k), budget)


def _resident_chain(logits: Tensor) -> CandidateTree:
    """`chain_tree` of `most_likely` with its mask, where the logits are; NaN among them shows in the masses."""
    best, tokens = logits.max(dim=-1)  # max propagates NaN
    rows = torch.arange(len(tokens), device=logits.device)
    return CandidateTree(
        tokens=tokens,
        parent=rows - 1,
        depth=rows + 1,
        log_mass=torch.zeros_like(best, dtype=torch.float32).masked_fill(best.isnan(), torch.nan),
        visible=torch.ones(len(rows) + 1, len(rows) + 1, dtype=torch.bool, device=logits.device).tril(),
    )


def _resident_tree(logits: Tensor, budget: int, top_k: int) -> CandidateTree:
    return best_first_tree_on_device(*top_log_probs(logits, top_k, on_host=False), budget)


def most_likely(logits: Tensor) -> Tensor:
    """The arg-max of each row of logits [..., V], int64 [...] on the CPU, from another device in one copy.

    Raises:
        CastError: NaN among the logits.
    """
    best, tokens = logits.max(dim=-1)
    tokens, undefined = torch.stack((tokens, best.isnan().long())).cpu()  # max propagates NaN
    if undefined.any():
        raise CastError(NAN_LOGITS)
    return tokens


def top_log_probs(logits: Tensor, top_k: int, *, on_host: bool = True) -> tuple[Tensor, Tensor]:
    """Top-K log-probabilities of the full softmax (not renormalised over the K), fp32 [L, K], and token ids.

    Args:
        on_host: return them on the CPU, from another device in one copy.
    """
    scores, tokens = ranked_candidates(logits, top_k)
    # On a CPU a few rows at a time: what fits its cache, and less memory than a process gives back at every call.
    rows = ROWS_AT_ONCE if logits.device.type == "cpu" else len(logits)
    best = torch.cat([part.log_softmax(dim=-1, dtype=torch.float32).amax(dim=-1) for part in logits.split(rows)])
    log_probs = scores - scores[:, :1] + best[:, None]
    return to_host(log_probs, tokens) if on_host else (log_probs, tokens)
