"""Claims about other drafters: EAGLE-3 on the same timer, and DART by replay and by its own tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from cast.experiments.records import DECODE, REPLAY

from .. import tables
from ..data import CHAIN, TREE, Study
from ..panels import Panel
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    all_above,
    as_gain,
    judged,
    measured_panel,
    measured_rows,
    place,
    printed,
    within,
)

COMPARISON, DART_REPLAY = "drafter_comparison", "dart_replay"
# EAGLE's tree of 60 tokens counts its root.
EAGLE_NODES, DART_BUDGETS = 59, (8, 16, 32, 60)


def faster_than_eagle3(study: Study, settings: list[str]) -> Finding:
    found = [
        Measurement(setting, place(study, tree), eagle["ms_per_token"] / tree["ms_per_token"] - 1)
        for setting, _, eagle, tree, _ in _beside_eagle3(study, settings)
    ]
    bars = printed("cast_over_eagle3") / 100
    return judged(
        found,
        lambda m: tables.percent(m.value),
        reproduced=within((m.value for m in found), bars, 2),
        direction=all(m.value > 0 for m in found),
    )


def chain_trails_eagle3(study: Study, settings: list[str]) -> Finding:
    """Speedups of chain, EAGLE-3 and CAST: whether the chain trails EAGLE-3 somewhere while CAST leads there."""
    cells = [
        (setting, place(study, tree), *(cell["ms_per_token"] for cell in (chain, eagle, tree)))
        for setting, _, eagle, tree, chain in _beside_eagle3(study, settings)
    ]
    return Finding(
        "; ".join(
            f"{setting}, {where}: chain {chain:.2f}, EAGLE-3 {eagle:.2f}, CAST {tree:.2f} ms/token"
            for setting, where, chain, eagle, tree in cells
        ),
        any(tree < eagle < chain for *_, chain, eagle, tree in cells),
        all(tree < eagle for *_, eagle, tree in cells),
        tuple(dict.fromkeys(setting for setting, *_ in cells)),
    )


def eagle3_commits_as_much(study: Study, settings: list[str]) -> Finding:
    """R of EAGLE-3's tree over CAST's, minus one."""
    found = [
        Measurement(setting, place(study, tree), eagle["r_prompt_mean"] / tree["r_prompt_mean"] - 1)
        for setting, _, eagle, tree, _ in _beside_eagle3(study, settings)
    ]
    return judged(
        found,
        lambda m: tables.percent(m.value),
        reproduced=any(abs(m.value) <= 0.01 for m in found),
        direction=any(abs(m.value) <= 0.10 for m in found),
    )


def eagle3_drafts_many_times(study: Study, settings: list[str]) -> Finding:
    rows = measured_rows(study, settings, COMPARISON, DECODE)
    rows = rows[rows["method"].isin(["eagle3", TREE]) & ~rows["traced"].astype(bool)]
    sums = rows.groupby("method")[["drafter_passes", "rounds"]].sum().astype(float)
    if set(sums.index) != {"eagle3", TREE}:
        raise NotMeasured("no EAGLE-3 head was measured beside CAST")
    passes = sums["drafter_passes"] / sums["rounds"]
    bar = printed("eagle3_passes").iloc[0]
    return Finding(
        f"EAGLE-3 {passes['eagle3']:.2f}, CAST {passes[TREE]:.2f} draft passes a round",
        bool(round(passes["eagle3"]) == bar and round(passes[TREE]) == 1),
        bool(passes["eagle3"] > passes[TREE]),
        tuple(dict.fromkeys(rows["setting"])),
    )


def dart_grows_with_budget(study: Study, settings: list[str]) -> Finding:
    """R at 63 nodes over R at one node, minus one, at every position."""
    rows = _dart(study, settings, "r_pooled")
    by_budget = rows.pivot_table(index=["setting", "domain"], columns="budget", values="value")
    if not {1, 63} <= set(by_budget.columns):
        raise NotMeasured("DART was not replayed at budgets 1 and 63")
    growth = by_budget[63] / by_budget[1] - 1
    bar = min(
        printed("dart_replay_63", domain=name).iloc[0] / printed("dart_replay_1", domain=name).iloc[0] - 1
        for name in ("gsm8k", "humaneval")
    )
    found = [Measurement(setting, domain, value) for (setting, domain), value in growth.items()]
    return judged(
        found,
        lambda m: tables.percent(m.value),
        reproduced=all(m.value >= bar - 5e-3 for m in found),
        direction=all(m.value > 0 for m in found),
    )


def dart_lift_at_eight(study: Study, settings: list[str]) -> Finding:
    return _dart_lift(study, settings, 8)


def dart_lift_at_63(study: Study, settings: list[str]) -> Finding:
    return _dart_lift(study, settings, 63)


def dart_tree_faster_when_wide(study: Study, settings: list[str]) -> Finding:
    """Speedup of DART's own tree of 60 nodes."""
    found, wider = [], []
    for setting, domain, cells in _dart_trees(study, settings, (DART_BUDGETS[0], DART_BUDGETS[-1])):
        narrow, wide = cells.iloc[0], cells.iloc[-1]
        found.append(Measurement(setting, f"{domain}, {wide['budget']} nodes", wide["speedup"]))
        wider.append(wide["speedup"] > narrow["speedup"])
    bar = 0.9 * printed("dart_tree_speedup", within="60").min()
    return judged(
        found,
        lambda m: f"{m.value:.2f}x",
        reproduced=all(wider) and all(m.value >= bar for m in found),
        direction=all(wider),
    )


