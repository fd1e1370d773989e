"""Claims about the predicted width: its gain, the sweep's oracle, and what other widths would have given."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from .. import paper, tables
from ..data import CHAIN, PLAIN, TREE, Study, Summary
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    all_above,
    as_gain,
    as_measurements,
    as_points,
    judged,
    listed,
    needs_interval,
    no_gain,
    printed,
    reaches,
    sweep_cells,
    unmeasured,
    within,
)
from .paired import ahead, behind, gain_over


def faster_in_every_setting(study: Study, settings: list[str]) -> Finding:
    gains = _at_predicted(study, settings)
    return judged(
        gains,
        as_gain,
        reproduced=all_above(gains),
        direction=all(m.value > 0 for m in gains) and any(m.low > 0 for m in gains),
    )


def average_gain_range(study: Study, settings: list[str]) -> Finding:
    gains = _at_predicted(study, settings)
    bars = paper.table("table2")["gain_percent"] / 100
    return judged(
        gains,
        as_gain,
        reproduced=within((m.value for m in gains), bars, 3) and all_above(gains),
        direction=all_above(gains),
        printed=bars,
    )


def best_domain_gain(study: Study, settings: list[str]) -> Finding:
    cells = sweep_cells(study, settings, study.predicted)
    best = max(as_measurements(cells), key=lambda m: m.value)
    budget = int(cells[best.setting, best.place]["budget"])
    table = paper.table("table12").pivot(
        index=["setting", "domain"], columns=["method", "width"], values="ms_per_token"
    )
    bar = (table[CHAIN, 15] / table[TREE, 127] - 1).max()
    found = judged(
        [best],
        lambda m: f"{as_gain(m)} (N* = {budget})",
        reproduced=reaches(best, bar, 3),
        direction=all_above([best]),
        printed=[bar],
    )
    return Finding(found.ours, found.reproduced, found.direction, _settings(cells), found.deviation)


def matches_oracle(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    matched = [name for name, gap in gaps.items() if gap["width"] == gap["oracle_width"]]
    if not matched:
        needs_interval(gap["gap_low"] for gap in gaps.values())
    widths = "; ".join(f"{n}: N* = {int(g['width'])}, oracle {int(g['oracle_width'])}" for n, g in gaps.items())
    return Finding(
        f"{len(matched)} of {len(gaps)} settings: {widths}",
        len(gaps) > 1 and len(matched) >= 0.75 * len(gaps),
        bool(matched)
        or all(gap["gap_high"] >= 0 and gap["gap_low"] >= -20 * gap["oracle_gain"] for gap in gaps.values()),
        tuple(gaps),
    )


def gap_to_oracle(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    points = [Measurement(name, "", gap["gap_points"], gap["gap_low"], gap["gap_high"]) for name, gap in gaps.items()]
    needs_interval(m.low for m in points)
    bars = paper.table("table2")["gap_points"]
    return judged(
        points,
        as_points,
        reproduced=all(round(m.low, 1) >= bars.min() for m in points),
        direction=all(g["oracle_gain"] > 0 and g["gain"] >= 0.8 * g["oracle_gain"] for g in gaps.values()),
        printed=bars,
    )


def too_wide_costs(study: Study, settings: list[str]) -> Finding:
    """Points of mean gain that the widest tree lies behind the one at N*, paired by prompt."""
    row = paper.table("table2").set_index("setting").loc["blackwell-qwen3_8b"]
    bar = row["gain_percent"] - row["gain_at_127_percent"]
    losses = []
    for name in settings:
        predicted, widths = study.predicted(name), _common_widths(study, name)
        if predicted in widths[:-1]:
            losses.append(behind(study, name, widths[-1], predicted))
    if not losses:
        raise NotMeasured("no setting here predicts a width below the largest swept in every domain")
    needs_interval(m.low for m in losses)
    return judged(
        losses,
        lambda m: f"{as_points(m)} lost",
        reproduced=any(reaches(m, bar, 1) for m in losses),
        direction=any(m.low > 0 for m in losses),
        printed=[bar],
    )


def width_depends_on_deployment(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    if len(gaps) < 2:
        raise NotMeasured("it takes two settings with a sweep and a prediction")
    oracles = {int(gap["oracle_width"]) for gap in gaps.values()}
    predicted = {int(gap["width"]) for gap in gaps.values()}
    return Finding(
        "; ".join(f"{n}: oracle {int(g['oracle_width'])}, N* = {int(g['width'])}" for n, g in gaps.items()),
        len(oracles) > 1 and len(predicted) > 1,
        len(oracles) > 1 or len(predicted) > 1,
        tuple(gaps),
    )


def without_sweeping(study: Study, settings: list[str]) -> Finding:
    seconds = {name: (study.prediction_seconds(name), study.sweep_seconds(name)) for name in settings}
    seconds = {name: pair for name, pair in seconds.items() if None not in pair}
    if not seconds:
        raise NotMeasured("no setting has wall times of probe, scores and sweep")
    return Finding(
        "; ".join(f"{name}: {pair[0]:.0f} s against {pair[1]:.0f} s" for name, pair in seconds.items()),
        all(prediction < sweep for prediction, sweep in seconds.values()),
        any(prediction < sweep for prediction, sweep in seconds.values()),
        tuple(seconds),
    )


def speedup_over_ar(study: Study, settings: list[str]) -> Finding:
    gains = _averages_at_predicted(study, settings)
    speedups = [_speedup(study, name) for name, gain in gains.items() if pd.notna(gain["speedup"])]
    if not speedups:
        raise NotMeasured("no autoregressive baseline")
    table = paper.table("table1")
    chosen = (table["temperature"] == 0) & (table["method"] == TREE) & (table["domain"] == "average")
    average = table.loc[chosen, "speedup"].min()
    return judged(
        speedups,
        lambda m: f"{m.value:.2f}x [{m.low:.2f}, {m.high:.2f}]",
        reproduced=all_above(speedups, 1.0) and all(m.value >= 0.9 * average for m in speedups),
        direction=all(m.value > 1 for m in speedups),
        printed=[average],
    )


def peaks_near_largest(study: Study, settings: list[str]) -> Finding:
    ranks = {}
    for name in settings:
        widths = study.tree_widths(name)
        if not widths or study.predicted(name) != widths[-1]:
            continue
        for domain in study.measured_domains(name):
            gains = {width: study.cell(name, domain, TREE, width) for width in widths}
            gains = {n: cell["gain"] for n, cell in gains.items() if cell is not None and pd.notna(cell["gain"])}
            if len(gains) < 3:  # one of two widths is always one of the two largest
                continue
            best = max(gains, key=gains.get)
            ranks[name, domain] = (best, [*gains][::-1].index(best), len(gains))
    if not ranks:
        raise NotMeasured("no setting here predicts its largest of three swept widths (no flat cost curve)")
    return Finding(
        "; ".join(f"{name}, {domain}: {best}" for (name, domain), (best, _, _) in ranks.items()),
        all(rank < 2 for _, rank, _ in ranks.values()),
        all(rank < count / 2 for _, rank, count in ranks.values()),
        _settings(ranks),
    )


def wider_where_flatter(study: Study, settings: list[str]) -> Finding:
    found = {}
    for name in settings:
        content = study.widths.get(name)
        deployed = content["predictions"][content["default"]] if study.predicted(name) is not None else {}
        if deployed.get("slope_ms_per_token") is not None:
            found[name] = (float(deployed["slope_ms_per_token"]), int(content["width"]))
    if len(found) < 2:
        raise NotMeasured("it takes two settings with a width predicted from a cost slope")
    # Each pair as (flatter, steeper).
    pairs = [sorted(pair) for pair in combinations(found.values(), 2)]
    return Finding(
        "; ".join(f"{name}: {pair[0]:.4f} ms per token, N* = {pair[1]}" for name, pair in found.items()),
        all(flatter[1] > steeper[1] for flatter, steeper in pairs),
        all(flatter[1] >= steeper[1] for flatter, steeper in pairs),
        tuple(found),
    )


def crossing_near_optimum(study: Study, settings: list[str]) -> Finding:
    """Whether the oracle is one of the two swept widths around the rule's crossing."""
    found = {}
    for name, gap in _gaps(study, settings).items():
        content = study.widths[name]
        deployed = content["predictions"][content["default"]]
        widths = np.array(study.tree_widths(name))
        if deployed.get("crossing") is None or deployed.get("threshold") is None:
            continue
        place = int(np.searchsorted(widths, deployed["crossing"]))
        around = widths[max(0, place - 1) : place + 1]
        found[name] = (deployed, int(gap["oracle_width"]), int(gap["oracle_width"]) in around)
    if not found:
        raise NotMeasured("no setting has a crossing and a sweep")
    return Finding(
        "; ".join(
            f"{name}: threshold {deployed['threshold']:.3f} crossed at {deployed['crossing']}, oracle {oracle}"
            for name, (deployed, oracle, _) in found.items()
        ),
        all(near for _, _, near in found.values()),
        any(near for _, _, near in found.values()),
        tuple(found),
    )


