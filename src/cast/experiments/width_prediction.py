"""From a latency probe and a score log to the width to deploy. Reads no decode timing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from cast.errors import CastError
from cast.width import LatencyCurve, MassCurve, predict_width

MODES = (
    *itertools.product(("affine",), ("up", "best"), ("least_squares", "endpoints")),
    ("measured", "best", None),
)
"""(cost, rounding, slope estimator) of every mode that is recorded."""


def predict(
    latency: pd.DataFrame,
    masses: np.ndarray,
    *,
    allowed_widths: Sequence[int],
    deployed: tuple[str, str, str | None],
    overhead_ms: float = 0.0,
) -> dict[str, Any]:
    """The predicted width in every mode, with the inputs each prediction used.

    Args:
        latency: LATENCY records of one setting.
        masses: [M], the mass curve.
        allowed_widths: widths N a deployment may use.
        deployed: the mode (one of `MODES`) whose width is N*.
        overhead_ms: the loop's own cost of a round, on top of draft and verification.

    Returns:
        `width` (N*), `default` (its index in `predictions`), `predictions`, and the inputs: draft and
        overhead ms, prefix tokens, allowed widths, latency medians and interquartile ranges, masses.

    Raises:
        CastError: the probe failed, has no draft or several prefixes, or the rule refuses its inputs.
    """
    if deployed not in MODES:
        raise CastError(f"no such mode of the width rule: {deployed}; modes: {', '.join(map(str, MODES))}")
    default = MODES.index(deployed)
    measured = latency[latency["status"] == "measured"]
    if len(measured) < len(latency) or measured.empty:
        reason = next(iter(latency.loc[latency["status"] != "measured", "reason"]), "no rows")
        raise CastError(f"no width can be predicted: the latency probe failed ({reason})")
    prefixes = sorted(measured["prefix_tokens"].unique())
    if len(prefixes) > 1:
        raise CastError(
            f"no width can be predicted: the latency probe has prefixes of {', '.join(map(str, prefixes))} tokens; "
            "give a probe of one"
        )
    by_size = measured.groupby(["component", "packed_tokens"])["latency_ms"]
    quartiles = by_size.quantile([0.25, 0.5, 0.75]).unstack()
    if "draft" not in quartiles.index.get_level_values("component"):
        raise CastError("no width can be predicted: the latency probe timed no draft; probe a pair with a drafter")
    draft_ms = float(quartiles.loc["draft", 0.5].iloc[0])
    forward = quartiles.loc["target_forward"]
    packed, medians = [int(n) for n in forward.index], [float(ms) for ms in forward[0.5]]
    curve, mass_curve = LatencyCurve(packed, medians), MassCurve(masses)

    predictions = []
    for cost, rounding, estimator in MODES:
        mode = {"cost": cost, "rounding": rounding, "slope_estimator": estimator}
        try:
            prediction = predict_width(
                mass_curve,
                curve,
                draft_ms=draft_ms,
                overhead_ms=overhead_ms,
                grid=list(allowed_widths),
                cost=cost,
                rounding=rounding,
                **({} if estimator is None else {"slope": estimator}),
            )
        except CastError as error:
            # A curve that one model of the cost cannot describe leaves the other modes their predictions.
            if (cost, rounding, estimator) == deployed:
                raise
            predictions.append({**mode, "width": None, "reason": str(error)})
            continue
        fields = asdict(prediction)
        fields["throughput"] = {str(width): value for width, value in prediction.throughput.items()}
        predictions.append({**mode, **fields})
    return {
        "width": predictions[default]["width"],
        "default": default,
        "predictions": predictions,
        "draft_ms": draft_ms,
        "overhead_ms": overhead_ms,
        "prefix_tokens": int(prefixes[0]),
        "allowed_widths": list(allowed_widths),
        "latency": {
            "packed_tokens": packed,
            "latency_ms": medians,
            "iqr_ms": [float(ms) for ms in forward[0.75] - forward[0.25]],
        },
        "masses": [float(mass) for mass in masses],
    }
