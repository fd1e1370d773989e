"""What a claim comes to, and how it is put together from measured cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cast.experiments.records import DECODE

from .. import paper, tables
from ..data import CHAIN, TREE, Study, Summary
from ..panels import Panel, panel

# A finding lists up to so many cells one by one, more as a range.
LISTED = 8
# What `reaches` asks, in the words of the scorecard.
REACHING = (
    "A gain (or a loss) reaches the paper's number where its 95% interval lies above 0 and either its own value, "
    "rounded as the paper prints, is at least the paper's, or the interval contains the paper's number and is no wider "
    "than that number."
)


class NotMeasured(Exception):
    """A claim that this study cannot judge; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What was measured, and whether it meets the two bars of the claim.

    deviation: how far the paper's number lies from ours in half-widths of our interval, in words; "" where the paper
        prints no number or ours has no interval.
    """

    ours: str
    reproduced: bool
    direction: bool
    settings: tuple[str, ...]
    deviation: str = ""


@dataclass(frozen=True)
class Measurement:
    """One measured number of a setting; NaN ends where it has no 95% interval. ``place``: domain, width, ..."""

    setting: str
    place: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.setting, self.place) if part)


def judged(
    measurements: Sequence[Measurement],
    show: Callable[[Measurement], str],
    *,
    reproduced: bool,
    direction: bool,
    printed: Iterable[float] = (),
) -> Finding:
    """A finding over measurements; ``printed``: the paper's number or numbers, in the unit of the values."""
    return Finding(
        listed(measurements, show),
        bool(reproduced),
        bool(direction),
        tuple(dict.fromkeys(m.setting for m in measurements)),
        deviation(measurements, printed),
    )


def listed(measurements: Sequence[Measurement], show: Callable[[Measurement], str]) -> str:
    if len(measurements) <= LISTED:
        return "; ".join(f"{m.label}: {show(m)}" for m in measurements)
    least, most = (choose(measurements, key=lambda m: m.value) for choose in (min, max))
    if show(least) == show(most):
        return f"{show(least)} in each of {len(measurements)} cells"
    return f"{show(least)} ({least.label}) to {show(most)} ({most.label}) over {len(measurements)} cells"


def deviation(measurements: Iterable[Measurement], printed: Iterable[float]) -> str:
    """The largest distance between ours and the paper's range, in half-widths of our interval on that side."""
    ends = list(printed)
    found = {}
    for m in measurements if ends else ():
        inside = min(ends) <= m.value <= max(ends)
        half = m.high - m.value if m.value < min(ends) else m.value - m.low
        if inside and math.isfinite(m.low):
            found[m.label] = 0.0
        elif half > 0:
            found[m.label] = (m.value - (min(ends) if m.value < min(ends) else max(ends))) / half
    if not found:
        return ""
    label = max(found, key=lambda name: abs(found[name]))
    if found[label] == 0:
        return "0: inside the paper's range" if len(set(ends)) > 1 else "0"
    return f"{found[label]:+.1f} ({label})"


def as_gain(m: Measurement) -> str:
    return tables.gain({"gain": m.value, "gain_low": m.low, "gain_high": m.high})


def as_points(m: Measurement) -> str:
    shown = f"{m.value:+.1f}"
    return (f"{shown} [{m.low:.1f}, {m.high:.1f}]" if math.isfinite(m.low) else shown) + " points"


def as_number(m: Measurement, digits: int = 2) -> str:
    return f"{m.value:.{digits}f}"


def within(values: Iterable[float], printed: Iterable[float], digits: int) -> bool:
    """Whether every value, rounded as the paper prints, lies in the range of the paper's values, ends included."""
    ends = list(printed)
    return all(round(min(ends), digits) <= round(value, digits) <= round(max(ends), digits) for value in values)


def all_above(measurements: Iterable[Measurement], bar: float = 0.0) -> bool:
    """Whether every interval lies above the bar; without an interval nothing can be said."""
    measurements = list(measurements)
    needs_interval(m.low for m in measurements)
    return all(m.low > bar for m in measurements)


def reaches(m: Measurement, bar: float, digits: int) -> bool:
    """Whether an effect, counted from 0, is as large as the paper's: `REACHING`. False without an interval.

    bar: the paper's number, above 0; digits: decimals of the unit to which the paper prints it.
    """
    at_least = round(m.value, digits) >= round(bar, digits)
    informative = m.low <= bar <= m.high and m.high - m.low <= bar
    return m.low > 0 and (at_least or informative)


def no_gain(m: Measurement, bar: float) -> bool:
    """Whether the value is no gain, and its interval ends below one of ``bar``. False without an interval."""
    return m.value <= 0 and m.high < bar


def needs_interval(ends: Iterable[float]) -> None:
    """Refuse to judge where an end of an interval is NaN."""
    ends = list(ends)
    without = sum(math.isnan(end) for end in ends)
    if without:
        raise NotMeasured(f"{without} of {len(ends)} values have no interval: too few prompts")


