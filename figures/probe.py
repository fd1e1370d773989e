"""What the latency probe says: the cost curve of a setting and the slope of its linear part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from cast.errors import CastError
from cast.width import LatencyCurve

from . import tables
from .data import Study
from .panels import settings_of

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
    return forward_latency(study.latency)


def forward_latency(rows: pd.DataFrame) -> pd.DataFrame:
    """The same of any rows of LATENCY or HYBRID_LATENCY; failed ones are left out."""
    if len(rows):
        rows = rows[(rows["status"] == "measured") & (rows["component"] == "target_forward")]
    if not len(rows):
        return pd.DataFrame(columns=["setting", "prefix_tokens", "packed_tokens", "q25", "median", "q75", "count"])
    grouped = rows.groupby(["setting", "prefix_tokens", "packed_tokens"])["latency_ms"]
    quartiles = grouped.quantile([0.25, 0.5, 0.75]).unstack()
    quartiles.columns = ["q25", "median", "q75"]
    return quartiles.assign(count=grouped.size()).reset_index()


@dataclass(frozen=True)
class Curve:
    """The latencies of a setting behind one prefix, in a table that lists several.

    prefix_tokens: None where not even the prefixes are known.
    points: packed tokens -> median, q25, q75 (ms) and count of iterations.
    reasons: packed tokens -> why not measured.
    """

    setting: str
    prefix_tokens: int | None
    points: dict[int, dict[str, float]]
    reasons: dict[int, str]

    @property
    def medians(self) -> dict[int, float]:
        return {n: point["median"] for n, point in self.points.items()}

    @property
    def note(self) -> str:
        """Why nothing was measured; "" where something was."""
        return "" if self.points else f"not measured: {'; '.join(dict.fromkeys(self.reasons.values()))}"


def curves(study: Study, experiment: str, rows: pd.DataFrame, packed_tokens: Sequence[int]) -> Iterator[Curve]:
    """Every setting and prefix of an experiment, in the order of tables, by these packed counts and its own."""
    measured = forward_latency(rows)
    for setting in settings_of(study, rows):
        prefixes = sorted(rows.loc[rows["setting"] == setting, "prefix_tokens"].unique()) if len(rows) else [None]
        for prefix in prefixes:
            mine = measured[(measured["setting"] == setting) & (measured["prefix_tokens"] == prefix)]
            points = {int(n): point for n, point in mine.set_index("packed_tokens").to_dict("index").items()}
            keys = {} if prefix is None else {"prefix_tokens": prefix}
            reasons = {
                n: study.reason(setting, experiment, rows, packed_tokens=n if len(rows) else None, **keys)
                for n in packed_tokens
                if n not in points
            }
            yield Curve(setting, None if prefix is None else int(prefix), points, reasons)


def latency_cells(
    curve: Curve, packed_tokens: Sequence[int], base: int | None = None, digits: int = 2
) -> list[tables.Cell | str]:
    """One cell for each packed count: ms, with the ratio to the pack of ``base`` tokens where that was measured."""
    medians = curve.medians

    def shown(n: int) -> tables.Cell | str:
        if n not in medians:
            return tables.missing(curve.reasons[n]) if n in curve.reasons else tables.NONE
        ratio = f" ({medians[n] / medians[base]:.2f}×)" if base in medians else ""
        return tables.number(medians[n], digits) + ratio

    return [shown(n) for n in packed_tokens]


def paper_curves(printed: pd.DataFrame) -> Iterator[Curve]:
    """The paper's rows (setting, prefix_tokens, packed_tokens, latency_ms) as curves, in its order."""
    for (setting, prefix), rows in printed.groupby(["setting", "prefix_tokens"], sort=False):
        points = dict(zip(rows["packed_tokens"].astype(int), rows["latency_ms"], strict=True))
        yield Curve(setting, int(prefix), {n: {"median": value} for n, value in points.items()}, {})


def slope_cells(curve: Curve) -> list[str]:
    """The cost slope of a curve by each estimator, ms per token."""
    found = slopes(list(curve.medians), list(curve.medians.values()))
    return [tables.NONE if value is None else f"{value:.4f}" for value in found.values()]


def curve_records(source: str, curve: Curve) -> list[dict]:
    """A curve as tidy rows: its latencies with quartiles, its reasons, its slopes."""
    place = {"source": source, "setting": curve.setting, "prefix_tokens": curve.prefix_tokens}
    found = [
        place
        | {"quantity": "latency_ms", "packed_tokens": n, "value": point["median"]}
        | {"q25": point.get("q25"), "q75": point.get("q75"), "iterations": point.get("count")}
        for n, point in curve.points.items()
    ]
    found += [
        place | {"quantity": "latency_ms", "packed_tokens": n, "note": f"not measured: {reason}"}
        for n, reason in curve.reasons.items()
    ]
    measured = slopes(list(curve.medians), list(curve.medians.values()))
    found += [place | {"quantity": f"slope_{name}_ms_per_token", "value": value} for name, value in measured.items()]
    return found
