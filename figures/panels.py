"""Decode experiments other than the width sweep: their rows, and which cells a table lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from cast.experiments.records import DECODE

from . import paper, tables
from .data import DOMAIN_ORDER, PLAIN, TREE, Study

REPEATED, SAMPLED = "repeated_panel", "sampled_decoding"


@dataclass(frozen=True)
class Panel:
    """The records of one decode experiment, and a summary of its measured cells.

    rows: DECODE rows, failed ones included; empty where the experiment left no record.
    cells: one row per setting, domain, method, budget and drafter, and per value of ``split`` where a protocol has
        several.
    """

    study: Study
    experiment: str
    rows: pd.DataFrame
    cells: pd.DataFrame

    @property
    def places(self) -> list[tuple[str, str]]:
        """Settings and domains in the order of tables; those of the study where the experiment has no record."""
        return places(self.study, self.rows)

    def trees(self, setting: str, domain: str, **keys) -> pd.DataFrame:
        """The measured tree cells with a gain, by width."""
        if not len(self.cells):
            return self.cells
        rows = self.of(setting, domain, method=TREE, **keys)
        return rows[rows["gain"].notna()].sort_values("budget")

    def deployed(self, setting: str, domain: str, **keys) -> pd.DataFrame:
        """The tree cell at the predicted width; every tree cell where that was not measured here."""
        rows = self.trees(setting, domain, **keys)
        at_predicted = rows[rows["budget"] == self.study.predicted(setting)] if len(rows) else rows
        return at_predicted if len(at_predicted) else rows

    def of(self, setting: str, domain: str, **keys) -> pd.DataFrame:
        """The cells with these values."""
        rows = self.cells
        for column, value in {"setting": setting, "domain": domain, **keys}.items():
            if len(rows):
                rows = rows[rows[column] == value]
        return rows

    def reason(self, setting: str, domain: str, **keys) -> str:
        """Why a cell is not measured."""
        return self.study.reason(setting, self.experiment, self.rows, domain=domain or None, **keys)

    def missing(self, setting: str, domain: str, **keys) -> tables.Cell:
        return tables.missing(self.reason(setting, domain, **keys))


@dataclass(frozen=True)
class Place:
    """What an experiment measured of one setting and domain: its rows, or why there are none."""

    setting: str
    domain: str
    rows: pd.DataFrame
    reason: str

    @property
    def label(self) -> list[str]:
        """Its first two cells in a table."""
        return [self.setting, paper.DOMAIN_LABELS.get(self.domain, self.domain)]

    @property
    def record(self) -> dict:
        """The start of its rows in a CSV; the whole row where nothing was measured."""
        note = f"not measured: {self.reason}" if self.reason else ""
        return {"source": "ours", "setting": self.setting, "domain": self.domain, "note": note}

    def missing_row(self, columns: int) -> tables.Row:
        """The row of a table that says why nothing was measured here."""
        return tables.Row([*self.label, tables.missing(self.reason), *[tables.NONE] * (columns - 3)])


def measured(study: Study, experiment: str, schema) -> list[Place]:
    """Every setting and domain of an experiment, or of the study where it left no record."""
    rows = study.records(experiment, schema)
    found = []
    for setting, domain in places(study, rows):
        mine = rows
        if len(rows):
            mine = rows[(rows["setting"] == setting) & (rows["domain"] == domain) & (rows["status"] == "measured")]
        reason = "" if len(mine) else study.reason(setting, experiment, rows, domain=domain or None)
        found.append(Place(setting, domain, mine, reason))
    return found


def places(study: Study, rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Settings and domains of an experiment's rows, as in ``Panel.places``."""
    if not len(rows):
        return [(setting, domain) for setting in study.settings for domain in study.domains or [""]]
    found = set(rows[["setting", "domain"]].itertuples(index=False, name=None))
    settings = {name: place for place, name in enumerate(study.settings)}
    domains = {name: place for place, name in enumerate(DOMAIN_ORDER)}
    return sorted(
        found,
        key=lambda p: (settings.get(p[0], len(settings)), p[0], domains.get(p[1], len(domains)), p[1]),
    )


def settings_of(study: Study, rows: pd.DataFrame) -> list[str]:
    """The settings of ``places``."""
    return list(dict.fromkeys(setting for setting, _ in places(study, rows)))


def domains_of(study: Study, rows: pd.DataFrame) -> list[str]:
    """The domains of ``places``, in the order of tables."""
    found = {domain for _, domain in places(study, rows)}
    return sorted(
        found, key=lambda name: (DOMAIN_ORDER.index(name) if name in DOMAIN_ORDER else len(DOMAIN_ORDER), name)
    )


Summarise = Callable[[pd.DataFrame], pd.DataFrame]


def panel(study: Study, experiment: str, summarise: str | Summarise, split: str | None = None) -> Panel:
    """Read an experiment and its cells; with ``split``, each value of that column summarised by itself.

    summarise: a function of `cast.experiments.statistics` or its name. It is called only where the summary of the
        study does not hold the cells.
    """
    rows = study.records(experiment, DECODE)
    statistic = getattr(summarise, "__name__", summarise)
    kept = study.summarised(experiment, statistic, split) if len(rows) else None
    return Panel(study, experiment, rows, cells_of(rows, summarise, split) if kept is None else kept)


def cells_of(rows: pd.DataFrame, summarise: str | Summarise, split: str | None = None) -> pd.DataFrame:
    """The cells of DECODE rows, as in `panel`; empty without rows."""
    if not len(rows):
        return pd.DataFrame()
    if isinstance(summarise, str):
        from cast.experiments import statistics  # scipy: only where records are resampled

        summarise = getattr(statistics, summarise)
    summaries = [summarise(part).assign(**{split: value} if split else {}) for value, part in _parts(rows, split)]
    filled = [summary for summary in summaries if len(summary)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def recorded_panel(
    study: Study, experiments: Sequence[str], summarise: str | Summarise, split: str | None = None
) -> Panel:
    """`panel` of the first of these experiments that left a record; of the first of all where none did."""
    recorded = (name for name in experiments if len(study.records(name, DECODE)))
    return panel(study, next(recorded, experiments[0]), summarise, split)


def instead(block: Panel, experiment: str) -> list[str]:
    """The note below a table that shows a panel instead of this experiment; none where it is this experiment's."""
    if block.experiment == experiment:
        return []
    return [f"Not measured: no {experiment} record in this study; instead, cells of {block.experiment} are shown."]


def _parts(rows: pd.DataFrame, split: str | None) -> Iterator[tuple[object, pd.DataFrame]]:
    if split is None:
        yield None, rows
        return
    # A traced run is shorter: its limit is no protocol of its own.
    timed = rows[~rows["traced"].astype(bool)]
    if split != "block_size":
        yield from timed.groupby(split)
        return
    # Plain decoding drafts nothing: it is timed once and serves every block size of its setting and domain.
    plain = timed["method"] == PLAIN
    for value, part in timed[~plain].groupby(split):
        beside = timed[plain].merge(part[["setting", "domain"]].drop_duplicates())
        yield value, pd.concat([part, beside], ignore_index=True)
