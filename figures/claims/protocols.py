"""Claims about sampling, repetition, length and company: the gain at N* under other protocols."""

from __future__ import annotations

import pandas as pd

from .. import shared_device
from ..data import CHAIN, TREE, Study
from ..panels import REPEATED, SAMPLED
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    all_above,
    as_gain,
    as_points,
    deployed_trees,
    difference,
    gains,
    judged,
    measured_panel,
    printed,
    reaches,
    within,
)


def sampled_gain_range(study: Study, settings: list[str]) -> Finding:
    found = gains(_sampled(study, settings))
    bars = printed("sampled_gain") / 100
    return judged(
        found,
        as_gain,
        reproduced=within((m.value for m in found), bars, 2) and all_above(found),
        direction=all_above(found),
        printed=bars,
    )


def every_seed_gains(study: Study, settings: list[str]) -> Finding:
    found = [_measured(row, row["seed_gain_low"]) for row in _seeded(study, settings)]
    bar = printed("sampled_gain_blackwell").iloc[0] / 100
    return judged(
        found,
        lambda m: f"{100 * m.value:+.1f}% at the least seed",
        reproduced=all(m.value > bar for m in found),
        direction=all(m.value > 0 for m in found),
    )


def seeds_take_the_same_time(study: Study, settings: list[str]) -> Finding:
    found = [_measured(row, row["seed_ms_deviation"]) for row in _seeded(study, settings)]
    bar = printed("sampled_seed_spread").iloc[0] / 100
    return judged(
        found,
        lambda m: f"{100 * m.value:.1f}%",
        reproduced=all(m.value <= bar + 5e-3 for m in found),
        direction=all(m.value <= 0.10 for m in found),
    )


def sampling_shortens_rounds(study: Study, settings: list[str]) -> Finding:
    """R at temperature one minus R of the greedy sweep, of the chain and of the tree at the same width."""
    found = []
    for row in _rows(_sampled(study, settings)):
        budgets = {CHAIN: study.chain_budget(row["setting"]), TREE: row["budget"]}
        greedy = {
            method: study.cell(row["setting"], row["domain"], method, budget) for method, budget in budgets.items()
        }
        if None in greedy.values():
            continue
        for method, column in ((CHAIN, "dflash_r_prompt_mean"), (TREE, "r_prompt_mean")):
            place = f"{row['domain']}, {method}"
            found.append(Measurement(row["setting"], place, row[column] - greedy[method]["r_prompt_mean"]))
    if not found:
        raise NotMeasured("no width was decoded both at temperature one and in the greedy sweep")
    by_method = {method: [m.value for m in found if m.place.endswith(method)] for method in (CHAIN, TREE)}
    return judged(
        found,
        lambda m: f"{m.value:+.2f}",
        reproduced=all(m.value < 0 for m in found),
        direction=all(sum(values) < 0 for values in by_method.values()),
    )


def prompt_gain_bound(study: Study, settings: list[str]) -> Finding:
    found = gains(_repeated(study, settings), "prompt_gain")
    bar = printed("bootstrap_bound").iloc[0] / 100
    return judged(
        found, as_gain, reproduced=all_above(found, bar), direction=all_above(found), printed=[bar, float("inf")]
    )


def runs_agree(study: Study, settings: list[str]) -> Finding:
    """Change of the gain at N* over the repeats, in points."""
    return _spread(_repeated(study, settings), printed("run_to_run").iloc[0])


def panel_repeats(study: Study, settings: list[str]) -> Finding:
    """Change of every gain of the panel over its repeats, in points."""
    block = measured_panel(study, settings, REPEATED, "repeat_summary")
    return _spread(block.cells[block.cells["method"] == TREE], printed("panel_repeats").iloc[0])


def longer_generations(study: Study, settings: list[str]) -> Finding:
    block = measured_panel(study, settings, "generation_length", split="max_new_tokens")
    found, kept = [], []
    for setting, domain in block.places:
        cells = block.cells[(block.cells["setting"] == setting) & (block.cells["domain"] == domain)]
        limits = sorted(cells["max_new_tokens"].unique())
        ends = [block.deployed(setting, domain, max_new_tokens=limit) for limit in (limits[0], limits[-1])]
        if len(limits) > 1 and all(len(end) for end in ends):
            short, long = (end.iloc[-1] for end in ends)
            place = f"{domain}, {limits[-1]} new tokens"
            found.append(Measurement(setting, place, long["gain"], long["gain_low"], long["gain_high"]))
            kept.append(100 * (long["gain"] - short["gain"]))
    if not found:
        raise NotMeasured("no cell was decoded to two lengths")
    pair = printed("generation_length")
    lost = pair.max() - pair.min()
    shown = judged(
        found,
        as_gain,
        reproduced=all_above(found) and all(round(change) >= -lost for change in kept),
        direction=all_above(found),
        printed=pair / 100,
    )
    changes = ", ".join(f"{change:+.1f}" for change in kept)
    ours = f"{shown.ours}; change from the shortest: {changes} points"
    return Finding(ours, shown.reproduced, shown.direction, shown.settings, shown.deviation)


