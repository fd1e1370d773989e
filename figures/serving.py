"""What the serving tables and figures share: their records, their variants' names, and paired gains as shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from cast.experiments.records import SERVING

from . import paper, tables
from .data import Study
from .panels import Place, measured

GOODPUT, CONTINUOUS = "serving_goodput", "continuous_batching"
POLICIES = {
    "chain": "chain",
    "fixed_wide": "fixed wide",
    "uniform": "uniform",
    "best_first": "best-first",
    "priced": "best-first, priced",
}


OF_FULL_ROUNDS, OF_WHOLE_RUN = "goodput_tokens_per_s", "tokens_per_s"
ROUNDS = (
    "Goodput: committed tokens over wall time of the full rounds, in which every slot is taken; whole run: new tokens "
    "over all its time, prefills and idling included. Full rounds: of all rounds, summed over repeats."
)
DEPARTURES = (
    "Departures: outputs unlike plain decoding of the same prompt, of all outputs that were compared, in all repeats; "
    "largest gap: of the target's top-two logit differences there."
)


@dataclass(frozen=True)
class Batch:
    """The timed runs of one setting and domain with so many active requests; ``traced``: the short ones by pass."""

    place: Place
    active: int
    runs: pd.DataFrame
    traced: pd.DataFrame

    @property
    def label(self) -> list[str]:
        return [*self.place.label, str(self.active)]

    @property
    def record(self) -> dict:
        return self.place.record | {"active": self.active}

    @property
    def variants(self) -> list[tuple[str, str]]:
        """Verifier and policy of the runs: dense, ragged, bucketed; policies in the tables' order."""
        have = set(zip(self.runs["verifier"], self.runs["policy"], strict=True))
        first = {"dense": 0, "ragged": 1}
        return sorted(have, key=lambda one: (first.get(one[0], 2), one[0], list(POLICIES).index(one[1])))

    def of(self, variant: tuple[str, str]) -> pd.DataFrame:
        """The runs of one verifier and policy."""
        return self.runs[(self.runs["verifier"] == variant[0]) & (self.runs["policy"] == variant[1])]


def batches(place: Place) -> list[Batch]:
    """What was served at a place, by active requests."""
    if place.reason:
        return []
    traced = place.rows["traced"].astype(bool)
    timed, short = place.rows[~traced], place.rows[traced]
    return [
        Batch(place, int(active), runs, short[short["active"] == active]) for active, runs in timed.groupby("active")
    ]


def named(variant: tuple[str, str]) -> str:
    verifier, policy = variant
    kind, _, buckets = verifier.partition("_")
    return f"{kind} ({buckets} buckets), {POLICIES[policy]}" if buckets else f"{kind}, {POLICIES[policy]}"


def percents(ratio, prefix: str = "") -> dict[str, float]:
    """A paired ratio's numbers in percent, for the CSV."""
    numbers = {name: 100 * getattr(ratio, name) for name in ("gain", "low", "high", "median", "least", "most")}
    return {f"{prefix}{name}_percent": value for name, value in numbers.items()} | {f"{prefix}repeats": ratio.repeats}


def spread_columns(numbers: dict[str, float], name: str) -> dict[str, float]:
    """A `spread` of tokens per second for the CSV, but for its count of repeats."""
    return {f"{name}_{key}_tokens_per_s": value for key, value in numbers.items() if key != "repeats"}


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
    batch: Callable[[Batch], tuple[list[tables.Row], list[dict]]],
    claims: tuple[str, ...],
    *,
    title: str,
    header: list[str],
    notes: list[str],
) -> tables.Table:
    """What ``batch`` gives for each batch size of a serving experiment, then the paper's numbers."""
    rows, data, rules = [], [], set()
    for place in measured(study, experiment, SERVING):
        if place.reason:
            rows.append(place.missing_row(len(header)))
            data.append(place.record)
        for served in batches(place):
            one, numbers = batch(served)
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


def counted(runs: pd.DataFrame) -> dict:
    """Rounds, outputs and departures of one variant's runs together, for the CSV."""
    compared = runs[runs["departures"].notna()]
    return {
        "full_rounds": int(runs["full_rounds"].sum()),
        "rounds": int(runs["rounds"].sum()),
        "departures": int(compared["departures"].sum()) if len(compared) else None,
        "outputs": int(compared["requests"].sum()),
        "largest_gap": compared["largest_gap"].max(),
    }


def full_of_all(counts: dict) -> str:
    return f"{counts['full_rounds']} of {counts['rounds']}"


def departed(counts: dict) -> list[str]:
    """Departures of all outputs compared, and the largest gap at one."""
    if counts["departures"] is None:
        return [tables.NONE, tables.NONE]
    gap = counts["largest_gap"]
    return [f"{counts['departures']} of {counts['outputs']}", tables.NONE if pd.isna(gap) else f"{gap:.2g}"]
