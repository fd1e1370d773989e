"""What the serving tables and figures share: their records, their variants' names, and paired gains as shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from cast.experiments.records import SERVING

from . import paper, tables
from .data import Study
from .panels import places

GOODPUT, CONTINUOUS = "serving_goodput", "continuous_batching"
POLICIES = {
    "chain": "chain",
    "fixed_wide": "fixed wide",
    "uniform": "uniform",
    "best_first": "best-first",
    "priced": "best-first, priced",
}


@dataclass(frozen=True)
class Place:
    """The timed runs of one setting and domain, or why there are none; ``traced``: the short ones with pass times."""

    setting: str
    domain: str
    runs: pd.DataFrame
    traced: pd.DataFrame
    reason: str

    @property
    def label(self) -> list[str]:
        return [self.setting, paper.DOMAIN_LABELS.get(self.domain, self.domain)]

    @property
    def batches(self) -> list[int]:
        return sorted(int(active) for active in self.runs["active"].unique()) if len(self.runs) else []

    def at(self, active: int) -> pd.DataFrame:
        """The timed runs with so many active requests."""
        return self.runs[self.runs["active"] == active]


def served(study: Study, experiment: str) -> list[Place]:
    """Every setting and domain of a serving experiment, or of the study where it left no record."""
    rows = study.records(experiment, SERVING)
    found = []
    for setting, domain in places(study, rows):
        mine = rows
        if len(rows):
            mine = rows[(rows["setting"] == setting) & (rows["domain"] == domain) & (rows["status"] == "measured")]
        traced = mine["traced"].astype(bool) if len(mine) else []
        timed, short = (mine[~traced], mine[traced]) if len(mine) else (mine, mine)
        reason = "" if len(timed) else study.reason(setting, experiment, rows, domain=domain or None)
        found.append(Place(setting, domain, timed, short, reason))
    return found


def variants(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Verifier and policy of the runs: dense, ragged, bucketed; policies in the tables' order."""
    have = set(zip(runs["verifier"], runs["policy"], strict=True))
    first = {"dense": 0, "ragged": 1}
    return sorted(have, key=lambda one: (first.get(one[0], 2), one[0], list(POLICIES).index(one[1])))


def named(variant: tuple[str, str]) -> str:
    verifier, policy = variant
    kind, _, buckets = verifier.partition("_")
    return f"{kind} ({buckets} buckets), {POLICIES[policy]}" if buckets else f"{kind}, {POLICIES[policy]}"


def percents(ratio, prefix: str = "") -> dict[str, float]:
    """A paired ratio's numbers in percent, for the CSV."""
    numbers = {name: 100 * getattr(ratio, name) for name in ("gain", "low", "high", "median", "least", "most")}
    return {f"{prefix}{name}_percent": value for name, value in numbers.items()} | {f"{prefix}repeats": ratio.repeats}


def shown(ratio) -> tables.Cell | str:
    """ "+8.6% [8.1, 14.6]"; without an interval where the repeats are too few for one."""
    if not ratio.repeats:
        return tables.missing("the variants were not both part of this run")
    return tables.gain({"gain": ratio.gain, "gain_low": ratio.low, "gain_high": ratio.high})


def interval(numbers: dict[str, float], digits: int = 1) -> str:
    """The geometric mean of a `spread` with its interval, where it has one."""
    mean = tables.number(numbers["mean"], digits)
    if not (math.isfinite(numbers["low"]) and math.isfinite(numbers["high"])):
        return mean
    return f"{mean} [{numbers['low']:.{digits}f}, {numbers['high']:.{digits}f}]"


def missing_row(place: Place, columns: int) -> tables.Row:
    cells = [tables.missing(place.reason), *[tables.NONE] * (columns - 3)]
    return tables.Row([*place.label, *cells])


def missing_record(place: Place) -> dict:
    return {"source": "ours", "setting": place.setting, "domain": place.domain} | {
        "note": f"not measured: {place.reason}"
    }


def printed(*identifiers: str) -> list[dict]:
    """The paper's sentences by claim: setting, quantity, value, unit, where."""
    prose = paper.prose()
    return prose[prose["id"].isin(identifiers)].to_dict("records")


def paper_part(identifiers: tuple[str, ...], columns: int) -> tuple[list[tables.Row], list[dict]]:
    """Shown rows and CSV rows of what the paper prints in its text."""
    rows, data = [], []
    for one in printed(*identifiers):
        value = f"{float(one['value']):+g}%" if one["unit"] == "percent" else f"{float(one['value']):g} {one['unit']}"
        setting = paper.setting_label(one["setting"]) if "-" in str(one["setting"]) else tables.NONE
        rows.append(
            tables.Row(
                [setting, one["where"], tables.NONE, one["quantity"], value, *[tables.NONE] * (columns - 5)], paper=True
            )
        )
        kept = {"setting": one["setting"], "value": float(one["value"]), "unit": one["unit"], "id": one["id"]}
        data.append({"source": "paper"} | kept | {"note": f"{one['where']}: {one['quantity']}"})
    return rows, data


STATISTIC = (
    "Ratios pair the runs of one repeat, which serve the same requests: geometric mean over repeats with a 95% "
    "Student interval of the mean log ratio (none below 3 repeats); median and range of the repeats are in the CSV."
)
PROSE = "The paper gives these numbers in its text alone (medians of four runs), for other settings and models."


def table(
    study: Study,
    experiment: str,
    batch: Callable[[Place, int], tuple[list[tables.Row], list[dict]]],
    claims: tuple[str, ...],
    *,
    title: str,
    header: list[str],
    notes: list[str],
) -> tables.Table:
    """What ``batch`` gives for each place and batch size of a serving experiment, then the paper's numbers."""
    rows, data, rules = [], [], set()
    for place in served(study, experiment):
        if place.reason:
            rows.append(missing_row(place, len(header)))
            data.append(missing_record(place))
        for active in place.batches:
            one, numbers = batch(place, active)
            rows += one
            data += numbers
            rules.add(len(rows) - 1)
    printed_rows, numbers = paper_part(claims, len(header))
    return tables.Table(
        title=title,
        header=header,
        rows=[*rows, *printed_rows],
        data=pd.DataFrame([*data, *numbers]),
        rules_after=rules,
        notes=notes,
    )
