"""Goodput under load (appendix F, E42, E45): {dense, ragged} x {chain, fixed wide, uniform, best-first} by batch size.

Below each batch size stand the paired ratios: ragged over dense, best-first over uniform, best-first with its given and
with its priced budget (Proposition 3) over the best static policy.
"""

from __future__ import annotations

from . import tables
from .data import Study
from .serving import GOODPUT, POLICIES, PROSE, STATISTIC, Batch, interval, named, percents, shown, spread_columns, table

HEADER = ["Setting", "Domain", "B", "Policy or ratio", "Goodput (tokens/s) or gain", "R", "Nodes per request"]
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
            "Goodput: committed tokens of all requests over wall time, of the rounds in which every slot is taken; "
            "geometric mean over repeats with a 95% Student interval of the log. R: committed tokens per request and "
            "round, pooled.",
            STATISTIC,
            "The best static policy (chain, fixed wide or uniform) of the dense verifier, as in the paper, and of both "
            "verifiers where that is another: the one with the largest mean in these same runs, which favours it.",
            PROSE,
        ],
    )


def comparisons(batch: Batch) -> list[tuple[str, tuple[str, str], tuple[str, str], str]]:
    """Label, variant, the other variant, and the compared column, of every ratio of one batch size."""
    from cast.experiments.serving_statistics import best_static  # scipy: only where records are compared

    have, goodput = set(batch.variants), "goodput_tokens_per_s"
    pairs = [
        (f"ragged over dense, {POLICIES[policy]}", ("ragged", policy), ("dense", policy), goodput)
        for policy in ("chain", "fixed_wide", EVEN, TREE)
    ]
    for verifier in ("dense", "ragged"):
        pairs.append((f"best-first over uniform, {verifier}", (verifier, TREE), (verifier, EVEN), goodput))
        pairs.append((f"R of best-first over uniform, {verifier}", (verifier, TREE), (verifier, EVEN), "r_pooled"))
    pairs.append(("ragged best-first over dense uniform", ("ragged", TREE), ("dense", EVEN), goodput))
    # The paper's static widths are dense; who deploys the ragged verifier has it for static widths too.
    statics = (best_static(batch.runs, verifiers) for verifiers in (("dense",), ("dense", "ragged")))
    for static in dict.fromkeys(static for static in statics if static):
        for policy in (TREE, PRICED):
            title = f"ragged {POLICIES[policy]} over best static ({named(static)})"
            pairs.append((title, ("ragged", policy), static, goodput))
    return [pair for pair in pairs if {pair[1], pair[2]} <= have]


def _batch(batch: Batch) -> tuple[list[tables.Row], list[dict]]:
    from cast.experiments.serving_statistics import compare, spread

    rows, data = [], []
    for variant in batch.variants:
        mine, goodput = batch.of(variant), spread(batch.runs, variant)
        r, nodes = mine["r_pooled"].mean(), mine["nodes_per_request"].mean()
        rows.append(
            tables.Row([*batch.label, named(variant), interval(goodput), tables.number(r), tables.number(nodes, 1)])
        )
        names = {"verifier": variant[0], "policy": variant[1], "repeats": goodput["repeats"]}
        means = {"r_pooled": r, "nodes_per_request": nodes}
        data.append(batch.record | names | spread_columns(goodput, "goodput") | means)
    for title, variant, other, quantity in comparisons(batch):
        ratio = compare(batch.runs, variant, other, quantity)
        rows.append(tables.Row([*batch.label, title, shown(ratio), tables.NONE, tables.NONE]))
        names = {"verifier": variant[0], "policy": variant[1], "over": "/".join(other), "quantity": quantity}
        data.append(batch.record | names | {"ratio": title} | percents(ratio))
    return rows, data
