"""Comparisons other than with the chain of the same run, by the same statistics: paired by prompt, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..data import CHAIN, TREE, Study
from ..panels import Panel
from .finding import Measurement

# What tells the rows of one cell from others'; only a panel split by block size has the last.
CELL = ("setting", "domain", "method", "budget", "drafter", "block_size")


def gain_over(rows: pd.DataFrame, base: pd.DataFrame) -> tuple[float, float, float]:
    """Time of ``base`` over that of ``rows``, minus one, mean over domains, and its 95% interval paired by prompt.

    rows, base: DECODE rows of one setting, each of one method, width and drafter.
    """
    from cast.experiments.statistics import cell_summary, setting_summary  # scipy: only where records are resampled

    # The statistics compare a tree with the chain: base takes the chain's place.
    decode = pd.concat([rows.assign(method=TREE), base.assign(method=CHAIN)], ignore_index=True)
    summary = setting_summary(cell_summary(decode), decode)
    found = summary[summary["method"] == TREE].iloc[0]
    return float(found["gain"]), float(found["gain_low"]), float(found["gain_high"])


def cell_gain(block: Panel, cell: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float, float, float]:
    """`gain_over` of two cells of a panel."""
    return gain_over(_rows(block, cell), _rows(block, base))


def behind(study: Study, name: str, width: int, other: int) -> Measurement:
    """Points of mean gain that a width lies behind another, at least 0, with its 95% interval paired by prompt."""
    from cast.experiments.statistics import width_gap  # scipy: only where records are resampled

    domains = [
        domain
        for domain in study.measured_domains(name)
        if all(study.cell(name, domain, TREE, n) is not None for n in (width, other))
    ]
    rows = study.decode[(study.decode["setting"] == name) & study.decode["domain"].isin(domains)]
    rows = rows[(rows["method"] == CHAIN) | ((rows["method"] == TREE) & rows["budget"].isin([width, other]))]
    gap = width_gap(rows, {name: width}).iloc[0]
    # The gap to the better of the two is at most 0, and so are its ends: a loss that may be none reaches from 0.
    loss, low, high = (0.0 - gap[end] for end in ("gap_points", "gap_high", "gap_low"))
    return Measurement(name, f"N = {width} against {other}", loss, low, high)


def ahead(study: Study, name: str, width: int, other: int) -> Measurement:
    """Points of mean gain from another width to this one, below 0 where they are lost, with their paired interval."""
    # `behind` is cut off at 0: one direction has the part above it, the other the part below.
    lead, loss = behind(study, name, other, width), behind(study, name, width, other)
    place = f"N = {other} to {width}"
    return Measurement(name, place, lead.value - loss.value, lead.low - loss.high, lead.high - loss.low)


def _rows(block: Panel, cell: Mapping[str, Any]) -> pd.DataFrame:
    rows = block.rows
    for column in CELL:
        if column in cell:
            rows = rows[rows[column] == cell[column]]
    return rows
