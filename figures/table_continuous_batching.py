"""Continuous batching (appendix F, E46): arriving requests, one ragged store and verifier, two allocators."""

from __future__ import annotations

import pandas as pd

from . import tables
from .data import Study
from .serving import CONTINUOUS, PROSE, STATISTIC, Batch, interval, named, percents, shown, spread_columns, table

HEADER = [
    "Setting", "Domain", "Active", "Policy or ratio", "Goodput (tokens/s) or gain", "Whole run (tokens/s)",
    "Mean active", "Wait (s)", "Latency (s)", "Departures", "Largest gap",
]  # fmt: skip
TREE, EVEN = ("ragged", "best_first"), ("ragged", "uniform")
QUANTITIES = {"goodput_tokens_per_s": "goodput", "tokens_per_s": "whole run", "r_pooled": "R"}


def build(study: Study) -> tables.Table:
    return table(
        study,
        CONTINUOUS,
        _batch,
        ("continuous_batching",),
        title="Continuous batching: request-level best-first against uniform allocation of the same budget.",
        header=HEADER,
        notes=[
            "Poisson arrivals above what uniform allocation completes; the rate is in the CSV. Goodput: committed "
            "tokens over wall time of the rounds in which every slot is taken; whole run: new tokens over all its "
            "time, prefills and idling included. Wait: arrival to a slot; latency: arrival to the last token; means.",
            "Departures: outputs unlike plain decoding of the same prompt, of all repeats; the gap is the target's "
            "top-two logit difference there.",
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
        goodput, whole = (spread(batch.runs, variant, name) for name in ("goodput_tokens_per_s", "tokens_per_s"))
        means = {name: mine[name].mean() for name in ("mean_active", "wait_s", "latency_s", "arrivals_per_s", "load")}
        compared = mine[mine["departures"].notna()]
        departures = int(compared["departures"].sum()) if len(compared) else None
        outputs, largest = int(compared["requests"].sum()), compared["largest_gap"].max()
        told = tables.NONE if departures is None else f"{departures} of {outputs}"
        shown_means = [
            tables.number(means["mean_active"], 1),
            *(tables.number(means[n]) for n in ("wait_s", "latency_s")),
        ]
        cells = [interval(goodput), interval(whole), *shown_means, told, _gap(largest)]
        rows.append(tables.Row([*batch.label, named(variant), *cells]))
        numbers = spread_columns(goodput, "goodput") | spread_columns(whole, "whole")
        names = {"verifier": variant[0], "policy": variant[1], "repeats": goodput["repeats"]}
        counts = {"departures": departures, "outputs": outputs, "largest_gap": largest}
        data.append(batch.record | names | numbers | means | counts)
    if {TREE, EVEN} <= set(batch.variants):
        for quantity, title in QUANTITIES.items():
            ratio = compare(batch.runs, TREE, EVEN, quantity)
            title = f"best-first over uniform, {title}"
            rows.append(tables.Row([*batch.label, title, shown(ratio), *[tables.NONE] * (len(HEADER) - 5)]))
            data.append(batch.record | {"ratio": title, "quantity": quantity} | percents(ratio))
    return rows, data


def _gap(value: float) -> str:
    return tables.NONE if pd.isna(value) else f"{value:.2g}"