def every_width_beats_chain(study: Study, settings: list[str]) -> Finding:
    """Of all widths of at least the chain's own node count, in every domain."""
    cells = []
    for name in settings:
        for width in study.tree_widths(name):
            if width >= (study.chain_budget(name) or 0):
                for domain in study.measured_domains(name):
                    cell = study.cell(name, domain, TREE, width)
                    if cell is not None and pd.notna(cell["gain"]):
                        place = f"{domain}, N = {width}"
                        cells.append(Measurement(name, place, cell["gain"], cell["gain_low"], cell["gain_high"]))
    if not cells:
        raise NotMeasured(unmeasured(study, settings))
    faster, certain = sum(m.value > 0 for m in cells), sum(m.low > 0 for m in cells)
    return Finding(
        f"{faster} of {len(cells)} cells faster, {certain} with the interval above 0: {listed(cells, as_gain)}",
        all_above(cells),
        faster == len(cells),
        tuple(dict.fromkeys(m.setting for m in cells)),
    )


def throughput_is_unimodal(study: Study, settings: list[str]) -> Finding:
    """Whether gains rise up to the best width and fall after it; shown: each step against that, paired by prompt."""
    reversals, steps = [], 0
    for name, curve in _curves_of_gains(study, settings).items():
        best = max(curve, key=lambda width: curve[width]["gain"])
        for before, after in pairwise(curve):
            steps += 1
            step = curve[after]["gain"] - curve[before]["gain"]
            if step < 0 and after <= best:
                reversals.append(behind(study, name, after, before))
            elif step > 0 and before >= best:
                reversals.append(behind(study, name, before, after))
    needs_interval(m.low for m in reversals)
    shown = f": {listed(reversals, lambda m: f'{as_points(m)} behind')}" if reversals else ""
    return Finding(
        f"{len(reversals)} of {steps} steps go against one peak{shown}",
        not reversals,
        all(m.low <= 0 for m in reversals),
        tuple(_curves_of_gains(study, settings)),
    )


