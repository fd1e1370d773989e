"""The latency curve: measured verification time against the number of packed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from cast.errors import CastError

SlopeEstimator = Literal["least_squares", "endpoints"]


class LatencyCurve:
    """Verification latency ``l_tgt(n)`` at measured packed-token counts ``n = roots + N``.

    Args:
        packed_tokens: ``[P]`` packed-token counts, any order, P >= 2, distinct and positive.
        latency_ms: ``[P]`` latency of one verification call in ms (the probe's medians), positive.

    Attributes:
        packed_tokens, latency_ms: float64 ``[P]``, read-only, sorted by packed tokens.

    Raises:
        CastError: when lengths differ, fewer than two points are given, a count repeats, or a value is not
            finite and positive.
    """

    def __init__(self, packed_tokens: Sequence[float] | ArrayLike, latency_ms: Sequence[float] | ArrayLike):
        counts = _positive_vector("packed_tokens", packed_tokens)
        latency = _positive_vector("latency_ms", latency_ms)
        if len(counts) != len(latency):
            raise CastError(
                f"latency curve: {len(counts)} packed-token counts but {len(latency)} latencies; "
                "each count needs exactly one latency"
            )
        if len(counts) < 2:
            raise CastError(f"latency curve: {len(counts)} point given; at least two are needed")
        order = np.argsort(counts, kind="stable")
        self.packed_tokens, self.latency_ms = counts[order], latency[order]
        repeated = self.packed_tokens[1:][np.diff(self.packed_tokens) == 0]
        if len(repeated):
            raise CastError(
                f"latency curve: packed-token count {repeated[0]:g} appears twice; give one latency per "
                "count, the median of its timed iterations"
            )
        self.packed_tokens.flags.writeable = self.latency_ms.flags.writeable = False

    def __repr__(self) -> str:
        low, high = self.packed_tokens[[0, -1]]
        return f"LatencyCurve({len(self.packed_tokens)} points, n = {low:g}..{high:g})"

    def at(self, n: ArrayLike) -> float | np.ndarray:
        """Latency in ms at ``n`` packed tokens (a number or an array), linear between measured points.

        Raises:
            CastError: when ``n`` lies outside the measured range; the curve is never extrapolated.
        """
        wanted = np.asarray(n, dtype=np.float64)
        low, high = self.packed_tokens[[0, -1]]
        outside = wanted[~((wanted >= low) & (wanted <= high))]
        if outside.size:
            raise CastError(
                f"latency at {outside.flat[0]:g} packed tokens was not measured; the probe covers {low:g} to {high:g}"
            )
        latency = np.interp(wanted, self.packed_tokens, self.latency_ms)
        return float(latency) if wanted.ndim == 0 else latency

    def slope(self, lo: float, hi: float, estimator: SlopeEstimator = "least_squares") -> float:
        """Cost of one packed token in ms, from the measured points with ``lo <= n <= hi``; see `fit`."""
        return self.fit(lo, hi, estimator)[1]

    def fit(self, lo: float, hi: float, estimator: SlopeEstimator = "least_squares") -> tuple[float, float]:
        """The line ``c0 + c1 n`` through the measured points with ``lo <= n <= hi``.

        Args:
            estimator: ``"least_squares"`` over all of them (the paper's Section 3.1), or ``"endpoints"``, the
                line through the first and the last of them (the paper's Table 6).

        Returns:
            ``(intercept c0 in ms, slope c1 in ms per packed token)``; the slope may be negative.

        Raises:
            CastError: when fewer than two measured points lie in the range.
        """
        check_choice("slope estimator", estimator, SlopeEstimator)
        inside = (self.packed_tokens >= lo) & (self.packed_tokens <= hi)
        n, latency = self.packed_tokens[inside], self.latency_ms[inside]
        if len(n) < 2:
            raise CastError(
                f"cost slope over {lo:g} to {hi:g} packed tokens: the probe has {len(n)} point(s) there; "
                "at least two are needed; probe more packed_tokens"
            )
        if estimator == "endpoints":
            n, latency = n[[0, -1]], latency[[0, -1]]
        offset = n - n.mean()  # the least-squares line; with two points the line through both
        slope = offset @ (latency - latency.mean()) / (offset @ offset)
        return float(latency.mean() - slope * n.mean()), float(slope)


def check_choice(what: str, value: object, choices: object) -> None:
    """Raise `CastError` unless ``value`` is one of the strings of a ``Literal`` type."""
    allowed = get_args(choices)
    if value not in allowed:
        raise CastError(f"{what} {value!r} is unknown; choose one of {', '.join(allowed)}")


def _positive_vector(name: str, values: ArrayLike) -> np.ndarray:
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise CastError(f"latency curve: {name} must be a list of numbers") from None
    if vector.ndim != 1:
        raise CastError(f"latency curve: {name} has {vector.ndim} dimensions; a flat list is needed")
    bad = np.flatnonzero(~(np.isfinite(vector) & (vector > 0)))
    if len(bad):
        raise CastError(f"latency curve: {name}[{bad[0]}] is {vector[bad[0]]:g}; finite positive values are needed")
    return vector
