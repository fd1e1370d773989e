"""What the latency probe says: the cost curve of a setting and the slope of its linear part."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from cast.errors import CastError
from cast.width import LatencyCurve

from .data import Study

SLOPE_RANGE = (16, 128)
ESTIMATORS = {"least_squares": "slope, least squares", "endpoints": "slope, endpoints"}


def slopes(packed_tokens: Sequence[float], latency_ms: Sequence[float]) -> dict[str, float | None]:
    """Cost slope over n in [16, 128] by each estimator, ms per token; None below two points."""
    result: dict[str, float | None] = {}
    for estimator in ESTIMATORS:
        try:
            result[estimator] = LatencyCurve(packed_tokens, latency_ms).slope(*SLOPE_RANGE, estimator=estimator)
        except CastError:
            result[estimator] = None
    return result


def verification_latency(study: Study) -> pd.DataFrame:
    """Median and quartiles of the target forward by setting, prefix and packed count, in ms."""
    rows = study.latency
    if len(rows):
        rows = rows[(rows["status"] == "measured") & (rows["component"] == "target_forward")]
    if not len(rows):
        return pd.DataFrame(columns=["setting", "prefix_tokens", "packed_tokens", "q25", "median", "q75", "count"])
    grouped = rows.groupby(["setting", "prefix_tokens", "packed_tokens"])["latency_ms"]
    quartiles = grouped.quantile([0.25, 0.5, 0.75]).unstack()
    quartiles.columns = ["q25", "median", "q75"]
    return quartiles.assign(count=grouped.size()).reset_index()
