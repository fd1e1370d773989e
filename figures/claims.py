"""What each claim of claims.yaml comes to on the settings of a study: one small function per claim.

Each takes the study and the settings of one scope and returns a `Finding`, or raises `NotMeasured` with the
reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from cast.experiments.records import REPLAY
from cast.width import LatencyCurve

from . import paper, tables
from .data import CHAIN, PROBE, SWEEP, TREE, Study, Summary
from .probe import SLOPE_RANGE, slopes, verification_latency

REPLAY_EXPERIMENT = "replay"


class NotMeasured(Exception):
    """A claim that this study cannot judge; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What was measured, and whether it meets the two bars of the claim."""

    ours: str
    reproduced: bool
    direction: bool
    settings: tuple[str, ...]


def faster_in_every_setting(study: Study, settings: list[str]) -> Finding:
    gains = _gains_at_predicted(study, settings)
    return Finding(
        _list(gains, tables.gain),
        _certain(gains) == len(gains),
        _certain(gains) > 0 and all(gain["gain"] > 0 for gain in gains.values()),
        tuple(gains),
    )


def average_gain_range(study: Study, settings: list[str]) -> Finding:
    gains = _gains_at_predicted(study, settings)
    printed = paper.table("table2")["gain_percent"] / 100
    return Finding(
        _list(gains, lambda gain: tables.percent(gain["gain"])),
        all(printed.min() <= round(gain["gain"], 3) <= printed.max() for gain in gains.values()),
        _certain(gains) == len(gains),
        tuple(gains),
    )


def best_domain_gain(study: Study, settings: list[str]) -> Finding:
    cells = _cells(study, settings, study.predicted)
    (setting, domain), best = max(cells.items(), key=lambda item: item[1]["gain"])
    printed = _printed_h100_gains().max()
    return Finding(
        f"{tables.gain(best)} ({setting}, {domain}, N* = {int(best['budget'])})",
        best["gain_low"] > 0 and best["gain_high"] >= printed,
        best["gain_low"] > 0,
        _settings(cells),
    )


def matches_oracle(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    matched = [name for name, gap in gaps.items() if gap["width"] == gap["oracle_width"]]
    return Finding(
        f"{len(matched)} of {len(gaps)} settings: "
        + _list(gaps, lambda gap: f"N* = {int(gap['width'])}, oracle {int(gap['oracle_width'])}"),
        len(gaps) > 1 and len(matched) >= 0.75 * len(gaps),
        bool(matched) or all(gap["gap_high"] >= 0 for gap in gaps.values()),
        tuple(gaps),
    )


def gap_to_oracle(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    largest = paper.table("table2")["gap_points"].min()
    return Finding(
        _list(gaps, lambda gap: f"{tables.gap(gap)} points"),
        all(round(gap["gap_low"], 1) >= largest for gap in gaps.values()),
        all(gap["oracle_gain"] > 0 and gap["gain"] >= 0.8 * gap["oracle_gain"] for gap in gaps.values()),
        tuple(gaps),
    )


def too_wide_costs(study: Study, settings: list[str]) -> Finding:
    printed = paper.table("table2").set_index("setting").loc["blackwell-qwen3_8b"]
    bar = (printed["gain_percent"] - printed["gain_at_127_percent"]) / 100
    gains = _gains_at_predicted(study, settings)
    pairs = {}
    for name, gain in gains.items():
        largest = study.tree_widths(name)[-1]
        widest = study.average(name, TREE, largest)
        if study.predicted(name) < largest and widest is not None:
            pairs[name] = (gain, widest, largest)
    if not pairs:
        raise NotMeasured("no setting here predicts a width below its largest swept width")
    return Finding(
        _list(
            pairs,
            lambda p: f"{tables.percent(p[0]['gain'])} at N*, {tables.percent(p[1]['gain'])} at N = {p[2]}",
        ),
        any(round(gain["gain"] - widest["gain"], 3) >= round(bar, 3) for gain, widest, _ in pairs.values()),
        any(widest["gain_high"] < gain["gain"] for gain, widest, _ in pairs.values()),
        tuple(pairs),
    )


def width_depends_on_deployment(study: Study, settings: list[str]) -> Finding:
    gaps = _gaps(study, settings)
    if len(gaps) < 2:
        raise NotMeasured("it takes two settings with a sweep and a prediction")
    oracles = {int(gap["oracle_width"]) for gap in gaps.values()}
    predicted = {int(gap["width"]) for gap in gaps.values()}
    return Finding(
        _list(gaps, lambda gap: f"oracle {int(gap['oracle_width'])}, N* = {int(gap['width'])}"),
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
        _list(seconds, lambda pair: f"{pair[0]:.0f} s against {pair[1]:.0f} s"),
        all(prediction < sweep for prediction, sweep in seconds.values()),
        any(prediction < sweep for prediction, sweep in seconds.values()),
        tuple(seconds),
    )


def shape_alone_helps(study: Study, settings: list[str]) -> Finding:
    cells = _cells(study, settings, study.chain_budget)
    above = _certain(cells)
    faster = sum(cell["gain"] > 0 for cell in cells.values())
    return Finding(
        f"{faster} of {len(cells)} cells faster, {above} with the interval above 0",
        above == len(cells),
        faster == len(cells) and above > 0,
        _settings(cells),
    )


def shape_gain_range(study: Study, settings: list[str]) -> Finding:
    cells = _cells(study, settings, study.chain_budget)
    printed = paper.table("table9")["gain_percent"] / 100
    gains = [cell["gain"] for cell in cells.values()]
    return Finding(
        f"{tables.percent(min(gains))} to {tables.percent(max(gains))}",
        printed.min() <= round(min(gains), 3) and round(max(gains), 3) <= printed.max(),
        _certain(cells) == len(cells),
        _settings(cells),
    )


def shape_lifts_rounds(study: Study, settings: list[str]) -> Finding:
    cells = _cells(study, settings, study.chain_budget)
    lifts = [cell["r_pooled"] - _chain(study, key)["r_pooled"] for key, cell in cells.items()]
    printed = (paper.table("table9")["tree_r"] - paper.table("table9")["dflash_r"]).round(2)
    return Finding(
        f"{min(lifts):+.2f} to {max(lifts):+.2f} (pooled)",
        printed.min() <= round(min(lifts), 2) and round(max(lifts), 2) <= printed.max(),
        min(lifts) > 0,
        _settings(cells),
    )


def width_beyond_shape(study: Study, settings: list[str]) -> Finding:
    wider = [name for name in settings if (study.predicted(name) or 0) > (study.chain_budget(name) or np.inf)]
    if not wider:
        raise NotMeasured("no setting here has both a chain and a predicted width above it")
    at_predicted, at_shape = _cells(study, wider, study.predicted), _cells(study, wider, study.chain_budget)
    points = [100 * (cell["gain"] - at_shape[key]["gain"]) for key, cell in at_predicted.items() if key in at_shape]
    if not points:
        raise NotMeasured("no cell has both the tree of the chain's node count and N*")
    table7, table9 = (
        paper.table(name).set_index(["setting", "domain"])["gain_percent"] for name in ("table7", "table9")
    )
    printed = (table7 - table9).loc[["blackwell-qwen3_8b", "blackwell-qwen3_4b"]].round(1)
    mean = sum(points) / len(points)
    return Finding(
        f"mean {mean:+.1f} points, {min(points):+.1f} to {max(points):+.1f} over {len(points)} cells",
        printed.min() <= round(mean, 1) <= printed.max(),
        mean > 0,
        _settings(at_predicted),
    )


def longer_rounds(study: Study, settings: list[str]) -> Finding:
    cells = _cells(study, settings, study.predicted)
    lifts = {
        statistic: [cell[statistic] - _chain(study, key)[statistic] for key, cell in cells.items()]
        for statistic in ("r_prompt_mean", "r_pooled")
    }
    longer = sum(min(pair) > 0 for pair in zip(*lifts.values(), strict=True))
    mean = sum(lifts["r_prompt_mean"]) / len(cells)
    return Finding(
        f"longer in {longer} of {len(cells)} cells, mean lift {mean:+.2f} (mean over prompts)",
        longer == len(cells),
        mean > 0,
        _settings(cells),
    )


def speedup_over_ar(study: Study, settings: list[str]) -> Finding:
    gains = _gains_at_predicted(study, settings)
    speedups = {name: gain["speedup"] for name, gain in gains.items() if pd.notna(gain["speedup"])}
    if not speedups:
        raise NotMeasured("no autoregressive baseline")
    table = paper.table("table1")
    chosen = (table["temperature"] == 0) & (table["method"] == TREE) & (table["domain"] == "average")
    printed = table.loc[chosen, "speedup"].min()
    return Finding(
        _list(speedups, lambda speedup: f"{speedup:.2f}x"),
        all(speedup >= 0.9 * printed for speedup in speedups.values()),
        all(speedup > 1 for speedup in speedups.values()),
        tuple(speedups),
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
            if not gains:
                continue
            best = max(gains, key=gains.get)
            ranks[name, domain] = (best, [*gains][::-1].index(best), len(gains))
    if not ranks:
        raise NotMeasured("no setting here predicts its largest swept width (no flat cost curve)")
    return Finding(
        "; ".join(f"{name}, {domain}: {best}" for (name, domain), (best, _, _) in ranks.items()),
        all(rank < 2 for _, rank, _ in ranks.values()),
        all(rank < count / 2 for _, rank, count in ranks.values()),
        _settings(ranks),
    )


def growth_16_to_64(study: Study, settings: list[str]) -> Finding:
    printed = paper.table("table5").pivot(index="setting", columns="packed_tokens", values="latency_ms")
    growth = _growth(study, settings, 16, 64)
    bar = (printed[64] / printed[16] - 1).max()
    return Finding(
        _list(growth, tables.percent),
        all(value <= round(bar, 3) for value in growth.values()),
        all(value < 1 for value in growth.values()),
        tuple(growth),
    )


def growth_1_to_64(study: Study, settings: list[str]) -> Finding:
    growth = _growth(study, settings, 1, 64)
    return Finding(
        _list(growth, tables.percent),
        all(value <= 0.15 for value in growth.values()),
        all(value < 1 for value in growth.values()),
        tuple(growth),
    )


def cliff(study: Study, settings: list[str]) -> Finding:
    jumps = {}
    for name, (packed, latency) in _curves(study, settings).items():
        at = dict(zip(packed, latency, strict=True))
        if {16, 96, 128} <= set(at):
            trend = LatencyCurve(packed, latency).slope(16, 96) * (128 - 96)
            jumps[name] = (at[128] - at[96] - trend) / at[96]
    if len(jumps) < 2:
        raise NotMeasured("it takes two settings probed at 16, 96 and 128 packed tokens")
    low, high = min(jumps.values()), max(jumps.values())
    return Finding(_list(jumps, tables.percent), high >= 0.10 and low < 0.05, high >= 0.05 > low, tuple(jumps))


def locally_affine(study: Study, settings: list[str]) -> Finding:
    errors = {name: _relative_error(*curve) for name, curve in _curves(study, settings).items()}
    errors = {name: error for name, error in errors.items() if error is not None}
    if not errors:
        raise NotMeasured("no setting is probed at three packed counts in 16 to 128")
    printed = paper.table("table5").groupby("setting")
    bar = max(_relative_error(list(c["packed_tokens"]), list(c["latency_ms"])) for _, c in printed)
    return Finding(
        _list(errors, lambda error: f"{100 * error:.1f}%"),
        all(error <= bar for error in errors.values()),
        all(error <= 0.10 for error in errors.values()),
        tuple(errors),
    )


def slope_estimators(study: Study, settings: list[str]) -> Finding:
    found = {name: slopes(*curve) for name, curve in _curves(study, settings).items()}
    found = {name: pair for name, pair in found.items() if None not in pair.values()}
    if not found:
        raise NotMeasured("no setting is probed at two packed counts in 16 to 128")
    pairs = np.array([list(pair.values()) for pair in found.values()])
    largest = np.abs(pairs).max(axis=1)
    differences = np.abs(pairs[:, 0] - pairs[:, 1]) / np.where(largest > 0, largest, 1)
    return Finding(
        _list(
            found,
            lambda pair: f"{pair['least_squares']:.4f} (fit), {pair['endpoints']:.4f} (endpoints) ms per token",
        ),
        bool(differences.max() < 0.05),
        bool(differences.max() < 0.25),
        tuple(found),
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
        _list(found, lambda pair: f"{pair[0]:.4f} ms per token, N* = {pair[1]}"),
        all(flatter[1] > steeper[1] for flatter, steeper in pairs),
        all(flatter[1] >= steeper[1] for flatter, steeper in pairs),
        tuple(found),
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
        raise NotMeasured(_why(study, settings))
    differences = {key: cell["r_prompt_mean"] / cell["r_pooled"] - 1 for key, cell in cells.items()}
    key = max(differences, key=lambda key: abs(differences[key]))
    largest = abs(differences[key])
    return Finding(
        f"largest difference {tables.percent(differences[key])} ({', '.join(map(str, key))}): "
        f"{cells[key]['r_prompt_mean']:.2f} mean over prompts, {cells[key]['r_pooled']:.2f} pooled",
        largest < 0.02,
        largest < 0.10,
        _settings(cells),
    )


def adaptive_beats_fixed_shapes(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "fixed_shapes", roots="own", quantity="r_gain_over_chain")
    rows = rows[rows["method"] != CHAIN]
    tree, shapes = rows[rows["method"] == TREE], rows[rows["method"] != TREE]
    places = ["setting", "domain"]
    above = tree.set_index(places)["value"] - shapes.groupby(places)["value"].max()
    return Finding(
        "; ".join(f"{row.domain}, {row.method}: {_interval(row)}" for row in rows.itertuples()),
        bool((tree["low"] > 0).all() and not (shapes["low"] > 0).any()),
        bool((above > 0).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def rejections_near_the_top(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rejection_ranks", quantity="share")
    near = rows[rows["bin"] == "2-4"]
    printed = _printed("rejection_rank_2_4") / 100
    largest = rows.groupby(["setting", "domain"])["value"].transform("max")
    return Finding(
        "; ".join(f"{row.domain}: {100 * row.value:.0f}% of {row.n}" for row in near.itertuples()),
        bool(near["value"].round(2).between(printed.min(), printed.max()).all()),
        bool((near["value"] >= largest[near.index]).all()),
        tuple(dict.fromkeys(near["setting"])),
    )


def calibrated_at_depth_one(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "reliability", quantity="hit_rate")
    rows = rows[rows["top_k"] > 1]
    sure, middle = rows[rows["bin"] == "0.9-1.0"], rows[rows["bin"] == "0.6-0.7"]
    if not len(sure) or not len(middle):
        raise NotMeasured("no candidate of such confidence was replayed")
    bars = {name: _printed("calibration", name) for name in ("0.9-1.0", "0.6-0.7")}
    meets = [
        (part["high"] >= bars[name].min()) & (part["low"] <= bars[name].max())
        for name, part in (("0.9-1.0", sure), ("0.6-0.7", middle))
    ]
    return Finding(
        "; ".join(
            f"{row.domain}, {row.bin}: {row.value:.2f} of {row.n}" for row in [*sure.itertuples(), *middle.itertuples()]
        ),
        bool(all(part.all() for part in meets)),
        bool((sure["value"] >= 0.9).all() and middle["value"].between(0.5, 0.8).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def rank_cap_is_free(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rank_cap", roots="chain", quantity="r_capped_over_full")
    rows = rows[rows["budget"].isin([32, 63])]
    if not len(rows):
        raise NotMeasured("the rank cap was replayed at neither 32 nor 63 nodes")
    bar = rows["budget"].map({budget: _printed(f"rank_cap_{budget}").max() / 100 for budget in (32, 63)})
    return Finding(
        "; ".join(f"{row.domain}, N = {row.budget}: {_interval(row)}" for row in rows.itertuples()),
        bool((rows["value"] >= -bar.astype(float) - 5e-4).all()),
        bool((rows["value"] >= -0.03).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def regret_within_bound(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "plug_in_regret")
    broken, regret = (rows[rows["quantity"] == name] for name in ("rounds_above_bound", "regret"))
    return Finding(
        f"{int(broken['value'].sum())} of {int(broken['n'].sum())} rounds above the bound; regret "
        + "; ".join(f"{row.domain}, N = {row.budget}: {row.value:.2f}" for row in regret.itertuples()),
        bool((broken["value"] == 0).all()),
        bool((broken["value"] <= 0.001 * broken["n"]).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def allocation_adds_acceptance(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "shared_budget", method="best_first", quantity="accepted_over_uniform")
    rows = rows[rows["budget"] == 4]
    if not len(rows):
        raise NotMeasured("no shared budget of four nodes a request was replayed")
    printed = _printed("allocation_oracle") / 100
    return Finding(
        "; ".join(f"{row.domain}: {_interval(row)}" for row in rows.itertuples()),
        bool(rows["value"].round(3).between(printed.min(), printed.max()).all()),
        bool((rows["low"] > 0).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def exact_in_fp32(study: Study, settings: list[str]) -> Finding:
    return _departures(study, settings, "float32", tie=1e-3, share=1.0, exact=True)


def near_ties_in_bf16(study: Study, settings: list[str]) -> Finding:
    return _departures(study, settings, "bfloat16", tie=0.25, share=0.95, exact=False)


def _gains_at_predicted(study: Study, settings: list[str]) -> dict[str, Summary]:
    gains = {}
    for name in settings:
        predicted = study.predicted(name)
        gain = None if predicted is None else study.average(name, TREE, predicted)
        if gain is not None:
            gains[name] = gain
    if not gains:
        raise NotMeasured("; ".join(f"{name}: {study.missing_width(name)}" for name in settings))
    return gains


def _gaps(study: Study, settings: list[str]) -> dict[str, Summary]:
    gaps = {name: study.gap(name) for name in settings}
    gaps = {name: gap for name, gap in gaps.items() if gap is not None}
    if not gaps:
        raise NotMeasured("; ".join(f"{name}: {study.missing_width(name)}" for name in settings))
    return gaps


def _cells(study: Study, settings: list[str], width_of) -> dict[tuple[str, str], Summary]:
    """(setting, domain) -> CAST's cell at the width that ``width_of`` gives for the setting."""
    cells = {}
    for name in settings:
        width = width_of(name)
        for domain in study.measured_domains(name):
            cell = None if width is None else study.cell(name, domain, TREE, width)
            if cell is not None and pd.notna(cell["gain"]):
                cells[name, domain] = cell
    if not cells:
        raise NotMeasured(_why(study, settings))
    return cells


