"""Claims about other drafters: EAGLE-3 on the same timer, and DART by replay and by its own tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from cast.experiments.records import DECODE, REPLAY

from .. import paper, tables
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
    needs_interval,
    place,
    printed,
    within,
)
from .paired import cell_gain

COMPARISON, DART_REPLAY = "drafter_comparison", "dart_replay"
# EAGLE's trees of 16 and 60 tokens count their root.
EAGLE_TREES, EAGLE_NODES, DART_BUDGETS = (15, 59), 59, (8, 16, 32, 60)


def faster_than_eagle3(study: Study, settings: list[str]) -> Finding:
    block = measured_panel(study, settings, COMPARISON)
    found = [
        Measurement(setting, place(study, tree), *cell_gain(block, tree, eagle))
        for setting, _, eagle, tree, _ in _beside_eagle3(study, settings)
    ]
    bars = printed("cast_over_eagle3") / 100
    return judged(
        found,
        as_gain,
        reproduced=all_above(found) and within((m.value for m in found), bars, 2),
        direction=all(m.value > 0 for m in found),
        printed=bars,
    )


def chain_trails_eagle3(study: Study, settings: list[str]) -> Finding:
    """Gains of EAGLE-3 over the chain and of CAST over EAGLE-3."""
    block = measured_panel(study, settings, COMPARISON)
    cells = []
    for setting, _, eagle, tree, chain in _beside_eagle3(study, settings):
        where = place(study, tree)
        over_chain = Measurement(setting, f"{where}, EAGLE-3 over the chain", *cell_gain(block, eagle, chain))
        over_eagle = Measurement(setting, f"{where}, CAST over EAGLE-3", *cell_gain(block, tree, eagle))
        cells.append((over_chain, over_eagle))
    needs_interval(m.low for pair in cells for m in pair)
    return judged(
        [m for pair in cells for m in pair],
        as_gain,
        reproduced=any(over_chain.low > 0 and over_eagle.low > 0 for over_chain, over_eagle in cells),
        direction=all(over_eagle.value > 0 for _, over_eagle in cells),
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


def eagle3_larger_tree_is_faster(study: Study, settings: list[str]) -> Finding:
    """Gain of the larger of EAGLE-3's trees over the smaller one, of every head."""
    block = measured_panel(study, settings, COMPARISON)
    found, longer = [], []
    for setting, domain in block.places:
        cells = block.of(setting, domain, method="eagle3")
        for head, of_head in cells[cells["prompts"] > 0].groupby("drafter"):
            trees = {row["budget"]: row for row in of_head.to_dict("records")}
            if set(EAGLE_TREES) <= set(trees):
                small, large = (trees[nodes] for nodes in EAGLE_TREES)
                found.append(Measurement(setting, f"{domain}, {head}", *cell_gain(block, large, small)))
                longer.append(large["r_prompt_mean"] > small["r_prompt_mean"])
    if not found:
        raise NotMeasured("no EAGLE-3 head was measured with trees of 16 and of 60 tokens")
    printed_times = paper.table("table13").dropna(subset="head")
    times = printed_times.pivot(index=["head", "domain"], columns="width", values="ms_per_token")
    return judged(
        found,
        as_gain,
        reproduced=all_above(found) and all(longer),
        direction=all(m.value > 0 for m in found),
        printed=times[16] / times[60] - 1,
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
    """Gain of DART's own tree of 60 nodes over that of 8, and its speedup."""
    block = measured_panel(study, settings, COMPARISON)
    found, speedups = [], {}
    for setting, domain, cells in _dart_trees(study, settings, (DART_BUDGETS[0], DART_BUDGETS[-1])):
        narrow, wide = cells.to_dict("records")
        gain = Measurement(setting, domain, *cell_gain(block, wide, narrow))
        found.append(gain)
        speedups[gain.label] = wide["speedup"]
    bar = 0.9 * printed("dart_tree_speedup", within="60").min()
    return judged(
        found,
        lambda m: f"{as_gain(m)}, at {speedups[m.label]:.2f}x",
        reproduced=all_above(found) and all(speedup >= bar for speedup in speedups.values()),
        direction=all(m.value > 0 for m in found),
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
