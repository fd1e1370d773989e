"""What padding costs a dense verifier, and bucketing by node count (appendix F, E43), under best-first allocation."""

from __future__ import annotations

import pandas as pd

from . import tables
from .data import Study
from .serving import GOODPUT, PROSE, STATISTIC, Batch, named, percents, shown, table

HEADER = [
    "Setting", "Domain", "B", "Verifier", "Padded rows", "Verify (ms/round)", "Share above ragged",
    "Goodput over dense",
]  # fmt: skip
POLICY = "best_first"


def build(study: Study) -> tables.Table:
    return table(
        study,
        GOODPUT,
        _batch,
        ("padding", "bucketing"),
        title="Padding rows of the dense verification pass and bucketing by node count, best-first allocation.",
        header=HEADER,
        notes=[
            "Padded rows: share of all verified rows, mean over repeats. Verify: of a shorter run that times the "
            "passes, one for each variant, so without an interval; share above ragged: of such a pass, what "
            "the ragged one of the same nodes does without, all padding and layout.",
            STATISTIC,
            PROSE,
        ],
    )


def _batch(batch: Batch) -> tuple[list[tables.Row], list[dict]]:
    from cast.experiments.serving_statistics import compare

    traced = batch.traced[batch.traced["policy"] == POLICY]
    passes = traced.groupby("verifier")["verify_ms_per_round"].mean() if len(traced) else pd.Series(dtype=float)
    rows, data = [], []
    for variant in (one for one in batch.variants if one[1] == POLICY):
        share, ms = batch.of(variant)["padded_share"].mean(), float(passes.get(variant[0], float("nan")))
        above = 1 - float(passes.get("ragged", float("nan"))) / ms
        ratio = None if variant[0] == "dense" else compare(batch.runs, variant, ("dense", POLICY))
        timed = [tables.number(ms, 1), tables.NONE if variant[0] == "ragged" else tables.percent(above)]
        cells = [f"{100 * share:.1f}%", *timed, tables.NONE if ratio is None else shown(ratio)]
        rows.append(tables.Row([*batch.label, named(variant).split(", ")[0], *cells]))
        numbers = {"padded_percent": 100 * share, "verify_ms_per_round": ms, "share_above_ragged_percent": 100 * above}
        over_dense = {} if ratio is None else percents(ratio, "goodput_over_dense_")
        data.append(batch.record | {"verifier": variant[0], "policy": POLICY} | numbers | over_dense)
    return rows, data