def wide_plateau(study: Study, settings: list[str]) -> Finding:
    """Spread of the tree's time over the widths of 63 and more, largest over smallest minus one."""
    spreads = []
    for name in _flat(study, settings):
        widths = [width for width in study.tree_widths(name) if width >= 63]
        for domain in study.measured_domains(name) if len(widths) > 1 else []:
            cells = [study.cell(name, domain, TREE, width) for width in widths]
            times = [cell["ms_per_token"] for cell in cells if cell is not None]
            if len(times) > 1:
                spreads.append(Measurement(name, domain, max(times) / min(times) - 1))
    if not spreads:
        raise NotMeasured("no domain was swept at two widths from 63")
    bar = printed("llama_flat").max() / 100
    return judged(
        spreads,
        lambda m: tables.percent(m.value),
        reproduced=all(m.value <= bar + 5e-4 for m in spreads),
        direction=all(m.value <= 0.10 for m in spreads),
    )


def last_step_is_a_plateau(study: Study, settings: list[str]) -> Finding:
    steps = _last_steps(study, _flat(study, settings))
    bar = printed("coder_last_step").iloc[0]
    return judged(
        steps,
        as_points,
        reproduced=all(abs(round(m.value, 1)) <= bar for m in steps),
        direction=all(abs(m.value) <= 3 for m in steps),
    )


def last_step_not_rewarded(study: Study, settings: list[str]) -> Finding:
    steps = _last_steps(study, _flat(study, settings))
    hosts = printed("second_host", "N = 95").to_numpy() - printed("second_host", "N = 127").to_numpy()
    return judged(
        steps,
        as_points,
        reproduced=all(no_gain(m, hosts.max()) for m in steps),
        direction=any(m.value < 0 for m in steps),
        printed=-hosts,
    )


