"""Where the samplers' randomness comes from: one stream of uniforms for a seed, whatever the device."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from cast.errors import CastError


class Chance:
    """Random decisions, each from the next uniform of one stream.

    The stream lives on the host, so that a seed means the same draws on every device, and a draw is the
    inverse of a distribution function, so that it costs one pass over the vocabulary.
    """

    _CHUNK = 256

    def __init__(self, seed: int):
        self._generator = torch.Generator().manual_seed(seed)
        self._ahead: list[float] = []

    def uniform(self) -> float:
        """From [0, 1), 53 bits."""
        if not self._ahead:
            self._ahead = torch.rand(self._CHUNK, generator=self._generator, dtype=torch.float64).tolist()[::-1]
        return self._ahead.pop()

    def happens(self, probability: float) -> bool:
        """True with this probability; always from 1 on, never at 0."""
        return self.uniform() < probability

    def index(self, weights: Sequence[float]) -> int:
        """An index, with probability in proportion to its weight; the weights must not all be 0."""
        cumulative = list(itertools.accumulate(weights))
        return min(bisect.bisect_right(cumulative, self.uniform() * cumulative[-1]), _last_positive(weights))

    def token(self, cumulative: Tensor) -> int:
        """A token, from the running sums float64 [V] of the weights; one copy from the device.

        Raises:
            CastError: the weights hold NaN or are all 0.
        """
        total = cumulative[-1:]
        # The product may round up to the total itself, which would pass the last token of any weight.
        at = torch.minimum(total * self.uniform(), torch.nextafter(total, torch.zeros_like(total)))
        token, total = torch.cat((torch.searchsorted(cumulative, at, right=True), total)).tolist()
        refuse_undefined(total)
        return int(token)


def refuse_undefined(total: float) -> None:
    """Refuse weights whose sum is NaN or 0.

    Raises:
        CastError: naming what makes them so.
    """
    if not total > 0:
        raise CastError(
            "no token can be drawn: the target returned NaN logits (check its checkpoint and dtype), "
            "or the logits processor banned every token"
        )


def _last_positive(weights: Sequence[float]) -> int:
    return max(index for index, weight in enumerate(weights) if weight > 0)
