"""The interface of a method: what it needs from the target, what it caches, how it drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from cast.decode.timer import Trace
from cast.errors import CastError
from cast.models import DraftHead, Pair
from cast.models.layers import on_device
from cast.trees import CandidateTree


class Proposer(ABC):
    """Turns the state of a round into a candidate tree. One instance serves one generation.

    The loop calls `start` once, then before every `propose` it calls `observe` with the tokens that are new in
    the sequence.
    """

    taps: Sequence[int] = ()
    """Target layers whose output hidden states `propose` wants for every committed position, ascending."""

    lookahead: int = 1
    """Cache entries needed beyond the committed sequence: the largest pack or block."""

    @property
    def packs(self) -> Sequence[int]:
        """Sizes N + 1 of the packs it may ask for; an engine of fixed shapes captures these before the clock runs."""
        return (self.lookahead,)

    passes: int = 0
    """Drafter passes so far."""

    def start(self, capacity: int) -> None:  # noqa: B027 (optional: plain decoding allocates nothing)
        """Allocate for a sequence of `capacity` entries, lookahead included."""

    def observe(self, tokens: list[int]) -> None:  # noqa: B027 (optional: a block drafter reads features only)
        """Learn the tokens that joined the sequence: prompt and first pending root, then each round's R."""

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

    def __init__(self, pair: Pair | None = None):
        """Nothing to set up."""

    def propose(self, features, root, trace=None) -> None:
        return None


class FeatureProposer(Proposer):
    """Shared by the methods whose head pairs the features of a position with the token one later."""

    head: type[DraftHead]
    """The kind of head the method needs."""

    def __init__(self, pair: Pair):
        self.target, self.drafter = pair.target, drafter_of(pair, self.head)
        self.taps = self.drafter.tapped_layers(pair.target.layers)
        self.observed: list[int] = []

    def observe(self, tokens: list[int]) -> None:
        self.observed = tokens

    def paired_tokens(self, features: Tensor) -> Tensor:
        """int64 [c]: for each new row of features, the token after it. The prompt's first token follows none."""
        return on_device(self.observed[-len(features) :], features.device)


def universe(top_k: int, length: int, beam: int | None = None) -> int:
    """Candidates of at most `length` tokens, `top_k` after each; of a level its `beam` best are extended, or all."""
    candidates, level = 0, 1
    for _ in range(length):
        level = top_k * (level if beam is None else min(level, beam))
        candidates += level
    return candidates


def drafter_of(pair: Pair, kind: type[DraftHead]) -> DraftHead:
    """The pair's drafter, if it is of that kind.

    Raises:
        CastError: none, or one of another kind.
    """
    if isinstance(pair.drafter, kind):
        return pair.drafter
    held = "has none" if pair.drafter is None else f"holds one of kind {pair.drafter.kind}"
    raise CastError(
        f"this method needs a drafter of kind {kind.kind} and the pair {held}: load_pair(target, drafter) or "
        "pair.with_drafter(drafter)"
    )