def second_family(study: Study, settings: list[str]) -> Finding:
    chosen = _of_target(study, settings, "llama31")
    gains = _at_predicted(study, chosen)
    speedups = [study.average(m.setting, TREE, study.predicted(m.setting))["speedup"] for m in gains]
    bar = 0.9 * printed("llama_average").iloc[0]
    above = all_above(gains)
    return judged(gains, as_gain, reproduced=above and all(value >= bar for value in speedups), direction=above)


def mixture_of_experts(study: Study, settings: list[str]) -> Finding:
    gains = _at_predicted(study, _of_target(study, settings, "coder"))
    bar = printed("coder_gain").iloc[0] / 100
    return judged(
        gains,
        as_gain,
        reproduced=all(reaches(m, bar, 3) for m in gains),
        direction=all_above(gains),
        printed=[bar],
    )


def _of_target(study: Study, settings: list[str], part: str) -> list[str]:
    chosen = [name for name in settings if part in study.target(name)]
    if not chosen:
        raise NotMeasured(f"no setting here has the paper's target ({part})")
    return chosen


def _at_predicted(study: Study, settings: list[str]) -> list[Measurement]:
    gains = _averages_at_predicted(study, settings)
    return [Measurement(name, "", g["gain"], g["gain_low"], g["gain_high"]) for name, g in gains.items()]


def _averages_at_predicted(study: Study, settings: list[str]) -> dict[str, Summary]:
    gains = {}
    for name in settings:
        predicted = study.predicted(name)
        gain = None if predicted is None else study.average(name, TREE, predicted)
        if gain is not None:
            gains[name] = gain
    if not gains:
        raise NotMeasured("; ".join(f"{name}: {study.missing_width(name)}" for name in settings))
    return gains


def _speedup(study: Study, name: str) -> Measurement:
    """Speedup over plain decoding at N*, averaged over domains, with its interval paired by prompt."""
    rows = study.decode[study.decode["setting"] == name]
    tree = rows[(rows["method"] == TREE) & (rows["budget"] == study.predicted(name))]
    return Measurement(name, "", *(1 + end for end in gain_over(tree, rows[rows["method"] == PLAIN])))


def _gaps(study: Study, settings: list[str]) -> dict[str, Summary]:
    gaps = {name: study.gap(name) for name in settings}
    gaps = {name: gap for name, gap in gaps.items() if gap is not None}
    if not gaps:
        raise NotMeasured("; ".join(f"{name}: {study.missing_width(name)}" for name in settings))
    gaps = {name: gap for name, gap in gaps.items() if gap["widths_compared"] > 2}
    if not gaps:  # a lone width is its own oracle, and any of two lies beside it
        raise NotMeasured("no setting was swept at three widths in every domain")
    return gaps


def _curves_of_gains(study: Study, settings: list[str]) -> dict[str, dict[int, Summary]]:
    """setting -> width -> gain averaged over all its domains, for settings with three widths or more."""
    curves = {}
    for name in settings:
        widths = _common_widths(study, name)
        if len(widths) > 2:
            curves[name] = {width: study.average(name, TREE, width) for width in widths}
    if not curves:
        raise NotMeasured("no setting was swept at three widths in every domain")
    return curves


def _common_widths(study: Study, name: str) -> list[int]:
    """Swept widths that have a gain in every domain of the setting, ascending."""
    domains = len(study.measured_domains(name))
    averages = {width: study.average(name, TREE, width) for width in study.tree_widths(name)}
    return [width for width, average in averages.items() if average is not None and average["domains"] == domains]


def _last_steps(study: Study, settings: list[str]) -> list[Measurement]:
    """Change of the mean gain over the last step of the sweep, in points, paired by prompt."""
    steps = []
    for name, curve in _curves_of_gains(study, settings).items():
        before, last = [*curve][-2:]
        steps.append(ahead(study, name, last, before))
    needs_interval(m.low for m in steps)
    return steps


def _flat(study: Study, settings: list[str]) -> list[str]:
    """Settings whose cost curve lets the rule go to the end of the sweep."""
    flat = [name for name in settings if study.predicted(name) in study.tree_widths(name)[-2:]]
    if not flat:
        raise NotMeasured("no setting here predicts a width at the end of its sweep (no flat cost curve)")
    return flat


def _settings(cells: dict) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key[0] for key in cells))
