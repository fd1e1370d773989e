"""The marginal stopping rule: the width to deploy, from scores and costs alone (Theorem 2, Proposition 3)."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cast.errors import CastError
from cast.width.latency import LatencyCurve, SlopeEstimator, check_choice
from cast.width.mass import MassCurve

Cost = Literal["affine", "measured"]
Rounding = Literal["up", "best"]

# Packed-token range of the cost fit (the paper's Section 3.1).
FIT_RANGE = (16, 128)


@dataclass(frozen=True)
class WidthPrediction:
    """A predicted width and what it was derived from.

    Attributes:
        width: the allowed width to deploy, N*.
        crossing: first N at which adding node N + 1 would reduce modelled throughput; the number of known
            masses when that never happens. None under ``cost="measured"``.
        threshold: the exchange rate there, ``(g + roots) / l * c1``: the mass the next node had to reach.
            None under ``cost="measured"``.
        throughput: allowed width -> modelled throughput ``(g(N) + roots) / l(N)`` in tokens per ms.
        slope_ms_per_token, intercept_ms: the affine cost ``c0 + c1 n`` the rule used (slope 0 where the fit
            was negative). None under ``cost="measured"``.
    """

    width: int
    crossing: int | None
    threshold: float | None
    throughput: dict[int, float]
    slope_ms_per_token: float | None
    intercept_ms: float | None


def predict_width(
    mass_curve: MassCurve,
    latency_curve: LatencyCurve,
    *,
    draft_ms: float,
    overhead_ms: float = 0.0,
    grid: Iterable[int] | None = None,
    cost: Cost = "affine",
    rounding: Rounding = "up",
    slope: SlopeEstimator = "least_squares",
    roots: int = 1,
) -> WidthPrediction:
    """Predict the tree width that maximises tokens per ms, without timing any decoding.

    The modelled round of N nodes commits ``g(N) + roots`` tokens and takes
    ``l(N) = draft_ms + overhead_ms + l_tgt(roots + N)``.

    * ``cost="affine"``: ``l_tgt(n) = c0 + c1 n``, fitted over the measured n in [16, 128]. Nodes are added
      while ``mass(N + 1) >= (g(N) + roots) / l(N) * c1``; the crossing is the first N at which this fails,
      by Theorem 2 a maximiser. The search ends with the masses. A negative fitted slope counts as zero at the
      mean measured latency of the range: then cost never caps the width.
    * ``cost="measured"``: the allowed width with the largest modelled throughput on the interpolated measured
      curve. First failure is not used there: one transient in the probe would stop it.

    Args:
        mass_curve: masses of the candidates; for ``roots`` > 1 those of the merged forest (Proposition 3).
        latency_curve: verification latency in ms against packed tokens.
        draft_ms: time of one drafter call in ms.
        overhead_ms: time of a round outside both forwards in ms.
        grid: allowed widths in nodes (all roots together). None allows every integer from 1 to the number of
            known masses or the largest measured n minus ``roots``, whichever is smaller; under
            ``cost="measured"`` from the smallest measured n on.
        rounding: from the crossing to an allowed width: ``"up"`` takes the next allowed width at or above it
            (the largest one when it lies beyond), ``"best"`` the allowed width with the largest modelled
            throughput. Without effect under ``cost="measured"``.
        slope: estimator of c1, see `LatencyCurve.fit`. Without effect under ``cost="measured"``.
        roots: always-verified root tokens, one for each request that shares the budget.

    Of equal throughputs the narrower width wins.

    Raises:
        CastError: for a bad argument, a width beyond the known masses, or (``cost="measured"``) outside the
            measured latency range.
    """
    check_choice("cost", cost, Cost)
    check_choice("rounding", rounding, Rounding)
    check_choice("slope estimator", slope, SlopeEstimator)
    fixed_ms = _non_negative_ms("draft_ms", draft_ms) + _non_negative_ms("overhead_ms", overhead_ms)
    roots = _whole_number("roots", roots)
    if roots < 1:
        raise CastError(f"roots is {roots}; at least one root is always verified")
    allowed = _allowed_widths(grid, mass_curve, latency_curve, cost, roots)
    committed = mass_curve.cumulative + roots  # tokens per round of N = 0, 1, ..., M nodes

    if cost == "measured":
        round_ms = fixed_ms + latency_curve.at(roots + allowed)
        throughput = committed[allowed] / round_ms
        return WidthPrediction(
            width=_best(allowed, throughput),
            crossing=None,
            threshold=None,
            throughput=_by_width(allowed, throughput),
            slope_ms_per_token=None,
            intercept_ms=None,
        )

    intercept, per_token = _affine_cost(latency_curve, slope)
    round_ms = fixed_ms + intercept + per_token * (roots + np.arange(len(committed)))
    if round_ms[0] <= 0:
        raise CastError(
            f"the fitted cost gives a round of {round_ms[0]:.3g} ms for the root alone; a positive time is "
            "needed (probe more packed-token counts between 16 and 128, or use cost=measured)"
        )
    rate = committed / round_ms * per_token
    failing = np.flatnonzero(mass_curve.masses < rate[:-1])
    crossing = int(failing[0]) if len(failing) else len(mass_curve)
    throughput = committed[allowed] / round_ms[allowed]
    if rounding == "best":
        width = _best(allowed, throughput)
    else:
        width = int(allowed[min(np.searchsorted(allowed, crossing), len(allowed) - 1)])
    return WidthPrediction(
        width=width,
        crossing=crossing,
        threshold=float(rate[crossing]),
        throughput=_by_width(allowed, throughput),
        slope_ms_per_token=per_token,
        intercept_ms=intercept,
    )


def _affine_cost(curve: LatencyCurve, estimator: SlopeEstimator) -> tuple[float, float]:
    """``(c0, c1)`` with c1 >= 0: Theorem 2 assumes a cost that does not fall with width."""
    intercept, per_token = curve.fit(*FIT_RANGE, estimator)
    if per_token >= 0:
        return intercept, per_token
    inside = (curve.packed_tokens >= FIT_RANGE[0]) & (curve.packed_tokens <= FIT_RANGE[1])
    return float(curve.latency_ms[inside].mean()), 0.0


def _allowed_widths(
    grid: Iterable[int] | None, masses: MassCurve, latency: LatencyCurve, cost: Cost, roots: int
) -> np.ndarray:
    """Sorted distinct widths, int64; each has a mass and, under measured cost, a latency."""
    smallest_measured = math.ceil(latency.packed_tokens[0]) - roots
    largest_measured = math.floor(latency.packed_tokens[-1]) - roots
    if grid is None:
        first = max(1, smallest_measured) if cost == "measured" else 1
        last = min(len(masses), largest_measured)
        if last < first:
            raise CastError(
                f"no width has both a mass and a measured latency: {len(masses)} masses, measured widths "
                f"{smallest_measured} to {largest_measured}; log more masses or probe other counts"
            )
        return np.arange(first, last + 1)
    if not isinstance(grid, Iterable):
        raise CastError(f"grid must be a list of allowed widths, not {grid!r}")
    widths = sorted({_whole_number("an allowed width", width) for width in grid})
    if not widths:
        raise CastError("the grid of allowed widths is empty; give at least one width")
    if widths[0] < 1:
        raise CastError(f"allowed width {widths[0]} is not possible; a tree has at least one node")
    if widths[-1] > len(masses):
        raise CastError(
            f"allowed width {widths[-1]} lies beyond the mass curve of {len(masses)} masses; "
            "log more masses or leave the width out"
        )
    if cost == "measured":
        for width in widths:
            if not smallest_measured <= width <= largest_measured:
                raise CastError(
                    f"allowed width {width} lies outside the measured latency range of widths "
                    f"{smallest_measured} to {largest_measured}; probe {width + roots} packed tokens "
                    "or leave the width out"
                )
    return np.array(widths)


def _best(allowed: np.ndarray, throughput: np.ndarray) -> int:
    return int(allowed[np.argmax(throughput)])


def _by_width(allowed: np.ndarray, throughput: np.ndarray) -> dict[int, float]:
    return dict(zip(allowed.tolist(), throughput.tolist(), strict=True))


def _non_negative_ms(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise CastError(f"{name} must be a number of ms, not {value!r}") from None
    if not (math.isfinite(number) and number >= 0):
        raise CastError(f"{name} is {number:g}; a finite time of at least 0 ms is needed")
    return number


def _whole_number(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise CastError(f"{name} must be a whole number, not {value!r}") from None