def printed(identifier: str, within: str = "", **keys: str) -> pd.Series:
    """Numbers of the paper's text under one id, as it prints them."""
    prose = paper.prose()
    chosen = (prose["id"] == identifier) & prose["quantity"].str.contains(within, regex=False)
    for column, value in keys.items():
        chosen &= prose[column] == value
    return prose.loc[chosen, "value"].astype(float)


def measured_rows(study: Study, settings: Iterable[str], experiment: str, schema, **keys: Any) -> pd.DataFrame:
    """Measured rows of an experiment with these values; raises NotMeasured with the reason where there are none."""
    rows = study.records(experiment, schema)
    if len(rows):
        found = rows[rows["setting"].isin(list(settings)) & (rows["status"] == "measured")]
        for column, value in keys.items():
            found = found[found[column] == value]
        if len(found):
            return found.reset_index(drop=True)
    raise NotMeasured(_reasons(study, settings, experiment, rows))


def measured_panel(
    study: Study, settings: Iterable[str], experiment: str, statistic: str = "cell_summary", split: str | None = None
) -> Panel:
    """Cells of a decode experiment (a function of cast.experiments.statistics), of these settings alone."""

    if not len(study.records(experiment, DECODE)):
        raise NotMeasured(f"no {experiment} record")

    def summarised() -> Panel:
        from cast.experiments import statistics  # scipy: only where records are resampled

        return panel(study, experiment, getattr(statistics, statistic), split)

    whole = study.once((experiment, statistic, split), summarised)
    cells = whole.cells
    cells = cells[cells["setting"].isin(list(settings))] if len(cells) else cells
    if not len(cells):
        raise NotMeasured(_reasons(study, settings, experiment, whole.rows))
    return Panel(study, experiment, whole.rows, cells)


def deployed_trees(block: Panel, settings: Iterable[str], **keys: Any) -> pd.DataFrame:
    """Tree cells at the predicted widths (every width where that was not measured) of all domains, with their place."""
    found = [block.deployed(setting, domain, **keys) for setting, domain in block.places if setting in settings]
    found = [cells for cells in found if len(cells)]
    if not found:
        raise NotMeasured(f"no {block.experiment} cell has both the chain and a tree")
    cells = pd.concat(found, ignore_index=True)
    return cells.assign(place=[place(block.study, row) for row in cells.to_dict("records")])


def place(study: Study, cell: Mapping[str, Any]) -> str:
    """Domain and width of a tree's cell, and where that is not the predicted one, that it is not."""
    predicted = study.predicted(cell["setting"]) == cell["budget"]
    return f"{cell['domain']}, N = {cell['budget']}" + ("" if predicted else " (not N*)")


def gains(cells: pd.DataFrame, column: str = "gain") -> list[Measurement]:
    """One measurement for each row of `deployed_trees`, with its interval."""
    return [
        Measurement(row["setting"], row["place"], row[column], row[f"{column}_low"], row[f"{column}_high"])
        for row in cells.to_dict("records")
    ]


def difference(cell: Mapping[str, float], other: Mapping[str, float]) -> tuple[float, float, float]:
    """The gain of a cell minus another's, and its 95% interval from both cells' (Zou and Donner's MOVER).

    As of independent cells, so that of cells that share prompts and rise and fall together it is too wide.
    """
    value = cell["gain"] - other["gain"]
    low = value - math.hypot(cell["gain"] - cell["gain_low"], other["gain_high"] - other["gain"])
    high = value + math.hypot(cell["gain_high"] - cell["gain"], other["gain"] - other["gain_low"])
    return value, low, high


def sweep_cells(study: Study, settings: Iterable[str], width_of) -> dict[tuple[str, str], Summary]:
    """(setting, domain) -> CAST's cell of the width sweep at the width that ``width_of`` gives for the setting."""
    settings = list(settings)
    cells = {}
    for name in settings:
        width = width_of(name)
        for domain in study.measured_domains(name):
            cell = None if width is None else study.cell(name, domain, TREE, width)
            if cell is not None and pd.notna(cell["gain"]):
                cells[name, domain] = cell
    if not cells:
        raise NotMeasured(unmeasured(study, settings))
    return cells


def chain_cell(study: Study, key: tuple[str, str]) -> Summary:
    return study.cell(*key, CHAIN, study.chain_budget(key[0]))


def unmeasured(study: Study, settings: Iterable[str]) -> str:
    """Why the width sweep of these settings has no number."""
    return "; ".join(f"{name}: {study.reason(name)}" for name in settings)


def as_measurements(cells: dict[tuple[str, str], Summary], column: str = "gain") -> list[Measurement]:
    return [
        Measurement(setting, domain, cell[column], cell[f"{column}_low"], cell[f"{column}_high"])
        for (setting, domain), cell in cells.items()
    ]


def _reasons(study: Study, settings: Iterable[str], experiment: str, rows: pd.DataFrame) -> str:
    return "; ".join(dict.fromkeys(study.reason(name, experiment, rows) for name in settings))
