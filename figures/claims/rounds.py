"""Claims about rounds: the tree's shape, the committed length R, and what a wider round costs besides the target."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cast.experiments.records import DECODE

from .. import paper, tables
from ..data import CHAIN, SWEEP, TREE, Study
from ..panels import REPEATED
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    all_above,
    as_gain,
    as_measurements,
    as_number,
    as_points,
    chain_cell,
    deviation,
    judged,
    listed,
    measured_panel,
    sweep_cells,
    unmeasured,
    within,
)
from .paired import ahead, cell_gain


def shape_alone_helps(study: Study, settings: list[str]) -> Finding:
    cells = as_measurements(sweep_cells(study, settings, study.chain_budget))
    certain = all_above(cells)
    faster = sum(m.value > 0 for m in cells)
    above = sum(m.low > 0 for m in cells)
    return Finding(
        f"{faster} of {len(cells)} cells faster, {above} with the interval above 0",
        certain,
        faster == len(cells) and above > 0,
        _settings(cells),
    )


def shape_gain_range(study: Study, settings: list[str]) -> Finding:
    cells = as_measurements(sweep_cells(study, settings, study.chain_budget))
    bars = paper.table("table9")["gain_percent"] / 100
    values = [m.value for m in cells]
    return Finding(
        f"{tables.percent(min(values))} to {tables.percent(max(values))}",
        within(values, bars, 3) and all_above(cells),
        all_above(cells),
        _settings(cells),
        deviation(cells, bars),
    )


def shape_lifts_rounds(study: Study, settings: list[str]) -> Finding:
    cells = sweep_cells(study, settings, study.chain_budget)
    lifts = [cell["r_pooled"] - chain_cell(study, key)["r_pooled"] for key, cell in cells.items()]
    bars = (paper.table("table9")["tree_r"] - paper.table("table9")["dflash_r"]).round(2)
    return Finding(
        f"{min(lifts):+.2f} to {max(lifts):+.2f} (pooled)",
        within(lifts, bars, 2),
        min(lifts) > 0,
        _settings(as_measurements(cells)),
    )


def width_beyond_shape(study: Study, settings: list[str]) -> Finding:
    wider = [name for name in settings if (study.predicted(name) or 0) > (study.chain_budget(name) or np.inf)]
    if not wider:
        raise NotMeasured("no setting here has both a chain and a predicted width above it")
    at_predicted, at_shape = (
        sweep_cells(study, wider, study.predicted), sweep_cells(study, wider, study.chain_budget)
    )  # fmt: skip
    both = [key for key in at_predicted if key in at_shape]
    if not both:
        raise NotMeasured("no cell has both the tree of the chain's node count and N*")
    points = [100 * (at_predicted[key]["gain"] - at_shape[key]["gain"]) for key in both]
    names = dict.fromkeys(name for name, _ in both)
    added = [ahead(study, name, study.predicted(name), study.chain_budget(name)) for name in names]
    table7, table9 = (
        paper.table(name).set_index(["setting", "domain"])["gain_percent"] for name in ("table7", "table9")
    )
    bars = (table7 - table9).loc[["blackwell-qwen3_8b", "blackwell-qwen3_4b"]].round(1)
    mean = sum(points) / len(points)
    return Finding(
        f"mean {mean:+.1f} points, {min(points):+.1f} to {max(points):+.1f} over {len(points)} cells; "
        f"{listed(added, as_points)}",
        all_above(added) and within([mean], bars, 1),
        mean > 0,
        _settings(as_measurements(at_predicted)),
    )


def longer_rounds(study: Study, settings: list[str]) -> Finding:
    cells = sweep_cells(study, settings, study.predicted)
    lifts = {
        statistic: [cell[statistic] - chain_cell(study, key)[statistic] for key, cell in cells.items()]
        for statistic in ("r_prompt_mean", "r_pooled")
    }
    longer = sum(min(pair) > 0 for pair in zip(*lifts.values(), strict=True))
    mean = sum(lifts["r_prompt_mean"]) / len(cells)
    return Finding(
        f"longer in {longer} of {len(cells)} cells, mean lift {mean:+.2f} (mean over prompts)",
        longer == len(cells),
        mean > 0,
        _settings(as_measurements(cells)),
    )


def round_length_statistics(study: Study, settings: list[str]) -> Finding:
    cells = {
        (name, domain, method, budget): cell
        for name in settings
        for domain in study.measured_domains(name)
        for method, budget in [
            (CHAIN, study.chain_budget(name)),
            *((TREE, n) for n in study.tree_widths(name)),
        ]
        if (cell := study.cell(name, domain, method, budget)) is not None
    }
    if not cells:
        raise NotMeasured(unmeasured(study, settings))
    differences = {key: cell["r_prompt_mean"] / cell["r_pooled"] - 1 for key, cell in cells.items()}
    key = max(differences, key=lambda key: abs(differences[key]))
    largest = abs(differences[key])
    return Finding(
        f"largest difference {tables.percent(differences[key])} ({', '.join(map(str, key))}): "
        f"{cells[key]['r_prompt_mean']:.2f} mean over prompts, {cells[key]['r_pooled']:.2f} pooled",
        largest < 0.02,
        largest < 0.10,
        tuple(dict.fromkeys(name for name, *_ in cells)),
    )


def one_draft_pass_a_round(study: Study, settings: list[str]) -> Finding:
    rows = _sweep_rows(study, settings, traced=False)
    rows = rows[rows["method"].isin([CHAIN, TREE])]
    if not len(rows):
        raise NotMeasured("neither chain nor tree was measured")
    passes = rows.groupby(["setting", "method", "budget"])[["drafter_passes", "rounds"]].sum().astype(float)
    ratio = passes["drafter_passes"] / passes["rounds"]
    found = [Measurement(s, f"{method}, N = {n}", value) for (s, method, n), value in ratio.items()]
    # The draft before the last round's verification may have no round of its own, and the first is outside the timer.
    extra = (rows["drafter_passes"] - rows["rounds"]).astype(float)
    return judged(
        found,
        lambda m: f"{as_number(m)} passes a round",
        reproduced=bool((extra <= 1).all()),
        direction=bool((ratio <= 1.05).all()),
    )


def drafting_ignores_width(study: Study, settings: list[str]) -> Finding:
    """Draft time of a round at the widest tree over the chain's, medians of the traced repeats."""
    medians = _traced(study, settings, "draft_ms_per_round").groupby(["setting", "method", "budget"]).median()
    found = []
    for name, values in medians.groupby(level="setting"):
        values = values.droplevel("setting")
        if {CHAIN, TREE} <= set(values.index.get_level_values("method")):
            chain, trees = values[CHAIN].iloc[-1], values[TREE]
            found.append(Measurement(name, f"N = {trees.index[-1]}", trees.iloc[-1] / chain - 1))
    if not found:
        raise NotMeasured("no traced repeat has both the chain and a tree")
    return judged(
        found,
        lambda m: f"{tables.percent(m.value)} against the chain",
        reproduced=all(abs(m.value) <= 0.10 for m in found),
        direction=all(abs(m.value) <= 0.25 for m in found),
    )


