"""Continuous batching (appendix F, E46): arriving requests, one ragged store and verifier, two allocators."""

from __future__ import annotations

from . import tables
from .data import Study
from .serving import (
    CONTINUOUS,
    DEPARTURES,
    OF_FULL_ROUNDS,
    OF_WHOLE_RUN,
    PROSE,
    ROUNDS,
    STATISTIC,
    Batch,
    counted,
    departed,
    full_of_all,
    interval,
    named,
    percents,
    shown,
    spread_columns,
    table,
)

HEADER = [
    "Setting", "Domain", "Active", "Policy or ratio", "Goodput (tokens/s) or gain", "Whole run (tokens/s)",
    "Full rounds", "Mean active", "Wait (s)", "Latency (s)", "Departures", "Largest gap",
]  # fmt: skip
TREE, EVEN = ("ragged", "best_first"), ("ragged", "uniform")
QUANTITIES = {OF_FULL_ROUNDS: "goodput", OF_WHOLE_RUN: "whole run", "r_pooled": "R"}


def build(study: Study) -> tables.Table:
    return table(
        study,
        CONTINUOUS,
        _batch,
        ("continuous_batching",),
        title="Continuous batching: request-level best-first against uniform allocation of the same budget.",
        header=HEADER,
        notes=[
            "Poisson arrivals above what uniform allocation completes; the rate is in the CSV. Wait: arrival to a "
            "slot; latency: arrival to the last token; means.",
            ROUNDS,
            DEPARTURES,
            "Every repeat serves the same prompts at other arrivals: the intervals cover the draw of arrivals, not "
            "that of prompts.",
            STATISTIC,
            PROSE,
        ],
    )


def _batch(batch: Batch) -> tuple[list[tables.Row], list[dict]]:
    from cast.experiments.serving_statistics import compare, spread

    rows, data = [], []
    for variant in batch.variants:
        mine = batch.of(variant)
        goodput, whole = (spread(batch.runs, variant, column) for column in (OF_FULL_ROUNDS, OF_WHOLE_RUN))
        means = {name: mine[name].mean() for name in ("mean_active", "wait_s", "latency_s", "arrivals_per_s", "load")}
        counts = counted(mine)
        cells = [
            interval(goodput),
            interval(whole),
            full_of_all(counts),
            tables.number(means["mean_active"], 1),
            *(tables.number(means[name]) for name in ("wait_s", "latency_s")),
            *departed(counts),
        ]
        rows.append(tables.Row([*batch.label, named(variant), *cells]))
        numbers = spread_columns(goodput, "goodput") | spread_columns(whole, "whole")
        names = {"verifier": variant[0], "policy": variant[1], "repeats": goodput["repeats"]}
        data.append(batch.record | names | numbers | means | counts)
    if {TREE, EVEN} <= set(batch.variants):
        for quantity, title in QUANTITIES.items():
            ratio = compare(batch.runs, TREE, EVEN, quantity)
            title = f"best-first over uniform, {title}"
            rows.append(tables.Row([*batch.label, title, shown(ratio), *[tables.NONE] * (len(HEADER) - 5)]))
            data.append(batch.record | {"ratio": title, "quantity": quantity} | percents(ratio))
    return rows, data