def dart_tree_rounds_rise(study: Study, settings: list[str]) -> Finding:
    """R of DART's own tree at its largest budget minus that at its smallest."""
    found, rises = [], []
    for setting, domain, cells in _dart_trees(study, settings, DART_BUDGETS):
        lengths = list(cells["r_pooled"])
        found.append(Measurement(setting, domain, lengths[-1] - lengths[0]))
        rises.append(all(before < after for before, after in pairwise(lengths)))
    return judged(found, lambda m: f"{m.value:+.2f}", reproduced=all(rises), direction=all(m.value > 0 for m in found))


def _beside_eagle3(study: Study, settings: list[str]) -> list[tuple[str, str, dict, dict, dict]]:
    """(setting, domain, EAGLE-3's largest tree, CAST at N*, the chain) of every cell that has all three."""
    block = measured_panel(study, settings, COMPARISON)
    found = []
    for setting, domain in block.places:
        eagle = _cell(block, setting, domain, "eagle3", EAGLE_NODES)
        tree, chain = block.deployed(setting, domain), _cell(block, setting, domain, CHAIN)
        if eagle and chain and len(tree):
            found.append((setting, domain, eagle, tree.iloc[-1].to_dict(), chain))
    if not found:
        raise NotMeasured(f"no cell has EAGLE-3's tree of {EAGLE_NODES + 1} tokens beside the chain and CAST")
    return found


def _cell(block: Panel, setting: str, domain: str, method: str, budget: int | None = None) -> dict | None:
    rows = block.of(setting, domain, method=method, **({} if budget is None else {"budget": budget}))
    rows = rows[rows["prompts"] > 0]
    return rows.iloc[-1].to_dict() if len(rows) else None


def _dart(study: Study, settings: list[str], quantity: str) -> pd.DataFrame:
    rows = measured_rows(
        study, settings, DART_REPLAY, REPLAY, analysis="budget_sweep", roots="every", quantity=quantity
    )
    return rows[rows["top_k"] == rows["top_k"].min()]


def _dart_lift(study: Study, settings: list[str], budget: int) -> Finding:
    rows = _dart(study, settings, "r_gain_over_chain")
    rows = rows[rows["budget"] == budget]
    if not len(rows):
        raise NotMeasured(f"DART was not replayed at budget {budget}")
    found = [
        Measurement(row["setting"], row["domain"], row["value"], row["low"], row["high"])
        for row in rows.to_dict("records")
    ]
    bars = printed(f"dart_lift_{budget}") / 100
    return judged(
        found,
        as_gain,
        reproduced=within((m.value for m in found), bars, 3) and all_above(found),
        direction=all_above(found),
        printed=bars,
    )


def _dart_trees(study: Study, settings: list[str], budgets: Sequence[int]) -> list[tuple[str, str, pd.DataFrame]]:
    """DART's tree of each of these budgets, ascending, where all were measured."""
    block = measured_panel(study, settings, COMPARISON)
    found = []
    for setting, domain in block.places:
        cells = block.of(setting, domain, method="dart")
        cells = cells[(cells["prompts"] > 0) & cells["budget"].isin(budgets)].sort_values("budget")
        if len(cells) == len(budgets):
            found.append((setting, domain, cells))
    if not found:
        raise NotMeasured(f"no DART head was measured at {', '.join(map(str, budgets))} nodes")
    return found