def overhead_grows_with_width(study: Study, settings: list[str]) -> Finding:
    """Least-squares slope of the loop's overhead over the tree's width, in ms per node."""
    rows = _traced(study, settings, "overhead_ms_per_round", method=TREE)
    found = []
    for name, values in rows.groupby(level="setting"):
        medians = values.groupby("budget").median()
        if len(medians) > 1:
            slope = np.polyfit(medians.index.to_numpy(float), medians.to_numpy(float), 1)[0]
            found.append(Measurement(name, "", float(slope)))
    if not found:
        raise NotMeasured("no traced repeat at two widths")
    return judged(
        found,
        lambda m: f"{m.value:+.4f} ms per node",
        reproduced=all(m.value >= 0 for m in found),
        direction=any(m.value >= 0 for m in found),
    )


def narrow_tree_is_fastest(study: Study, settings: list[str]) -> Finding:
    """At eight packed tokens: the tree of seven nodes over the faster of the chain and the tree of a block of eight."""
    return _against_short_blocks(study, settings, (CHAIN, TREE))


def shrink_the_tree(study: Study, settings: list[str]) -> Finding:
    """At eight packed tokens: the tree of seven nodes over the same tree from a block of eight."""
    return _against_short_blocks(study, settings, (TREE,))


def shared_baseline(study: Study, settings: list[str]) -> Finding:
    """The chain's time in other runs of the same cell, over its time in the sweep."""
    drifts = []
    for experiment in (REPEATED, "drafter_comparison"):
        try:
            block = measured_panel(study, settings, experiment)
        except NotMeasured:
            continue
        for row in block.cells[block.cells["method"] == CHAIN].to_dict("records"):
            swept = study.cell(row["setting"], row["domain"], CHAIN, row["budget"])
            if swept is not None and pd.notna(row["ms_per_token"]):
                place = f"{row['domain']}, {experiment}"
                drifts.append(Measurement(row["setting"], place, row["ms_per_token"] / swept["ms_per_token"] - 1))
    if not drifts:
        raise NotMeasured("the chain of no cell was measured in two experiments")
    return judged(
        drifts,
        lambda m: tables.percent(m.value),
        reproduced=all(abs(m.value) <= 0.02 for m in drifts),
        direction=all(abs(m.value) <= 0.10 for m in drifts),
    )


def _against_short_blocks(study: Study, settings: list[str], methods: tuple[str, ...]) -> Finding:
    """Gain of the tree of seven nodes over the fastest of these methods from a block of eight, paired by prompt."""
    block = measured_panel(study, settings, "block_length", split="block_size")
    fastest, every = [], []
    for setting, domain in block.places:
        cells = block.of(setting, domain, budget=7)
        cells = {(row["method"], row["block_size"]): row for row in cells[cells["prompts"] > 0].to_dict("records")}
        wanted = [(TREE, 16), *((method, 8) for method in methods)]
        if all(key in cells for key in wanted):
            ours, *others = (cells[key] for key in wanted)
            gains = [Measurement(setting, domain, *cell_gain(block, ours, other)) for other in others]
            fastest.append(min(gains, key=lambda m: m.value))
            every += gains
    if not fastest:
        raise NotMeasured("no cell has trees of seven nodes from blocks of 8 and 16")
    return judged(
        fastest,
        lambda m: f"{as_gain(m)} faster",
        reproduced=all_above(every),
        direction=sum(m.value for m in fastest) > 0,
    )


def _sweep_rows(study: Study, settings: list[str], traced: bool) -> pd.DataFrame:
    rows = study.decode if len(study.decode) else study.records(SWEEP, DECODE)
    if len(rows):
        rows = rows[rows["setting"].isin(settings) & (rows["status"] == "measured") & (rows["traced"] == traced)]
    if not len(rows):
        raise NotMeasured(unmeasured(study, settings))
    return rows


def _traced(study: Study, settings: list[str], column: str, **keys: str) -> pd.Series:
    """A column of the traced repeats, indexed by setting, method and budget."""
    rows = _sweep_rows(study, settings, traced=True)
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    return rows.set_index(["setting", "method", "budget"])[column].dropna().astype(float)


def _settings(cells: list[Measurement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(m.setting for m in cells))
