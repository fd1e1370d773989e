"""The interface of a method: what it needs from the target, what it caches, how it drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from cast.decode.timer import Trace
from cast.models import Pair
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
