"""The mass curve: what the N-th best candidate node is worth, and what the best N are worth together."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cast.errors import CastError

# Masses come from float32 softmax products: this much disorder or excess over 1 is rounding, not a bug.
_FLOAT_NOISE = 1e-6


class MassCurve:
    """Plug-in masses ``rho_(1) >= rho_(2) >= ...`` of the candidate nodes, averaged over rounds.

    ``g(N)``, the sum of the N largest, is the expected accepted length of the best tree of N nodes; it is
    concave because the masses do not increase (Theorem 2). For B requests that share a budget the masses are
    those of the merged forest (Proposition 2).

    Args:
        masses: ``[M]`` masses in [0, 1], sorted from large to small, M >= 1.

    Attributes:
        masses: float64 ``[M]``, read-only.

    Raises:
        CastError: when a mass is not a probability or larger than the one before it.
    """

    def __init__(self, masses: Sequence[float] | ArrayLike):
        values = _mass_array(masses, dimensions=1)
        rising = np.flatnonzero(np.diff(values) > _FLOAT_NOISE)
        if len(rising):
            i = int(rising[0])
            raise CastError(
                f"mass curve: mass {i + 2} ({values[i + 1]:.6g}) is larger than mass {i + 1} "
                f"({values[i]:.6g}); sort masses from large to small"
            )
        # Rounding noise is removed, so that g is exactly concave and the stopping rule exact.
        self.masses = np.minimum.accumulate(values)
        self.cumulative = np.concatenate([[0.0], np.cumsum(self.masses)])  # g(0), g(1), ..., g(M)
        self.masses.flags.writeable = self.cumulative.flags.writeable = False

    @classmethod
    def from_rounds(cls, masses: ArrayLike) -> MassCurve:
        """The mean curve of ``[rounds, M]`` logged masses; each round is sorted before averaging.

        A round whose universe has fewer than M nodes is padded with zeros by the log.
        """
        values = _mass_array(masses, dimensions=2)
        return cls(-np.sort(-values, axis=1).mean(axis=0))

    def __len__(self) -> int:
        return len(self.masses)

    def __repr__(self) -> str:
        return f"MassCurve({len(self)} masses, g = {self.cumulative[-1]:.3f})"

    def g(self, nodes: int) -> float:
        """Expected accepted length of the best tree of ``nodes`` nodes; ``g(0) = 0``."""
        return float(self.cumulative[self._index(nodes, smallest=0)])

    def mass(self, nodes: int) -> float:
        """Mass of the ``nodes``-th best node, counted from 1."""
        return float(self.masses[self._index(nodes, smallest=1) - 1])

    def _index(self, nodes: int, smallest: int) -> int:
        try:
            index = operator.index(nodes)
        except TypeError:
            raise CastError(f"mass curve: a node count is a whole number, not {nodes!r}") from None
        if not smallest <= index <= len(self):
            raise CastError(
                f"mass curve: node {index} asked, but {len(self)} masses are known; "
                f"ask {smallest} to {len(self)} or log more masses"
            )
        return index


def _mass_array(masses: ArrayLike, dimensions: int) -> np.ndarray:
    try:
        values = np.array(masses, dtype=np.float64)
    except (TypeError, ValueError):
        raise CastError("mass curve: masses must be numbers") from None
    if values.ndim != dimensions or values.size == 0:
        shape = "[M]" if dimensions == 1 else "[rounds, M]"
        raise CastError(f"mass curve: masses have shape {list(values.shape)}; a filled {shape} is needed")
    bad = ~((values >= 0) & (values <= 1 + _FLOAT_NOISE))
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        index = ", ".join(map(str, where))
        raise CastError(f"mass curve: masses[{index}] is {values[where]:g}; a mass is between 0 and 1")
    return np.minimum(values, 1.0)
