"""Goodput under load (appendix F, E42, E44, E45): {dense, ragged} x {chain, fixed wide, uniform, best-first} by batch.

Below each batch size stand the paired ratios: ragged over dense, best-first over uniform, best-first with its given and
with its priced budget (Proposition 3) over the best static policy.
"""

from __future__ import annotations

from collections.abc import Iterator

from cast.experiments.records import SERVING

from . import tables
from .data import Study, read_json
from .panels import Place, measured
from .serving import (
    DEPARTURES,
    GOODPUT,
    OF_FULL_ROUNDS,
    OF_WHOLE_RUN,
    POLICIES,
    PROSE,
    ROUNDS,
    STATISTIC,
    Batch,
    batches,
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
    "Setting", "Domain", "B", "Policy or ratio", "Goodput (tokens/s) or gain", "Whole run (tokens/s) or gain",
    "Full rounds", "R", "Nodes per request", "Departures", "Largest gap",
]  # fmt: skip
CLAIMS = (
    "dense_request_level", "dense_acceptance", "ragged_over_uniform", "ragged_over_static", "ragged_acceptance",
)  # fmt: skip
TREE, EVEN, PRICED = "best_first", "uniform", "priced"


def build(study: Study) -> tables.Table:
    return table(
        study,
        GOODPUT,
        _batch,
        CLAIMS,
        title="Goodput at a constant number of active requests B, and paired ratios.",
        header=HEADER,
        notes=[
            ROUNDS,
            "Where there are no more requests than slots, none takes the slot of a finished one: full rounds end with "
            "the first request that finishes.",
            "Tokens/s: geometric mean over repeats with a 95% Student interval of the log. R: committed tokens per "
            "request and round, pooled.",
            STATISTIC,
            *_reused_prompts(study),
            DEPARTURES,
            "The best static policy (chain, fixed wide or uniform) of the dense verifier, as in the paper, and of both "
            "verifiers where that is another: the one with the largest mean goodput in these same runs, which favours "
            "it.",
            PROSE,
        ],
    )


def comparisons(batch: Batch) -> list[tuple[str, tuple[str, str], tuple[str, str], str]]:
    """Label, variant, the other variant, and the compared column, of every ratio of one batch size."""
    from cast.experiments.serving_statistics import best_static  # scipy: only where records are compared

    have = set(batch.variants)
    pairs = [
        (f"ragged over dense, {POLICIES[policy]}", ("ragged", policy), ("dense", policy), OF_FULL_ROUNDS)
        for policy in ("chain", "fixed_wide", EVEN, TREE)
    ]
    for verifier in ("dense", "ragged"):
        pairs.append((f"best-first over uniform, {verifier}", (verifier, TREE), (verifier, EVEN), OF_FULL_ROUNDS))
        pairs.append((f"R of best-first over uniform, {verifier}", (verifier, TREE), (verifier, EVEN), "r_pooled"))
    pairs.append(("ragged best-first over dense uniform", ("ragged", TREE), ("dense", EVEN), OF_FULL_ROUNDS))
    # The paper's static widths are dense; who deploys the ragged verifier has it for static widths too.
    statics = (best_static(batch.runs, verifiers) for verifiers in (("dense",), ("dense", "ragged")))
    for static in dict.fromkeys(static for static in statics if static):
        for policy in (TREE, PRICED):
            title = f"ragged {POLICIES[policy]} over best static ({named(static)})"
            pairs.append((title, ("ragged", policy), static, OF_FULL_ROUNDS))
    return [pair for pair in pairs if {pair[1], pair[2]} <= have]


def _batch(batch: Batch) -> tuple[list[tables.Row], list[dict]]:
    rows, data = [], []
    for part in (_variants, _ratios):
        for row, records in part(batch):
            rows.append(row)
            data += records
    return rows, data


def _variants(batch: Batch) -> Iterator[tuple[tables.Row, list[dict]]]:
    from cast.experiments.serving_statistics import spread

    for variant in batch.variants:
        mine = batch.of(variant)
        goodput, whole = (spread(batch.runs, variant, column) for column in (OF_FULL_ROUNDS, OF_WHOLE_RUN))
        means = {name: mine[name].mean() for name in ("r_pooled", "nodes_per_request")}
        counts = counted(mine)
        cells = [
            interval(goodput),
            interval(whole),
            full_of_all(counts),
            tables.number(means["r_pooled"]),
            tables.number(means["nodes_per_request"], 1),
            *departed(counts),
        ]
        names = {"verifier": variant[0], "policy": variant[1], "repeats": goodput["repeats"]}
        numbers = spread_columns(goodput, "goodput") | spread_columns(whole, "whole")
        yield tables.Row([*batch.label, named(variant), *cells]), [batch.record | names | numbers | means | counts]


def _ratios(batch: Batch) -> Iterator[tuple[tables.Row, list[dict]]]:
    """A row for each ratio; beside one of goodput the same of the whole run, which is a row of its own in the CSV."""
    for title, variant, other, quantity in comparisons(batch):
        cell, record = _ratio(batch, title, variant, other, quantity)
        beside, records = tables.NONE, [record]
        if quantity == OF_FULL_ROUNDS:
            beside, whole = _ratio(batch, f"{title}, whole run", variant, other, OF_WHOLE_RUN)
            records.append(whole)
        yield tables.Row([*batch.label, title, cell, beside, *[tables.NONE] * (len(HEADER) - 6)]), records


def _ratio(
    batch: Batch, title: str, variant: tuple[str, str], other: tuple[str, str], quantity: str
) -> tuple[tables.Cell | str, dict]:
    from cast.experiments.serving_statistics import compare

    ratio = compare(batch.runs, variant, other, quantity)
    names = {"verifier": variant[0], "policy": variant[1], "over": "/".join(other), "quantity": quantity}
    return shown(ratio), batch.record | names | {"ratio": title} | percents(ratio)


def _reused_prompts(study: Study) -> list[str]:
    """The note on batch sizes whose repeats share prompts; none where every request of every repeat has its own."""
    parts = [
        part
        for place in measured(study, GOODPUT, SERVING)
        for batch in batches(place)
        for part in _reused(batch, _prompts(study, place))
    ]
    if not parts:
        return []
    return [
        "Student intervals take repeats to be independent. Where repeats share prompts they are not, and the interval "
        f"may be too narrow: {'; '.join(parts)}."
    ]


def _reused(batch: Batch, prompts: int | None) -> list[str]:
    by_repeat = batch.runs.drop_duplicates("repeat")["requests"]
    requests = int(by_repeat.sum())
    if prompts is None or requests <= prompts:
        return []
    within = "" if by_repeat.max() > prompts else ", none twice in one"
    return [
        f"{', '.join(batch.place.label)}, B = {batch.active}: {requests} requests from {prompts} prompts over "
        f"{len(by_repeat)} repeats{within}"
    ]


def _prompts(study: Study, place: Place) -> int | None:
    """How many prompts the runs of a place took in turns, as their provenance configures it; None where it does not."""
    path = study.root / GOODPUT / place.setting / f"{place.domain}.json"
    config = read_json(path).get("config") if path.is_file() else None
    return (config or {}).get("prompt_limit")