def long_prefix_gain(study: Study, settings: list[str]) -> Finding:
    found = gains(deployed_trees(_long(study, settings), settings))
    bars = printed("long_prefix") / 100
    return judged(
        found,
        as_gain,
        reproduced=all(reaches(m, bars.min(), 2) for m in found),
        direction=all_above(found),
        printed=bars,
    )


def long_prefix_gap(study: Study, settings: list[str]) -> Finding:
    """Gain at N* minus that of the best width behind the long prefix, in points."""
    found, shares = [], []
    for setting, trees, deployed in _long_cells(study, settings):
        if deployed["budget"] != study.predicted(setting) or len(trees) < 2:  # one width is the best of itself
            continue
        best = trees["gain"].max()
        found.append(_measured(deployed, 100 * (deployed["gain"] - best)))
        shares.append(deployed["gain"] / best if best > 0 else float("-inf"))
    if not found:
        raise NotMeasured("no long prefix was decoded at the predicted width and another")
    bar = printed("long_prefix_gap").iloc[0]
    return judged(
        found,
        as_points,
        reproduced=all(round(m.value) >= -bar for m in found),
        direction=all(share >= 0.8 for share in shares),
    )


def long_prefix_is_flat(study: Study, settings: list[str]) -> Finding:
    """Spread of the gains over the widths from 47 behind the long prefix, in points."""
    found = []
    for setting, trees, _ in _long_cells(study, settings):
        wide = trees.loc[trees["budget"] >= 47, "gain"]
        if len(wide) > 1:
            found.append(Measurement(setting, str(trees["domain"].iloc[0]), 100 * (wide.max() - wide.min())))
    if not found:
        raise NotMeasured("no long prefix was decoded at two widths from 47")
    bar = printed("long_prefix_spread").iloc[0]
    return judged(
        found,
        lambda m: f"{m.value:.1f} points",
        reproduced=all(round(m.value) <= bar for m in found),
        direction=all(m.value <= 10 for m in found),
    )


def shared_device_inflates(study: Study, settings: list[str]) -> Finding:
    """Gain beside a neighbour minus the idle sweep's on the same prompts, in points; its interval from both gains'."""
    block = measured_panel(study, settings, shared_device.EXPERIMENT)
    found = []
    for row in _rows(deployed_trees(block, settings)):
        cells = shared_device.common_cells(study, row["setting"], row["domain"])
        idle, shared = (shared_device.trees_by_width(cells[side]).get(row["budget"]) for side in shared_device.SIDES)
        if idle and shared:
            found.append(Measurement(row["setting"], row["place"], *(100 * end for end in difference(shared, idle))))
    if not found:
        raise NotMeasured("no cell has prompts that were measured both beside a neighbour and on an idle device")
    beside, alone = (printed("shared_gpu", within=word).iloc[0] for word in ("shared", "idle"))
    return judged(
        found,
        as_points,
        reproduced=all_above(found),
        direction=sum(m.value for m in found) > 0,
        printed=[beside - alone],
    )


def _sampled(study: Study, settings: list[str]) -> pd.DataFrame:
    return deployed_trees(measured_panel(study, settings, SAMPLED, "seed_summary"), settings)


def _seeded(study: Study, settings: list[str]) -> list[dict]:
    """The cells of two seeds or more."""
    found = [row for row in _rows(_sampled(study, settings)) if row["seeds"] > 1]
    if not found:
        raise NotMeasured("every cell was decoded with one seed only")
    return found


def _repeated(study: Study, settings: list[str]) -> pd.DataFrame:
    return deployed_trees(measured_panel(study, settings, REPEATED, "repeat_summary"), settings)


def _spread(cells: pd.DataFrame, bar: float) -> Finding:
    cells = cells[cells["repeats"] > 1]
    if not len(cells):
        raise NotMeasured("no cell was measured twice")
    found = [_measured(row, row["repeat_change_points"]) for row in _rows(cells)]
    return judged(
        found,
        lambda m: f"{m.value:.1f} points",
        reproduced=all(round(m.value, 1) <= bar for m in found),
        direction=all(row["repeat_gain_low"] > 0 for row in _rows(cells)),
    )


def _long(study: Study, settings: list[str]):
    return measured_panel(study, settings, "long_prefix")


def _long_cells(study: Study, settings: list[str]) -> list[tuple[str, pd.DataFrame, dict]]:
    """(setting, every tree, the deployed one) of each long-prefix cell."""
    block = _long(study, settings)
    cells = [
        (setting, block.trees(setting, domain), block.deployed(setting, domain)) for setting, domain in block.places
    ]
    found = [(s, trees, deployed.iloc[-1].to_dict()) for s, trees, deployed in cells if len(deployed)]
    if not found:
        raise NotMeasured("no long-prefix cell has both the chain and a tree")
    return found


def _rows(cells: pd.DataFrame) -> list[dict]:
    return cells.to_dict("records")


def _measured(row: dict, value: float) -> Measurement:
    return Measurement(row["setting"], row.get("place", f"{row['domain']}, N = {row['budget']}"), value)
