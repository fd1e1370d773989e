"""Table 13: EAGLE-3 heads on one target: ms/token and R, and the drafter passes and times of a round."""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import DECODE

from . import comparison, tables
from .data import PLAIN, Study

WHAT = comparison.Comparison(
    name="table13",
    title="EAGLE-3 heads on one target: ms/token and R.",
    experiments={0: (comparison.COMPARISON,)},
    methods=(PLAIN, "eagle3"),
    value="ms_per_token",
)


def build(study: Study) -> tables.Table:
    table = comparison.build(study, WHAT)
    rounds = rounds_of(study)
    table.notes += [
        f"{row.setting}, {row.drafter}, {row.budget} nodes: {row.passes_per_round:.2f} drafter passes a round"
        + (
            f"; of a traced round {row.draft_ms:.2f} ms drafting, {row.verify_ms:.2f} ms verifying, "
            f"{row.overhead_ms:.2f} ms other (n = {row.traced_prompts})"
            if pd.notna(row.draft_ms)
            else ""
        )
        + "."
        for row in rounds.itertuples()
    ]
    table.data = pd.concat([table.data, rounds.assign(source="ours", method="eagle3")], ignore_index=True)
    return table


def rounds_of(study: Study) -> pd.DataFrame:
    """What EAGLE-3's rounds were made of, by setting, head and budget: passes, and ms of each part where traced."""
    columns = [
        "setting",
        "drafter",
        "budget",
        "passes_per_round",
        "draft_ms",
        "verify_ms",
        "overhead_ms",
        "traced_prompts",
    ]
    rows = study.records(comparison.COMPARISON, DECODE)
    rows = rows[(rows["method"] == "eagle3") & (rows["status"] == "measured")] if len(rows) else rows
    if not len(rows):
        return pd.DataFrame(columns=columns)
    found = []
    for key, cell in rows.groupby(["setting", "drafter", "budget"]):
        timed, traced = cell[~cell["traced"].astype(bool)], cell[cell["traced"].astype(bool)]
        parts = {
            name: float(traced[f"{name}_per_round"].astype("Float64").mean()) if len(traced) else float("nan")
            for name in ("draft_ms", "verify_ms", "overhead_ms")
        }
        # The first draft of a run lies before its first round.
        passes = timed["drafter_passes"].sum() / timed["rounds"].sum() if timed["rounds"].sum() else float("nan")
        found.append(dict(zip(columns, (*key, passes, *parts.values(), traced["prompt_id"].nunique()), strict=True)))
    return pd.DataFrame(found, columns=columns)
