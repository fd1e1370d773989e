"""Claims about many requests at once: the verifier's width tax, and goodput by allocation policy.

Ratios are those of the serving tables: geometric mean over repeats with a 95% Student interval of the mean log ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from cast.experiments.records import SERVING, WIDTH_TAX

from .. import tables
from ..data import Study
from ..panels import measured
from ..serving import CONTINUOUS, GOODPUT, Batch, batches
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    as_gain,
    judged,
    measured_rows,
    no_gain,
    printed,
    reaches,
    within,
)

TAX = "width_tax"
SHARED = (2, math.inf)
"""Least and most active requests that share a budget: one alone gets the same tree by best-first and by uniform."""
Variant = tuple[str, str]  # verifier, policy


def tax_grows_with_batch(study: Study, settings: list[str]) -> Finding:
    """Dense verification of 64 packed tokens a request over one, minus one, by batch."""
    rows = measured_rows(study, settings, TAX, WIDTH_TAX, component="verify_dense")
    medians = rows.groupby(["setting", "batch", "packed_tokens"])["latency_ms"].median().unstack()
    if not {1, 64} <= set(medians.columns):
        raise NotMeasured("the width tax was not probed at 1 and 64 packed tokens")
    tax = (medians[64] / medians[1] - 1).dropna()
    found = [Measurement(setting, f"batch {batch}", value) for (setting, batch), value in tax.items()]
    if tax.groupby(level=0).size().min() < 2:
        raise NotMeasured("the width tax was probed at one batch only: nothing can rise")
    bars = {b: printed("width_tax", within=f"batch {b}").iloc[0] / 100 for b in (8, 32)}
    near = [0.75 * bars[m] <= value <= 1.25 * bars[m] for (_, m), value in tax.items() if m in bars]
    rises = all(a < b for _, of in tax.groupby(level=0) for a, b in pairwise(of))
    return judged(found, _as_percent, reproduced=bool(near) and all(near) and rises, direction=rises)


def drafting_grows_slowly(study: Study, settings: list[str]) -> Finding:
    """Draft latency at the largest batch over that of one request."""
    rows = measured_rows(study, settings, TAX, WIDTH_TAX, component="draft")
    found, sizes = [], []
    for name, medians in rows.groupby(["setting", "batch"])["latency_ms"].median().groupby(level=0):
        at = medians.droplevel(0)
        if at.index[0] == 1 and len(at) > 1:
            sizes.append(int(at.index[-1]))
            found.append(Measurement(name, f"batch {sizes[-1]}", at.iloc[-1] / at.iloc[0]))
    if not found:
        raise NotMeasured("drafting was not probed at one request and at more")
    small, large = printed("batched_draft").sort_values()
    exponent = math.log(large / small) / math.log(32)
    return judged(
        found,
        lambda m: f"{m.value:.2f}x",
        reproduced=all(m.value <= size**exponent for m, size in zip(found, sizes, strict=True)),
        direction=all(m.value < size for m, size in zip(found, sizes, strict=True)),
    )


def best_static_shrinks(study: Study, settings: list[str]) -> Finding:
    """The best static policy of the dense harness by active requests; shown: its wide tree over its chain."""
    from cast.experiments.serving_statistics import best_static  # scipy: only where records are compared

    found = _ratios(study, settings, GOODPUT, ("dense", "fixed_wide"), ("dense", "chain"))
    ends = [(of[0].value, of[-1].value) for of in _by_place(found) if len(of) > 1]
    if not ends:
        raise NotMeasured("wide tree and chain were served at one number of active requests only")
    best: dict[tuple[str, str], list[str]] = {}
    for place in measured(study, GOODPUT, SERVING):
        for batch in batches(place) if place.setting in settings else []:
            static = best_static(batch.runs, ("dense",))
            best.setdefault((place.setting, place.domain), []).append(static[1] if static else "")
    return judged(
        found,
        lambda m: f"wide over chain {as_gain(m)}",
        reproduced=all((of[0], of[-1]) == ("fixed_wide", "chain") for of in best.values()),
        direction=all(first > last for first, last in ends),
    )


def requests_lift_rounds(study: Study, settings: list[str]) -> Finding:
    found = _ratios(study, settings, GOODPUT, ("dense", "best_first"), ("dense", "uniform"), "r_pooled", SHARED)
    return _range(found, "dense_acceptance", digits=3)


def dense_allocation_is_no_gain(study: Study, settings: list[str]) -> Finding:
    found = _ratios(study, settings, GOODPUT, ("dense", "best_first"), ("dense", "uniform"), active=SHARED)
    bars = printed("dense_request_level") / 100
    return judged(
        found,
        lambda m: f"best-first over uniform {as_gain(m)}",
        reproduced=all(no_gain(m, -bars.min()) for m in found),
        direction=any(m.value <= 0 for m in found),
        printed=bars,
    )


def bucketing_loses(study: Study, settings: list[str]) -> Finding:
    found = []
    for buckets in ("bucketed_2", "bucketed_4"):
        try:
            pair = (buckets, "best_first"), ("dense", "best_first")
            ratios = _ratios(study, settings, GOODPUT, *pair, active=SHARED)
        except NotMeasured:
            continue
        found += [Measurement(m.setting, f"{m.place}, {buckets}", m.value, m.low, m.high) for m in ratios]
    if not found:
        raise NotMeasured("no bucketed verifier was served")
    return judged(
        found,
        lambda m: f"over dense {as_gain(m)}",
        reproduced=all(m.high < 0 for m in found),
        direction=any(m.value < 0 for m in found),
    )


def padding_costs(study: Study, settings: list[str]) -> Finding:
    """Share of a dense pass over best-first trees that the ragged pass does without, from the traced runs."""
    rows = _served(study, settings, GOODPUT, traced=True)
    rows = rows[
        (rows["policy"] == "best_first") & rows["verify_ms_per_round"].notna() & rows["active"].between(*SHARED)
    ]
    times = rows.pivot_table(index=["setting", "domain", "active"], columns="verifier", values="verify_ms_per_round")
    if not {"dense", "ragged"} <= set(times.columns) or times[["dense", "ragged"]].dropna().empty:
        raise NotMeasured("dense and ragged verification were not both traced")
    share = (1 - times["ragged"] / times["dense"]).dropna()
    found = [
        Measurement(setting, f"{domain}, {active} active", value) for (setting, domain, active), value in share.items()
    ]
    return _range(found, "padding", digits=2, show=_as_percent)


def ragged_over_uniform(study: Study, settings: list[str]) -> Finding:
    return _ragged(
        _ratios(study, settings, GOODPUT, ("ragged", "best_first"), ("dense", "uniform")), "ragged_over_uniform"
    )


def ragged_over_static(study: Study, settings: list[str]) -> Finding:
    """Over the best static policy of the dense harness, as in the paper; the table has that of all verifiers too."""
    from cast.experiments.serving_statistics import best_static  # scipy: only where records are compared

    found = _ratios(
        study, settings, GOODPUT, ("ragged", "best_first"), lambda batch: best_static(batch.runs, ("dense",))
    )
    return _ragged(found, "ragged_over_static")


def ragged_adds_acceptance(study: Study, settings: list[str]) -> Finding:
    """At the numbers of active requests that the paper names."""
    pair = ("ragged", "best_first"), ("ragged", "uniform")
    return _range(_ratios(study, settings, GOODPUT, *pair, "r_pooled", (8, 16)), "ragged_acceptance", digits=2)


def continuous_batching_gains(study: Study, settings: list[str]) -> Finding:
    found = _ratios(study, settings, CONTINUOUS, ("ragged", "best_first"), ("ragged", "uniform"))
    shown = _range(found, "continuous_batching", digits=3)
    return replace(shown, reproduced=shown.reproduced and all(m.low > 0 for m in found))


def served_near_ties(study: Study, settings: list[str]) -> Finding:
    return _near_ties(study, settings, GOODPUT)


def continuous_near_ties(study: Study, settings: list[str]) -> Finding:
    return _near_ties(study, settings, CONTINUOUS)


def served_chain_departs(study: Study, settings: list[str]) -> Finding:
    """Departures of the chain under batching, of the outputs compared with plain decoding."""
    rows = _served(study, settings, GOODPUT)
    rows = rows[(rows["policy"] == "chain") & rows["departures"].notna()]
    if not len(rows):
        raise NotMeasured("the chain's served outputs were not compared with plain decoding")
    departed, outputs = int(rows["departures"].sum()), int(rows["requests"].sum())
    tie = printed("bf16_near_tie").iloc[0]
    return Finding(
        f"{departed} of {outputs} outputs of the chain depart",
        departed > 0 and bool((rows["largest_gap"].fillna(0) <= tie).all()),
        departed > 0,
        tuple(dict.fromkeys(rows["setting"])),
    )


def _near_ties(study: Study, settings: list[str], experiment: str) -> Finding:
    rows = _served(study, settings, experiment)
    rows = rows[rows["departures"].notna()]
    if not len(rows):
        raise NotMeasured("no served output was compared with plain decoding")
    tie = printed("bf16_near_tie").iloc[0]
    gaps = rows["largest_gap"].fillna(0)
    return Finding(
        f"{int(rows['departures'].sum())} of {int(rows['requests'].sum())} outputs depart, at a gap of at most "
        f"{gaps.max():.3f}",
        bool((gaps <= tie).all()),
        bool((gaps <= 2 * tie).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def _range(
    found: list[Measurement], identifier: str, digits: int, show: Callable[[Measurement], str] = as_gain
) -> Finding:
    bars = printed(identifier) / 100
    return judged(
        found,
        show,
        reproduced=within((m.value for m in found), bars, digits),
        direction=all(m.value > 0 for m in found),
        printed=bars,
    )


def _ragged(found: list[Measurement], identifier: str) -> Finding:
    """Judged where the paper does, at the two largest numbers of active requests of each setting and domain."""
    last = [m for of in _by_place(found) for m in of[-2:]]
    bars = printed(identifier) / 100
    return judged(
        found,
        as_gain,
        reproduced=all(reaches(m, bars.min(), 3) for m in last),
        direction=all(m.value > 0 for m in last),
        printed=bars,
    )


def _served(study: Study, settings: list[str], experiment: str, traced: bool = False) -> pd.DataFrame:
    return measured_rows(study, settings, experiment, SERVING, traced=traced)


def _ratios(
    study: Study,
    settings: list[str],
    experiment: str,
    above: Variant,
    below: Variant | Callable[[Batch], Variant | None],
    column: str = "goodput_tokens_per_s",
    active: tuple[float, float] = (1, math.inf),
) -> list[Measurement]:
    """One variant over another, minus one, by setting, domain and active requests.

    below: a variant, or what gives one for each batch.
    active: least and most active requests that count.
    """
    from cast.experiments.serving_statistics import compare  # scipy: only where records are compared

    _served(study, settings, experiment)  # raises with the reason where there is none
    found = []
    for place in measured(study, experiment, SERVING):
        for batch in batches(place) if place.setting in settings else []:
            if not active[0] <= batch.active <= active[1]:
                continue
            base = below(batch) if callable(below) else below
            ratio = compare(batch.runs, above, base, column) if base else None
            if ratio and ratio.repeats:
                label = f"{place.domain}, {batch.active} active"
                found.append(Measurement(place.setting, label, ratio.gain, ratio.low, ratio.high))
    if not found:
        base = "a static width" if callable(below) else "/".join(below)
        counts = "" if active == (1, math.inf) else f" at {active[0]} to {active[1]} active requests"
        raise NotMeasured(f"no run has both {'/'.join(above)} and {base}{counts}")
    return found


def _by_place(found: list[Measurement]) -> list[list[Measurement]]:
    """Split by setting and domain, each by active requests."""
    places: dict[tuple[str, str], list[Measurement]] = {}
    for m in found:
        places.setdefault((m.setting, m.place.rsplit(", ", 1)[0]), []).append(m)
    return list(places.values())


def _as_percent(m: Measurement) -> str:
    return tables.percent(m.value)