def _chain(study: Study, key: tuple[str, str]) -> Summary:
    return study.cell(*key, CHAIN, study.chain_budget(key[0]))


def _why(study: Study, settings: list[str]) -> str:
    return "; ".join(f"{name}: {study.reason(name)}" for name in settings)


def _curves(study: Study, settings: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """setting -> (packed tokens, median latency in ms) at its shortest probed prefix."""
    curves = {}
    for name, rows in verification_latency(study).groupby("setting"):
        if name in settings:
            shortest = rows[rows["prefix_tokens"] == rows["prefix_tokens"].min()]
            curves[name] = (list(shortest["packed_tokens"]), list(shortest["median"]))
    return curves


def _growth(study: Study, settings: list[str], low: int, high: int) -> dict[str, float]:
    growth = {}
    for name, (packed, latency) in _curves(study, settings).items():
        at = dict(zip(packed, latency, strict=True))
        if low in at and high in at:
            growth[name] = at[high] / at[low] - 1
    if not growth:
        reasons = "; ".join(f"{name}: {study.reason(name, experiment=PROBE)}" for name in settings)
        raise NotMeasured(f"no setting is probed at {low} and {high} packed tokens ({reasons})")
    return growth


def _relative_error(packed: list[float], latency: list[float]) -> float | None:
    inside = [(n, ms) for n, ms in zip(packed, latency, strict=True) if SLOPE_RANGE[0] <= n <= SLOPE_RANGE[1]]
    if len(inside) < 3:
        return None
    n, ms = np.array(inside, dtype=float).T
    intercept, slope = LatencyCurve(n, ms).fit(*SLOPE_RANGE)
    return float(np.sqrt(np.mean((ms - intercept - slope * n) ** 2)) / ms.mean())


def _departures(study: Study, settings: list[str], dtype: str, tie: float, share: float, exact: bool) -> Finding:
    rows = study.decode
    if len(rows):
        rows = rows[rows["setting"].isin(settings) & (rows["status"] == "measured") & (rows["dtype"] == dtype)]
        # A traced row repeats an output that is counted already.
        rows = rows[~rows["traced"].astype(bool)]
        rows = rows[rows["method"].isin([CHAIN, TREE])]
    if not len(rows):
        raise NotMeasured(f"no {SWEEP} record in {dtype}")
    departed = rows[rows["departure"] >= 0]
    ties = int((departed["departure_gap"] <= tie).sum())
    near = ties >= share * len(departed)
    largest = departed["departure_gap"].max()
    return Finding(
        f"{len(departed)} of {len(rows)} outputs depart"
        + (f", {ties} at a gap of at most {tie:g} (largest {largest:.3f})" if len(departed) else ""),
        len(departed) == 0 if exact else ties == len(departed),
        near,
        tuple(sorted(set(rows["setting"]))),
    )


def _replayed(study: Study, settings: list[str], analysis: str, **keys: str) -> pd.DataFrame:
    """Measured replay rows of one analysis; raises NotMeasured where there is none."""
    rows = study.records(REPLAY_EXPERIMENT, REPLAY)
    if len(rows):
        measured = rows[rows["setting"].isin(settings) & (rows["status"] == "measured")]
        measured = measured[measured["analysis"] == analysis]
        for column, value in keys.items():
            measured = measured[measured[column] == value]
        if len(measured):
            return measured.reset_index(drop=True)
    raise NotMeasured("; ".join(dict.fromkeys(study.reason(name, REPLAY_EXPERIMENT, rows) for name in settings)))


def _printed(identifier: str, within: str = "") -> pd.Series:
    """Numbers of the paper's text under one id."""
    prose = paper.prose()
    chosen = (prose["id"] == identifier) & prose["quantity"].str.contains(within, regex=False)
    return prose.loc[chosen, "value"].astype(float)


def _interval(row: Any) -> str:
    return tables.gain({"gain": row.value, "gain_low": row.low, "gain_high": row.high})


def _printed_h100_gains() -> pd.Series:
    """Gain of N = 127 over the chain in every cell of the paper's Table 12, as a fraction."""
    table = paper.table("table12").pivot(
        index=["setting", "domain"], columns=["method", "width"], values="ms_per_token"
    )
    return table[CHAIN, 15] / table[TREE, 127] - 1


def _certain(summaries: dict[Any, Summary]) -> int:
    """How many gains lie above 0 with their whole 95% interval."""
    without = sum(bool(np.isnan(summary["gain_low"])) for summary in summaries.values())
    if without:
        raise NotMeasured(f"{without} of {len(summaries)} gains have no interval: too few prompts")
    return sum(bool(summary["gain_low"] > 0) for summary in summaries.values())


def _settings(cells: dict) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key[0] for key in cells))


def _list(values: dict, show) -> str:
    return "; ".join(f"{name}: {show(value)}" for name, value in values.items())
