"""Claims about the target forward's cost by packed tokens, from the latency probes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cast.experiments.records import HYBRID_LATENCY, LATENCY
from cast.width import LatencyCurve

from .. import paper, tables
from ..data import PROBE, Study
from ..probe import SLOPE_RANGE, slopes, verification_latency
from .finding import Finding, Measurement, NotMeasured, judged, measured_rows, printed

PREFIXES, HYBRID = "prefix_probe", "hybrid_probe"


def growth_16_to_64(study: Study, settings: list[str]) -> Finding:
    table = paper.table("table5").pivot(index="setting", columns="packed_tokens", values="latency_ms")
    growth = _growth(study, settings, 16, 64)
    bar = (table[64] / table[16] - 1).max()
    return judged(
        growth,
        _as_percent,
        reproduced=all(m.value <= round(bar, 3) for m in growth),
        direction=all(m.value < 1 for m in growth),
    )


def growth_1_to_64(study: Study, settings: list[str]) -> Finding:
    growth = _growth(study, settings, 1, 64)
    return judged(
        growth,
        _as_percent,
        reproduced=all(m.value <= 0.15 for m in growth),
        direction=all(m.value < 1 for m in growth),
    )


def cliff(study: Study, settings: list[str]) -> Finding:
    jumps = []
    for name, (packed, latency) in _curves(study, settings).items():
        at = dict(zip(packed, latency, strict=True))
        if {16, 96, 128} <= set(at):
            trend = LatencyCurve(packed, latency).slope(16, 96) * (128 - 96)
            jumps.append(Measurement(name, "", (at[128] - at[96] - trend) / at[96]))
    if len(jumps) < 2:
        raise NotMeasured("it takes two settings probed at 16, 96 and 128 packed tokens")
    low, high = min(m.value for m in jumps), max(m.value for m in jumps)
    return judged(jumps, _as_percent, reproduced=high >= 0.10 and low < 0.05, direction=high >= 0.05 > low)


def locally_affine(study: Study, settings: list[str]) -> Finding:
    errors = {name: _relative_error(*curve) for name, curve in _curves(study, settings).items()}
    errors = [Measurement(name, "", error) for name, error in errors.items() if error is not None]
    if not errors:
        raise NotMeasured("no setting is probed at three packed counts in 16 to 128")
    table = paper.table("table5").groupby("setting")
    bar = max(_relative_error(list(c["packed_tokens"]), list(c["latency_ms"])) for _, c in table)
    return judged(
        errors,
        lambda m: f"{100 * m.value:.1f}%",
        reproduced=all(m.value <= bar for m in errors),
        direction=all(m.value <= 0.10 for m in errors),
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
        "; ".join(
            f"{name}: {pair['least_squares']:.4f} (fit), {pair['endpoints']:.4f} (endpoints) ms per token"
            for name, pair in found.items()
        ),
        bool(differences.max() < 0.05),
        bool(differences.max() < 0.25),
        tuple(found),
    )


def nearly_flat_behind_prefixes(study: Study, settings: list[str]) -> Finding:
    """End-point slopes behind every probed prefix, as in Table 6."""
    found = _prefix_slopes(study, settings)
    bar = printed("prefix_slope").max()
    by_setting = pd.DataFrame([(m.setting, m.value) for m in found]).groupby(0)[1]
    return judged(
        found,
        _as_slope,
        reproduced=all(round(m.value, 3) <= bar for m in found),
        # Behind the longest prefix the rule meets at most half as much cost again as behind the shortest.
        direction=bool((by_setting.last() <= 1.5 * by_setting.first().clip(lower=0) + bar).all()),
    )


def probe_repeats(study: Study, settings: list[str]) -> Finding:
    """Slope of the prefix probe over that of the latency probe, which are two sessions, behind the same prefix."""
    single = verification_latency(study)
    pairs = {}
    for m in _prefix_slopes(study, settings):
        prefix = int(m.place.split()[-1])
        rows = single[(single["setting"] == m.setting) & (single["prefix_tokens"] == prefix)]
        other = slopes(list(rows["packed_tokens"]), list(rows["median"]))["endpoints"] if len(rows) > 1 else None
        if other is not None:
            pairs[m.setting] = (other, m.value)
    if not pairs:
        raise NotMeasured("no setting was probed behind one prefix in two sessions")
    table = paper.table("table6").query("quantity == 'slope_ms_per_token' and prefix_tokens == 1000")
    table = table.set_index("setting")["value"]
    bar = max(abs(table[name] - printed("slope", setting=name).iloc[0]) for name in table.index if _has_slope(name))
    differences = [Measurement(name, "", abs(one - other)) for name, (one, other) in pairs.items()]
    relative = [abs(one - other) / max(abs(one), abs(other)) for one, other in pairs.values()]
    return Finding(
        "; ".join(f"{name}: {one:.4f} and {other:.4f} ms per token" for name, (one, other) in pairs.items()),
        all(round(m.value, 3) <= bar for m in differences),
        all(value <= 0.25 for value in relative),
        tuple(pairs),
    )


def hybrid_entry_cost(study: Study, settings: list[str]) -> Finding:
    """Growth from one to two packed tokens."""
    medians = _hybrid(study, settings)
    found = [
        Measurement(setting, f"prefix {prefix}", at[2] / at[1] - 1)
        for (setting, prefix), at in medians.items()
        if {1, 2} <= set(at)
    ]
    if not found:
        raise NotMeasured("no hybrid target was probed at one and two packed tokens")
    percents = paper.prose().query("id == 'hybrid_entry' and unit == 'percent'")["value"] / 100
    return judged(
        found,
        _as_percent,
        reproduced=all(round(m.value, 2) >= percents.min() for m in found),
        direction=all(m.value > 0.05 for m in found),
    )


def hybrid_affine_after_entry(study: Study, settings: list[str]) -> Finding:
    """Growth from 16 to 64 packed tokens behind the shortest prefix."""
    shortest = {}
    for (setting, prefix), at in _hybrid(study, settings).items():
        if {16, 64} <= set(at) and prefix <= min(p for s, p in _hybrid(study, settings) if s == setting):
            shortest[setting] = Measurement(setting, f"prefix {prefix}", at[64] / at[16] - 1)
    if not shortest:
        raise NotMeasured("no hybrid target was probed at 16 and 64 packed tokens")
    found = list(shortest.values())
    return judged(
        found,
        _as_percent,
        reproduced=any(abs(m.value) <= 0.05 for m in found),
        direction=all(m.value < 1 for m in found),
    )


def hybrid_flat_in_context(study: Study, settings: list[str]) -> Finding:
    """The one-token pass behind the longest prefix over that behind the shortest."""
    by_setting: dict[str, dict[int, float]] = {}
    for (setting, prefix), at in _hybrid(study, settings).items():
        if 1 in at:
            by_setting.setdefault(setting, {})[prefix] = at[1]
    found = [
        Measurement(setting, f"prefix {min(at)} to {max(at)}", at[max(at)] / at[min(at)] - 1)
        for setting, at in by_setting.items()
        if len(at) > 1
    ]
    if not found:
        raise NotMeasured("no hybrid target was probed behind two prefixes")
    table = paper.table("table11").query("packed_tokens == 1").groupby("setting")["latency_ms"]
    bar = (table.max() / table.min() - 1).max()
    return judged(
        found,
        _as_percent,
        reproduced=all(abs(m.value) <= bar + 5e-4 for m in found),
        direction=all(abs(m.value) <= 0.20 for m in found),
    )


def _curves(study: Study, settings: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """setting -> (packed tokens, median latency in ms) at its shortest probed prefix."""
    curves = {}
    for name, rows in verification_latency(study).groupby("setting"):
        if name in settings:
            shortest = rows[rows["prefix_tokens"] == rows["prefix_tokens"].min()]
            curves[name] = (list(shortest["packed_tokens"]), list(shortest["median"]))
    return curves


def _growth(study: Study, settings: list[str], low: int, high: int) -> list[Measurement]:
    growth = []
    for name, (packed, latency) in _curves(study, settings).items():
        at = dict(zip(packed, latency, strict=True))
        if low in at and high in at:
            growth.append(Measurement(name, "", at[high] / at[low] - 1))
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


def _prefix_slopes(study: Study, settings: list[str]) -> list[Measurement]:
    found = []
    for (setting, prefix), at in _medians(measured_rows(study, settings, PREFIXES, LATENCY)).items():
        slope = slopes(list(at), list(at.values()))["endpoints"]
        if slope is not None:
            found.append(Measurement(setting, f"prefix {prefix}", slope))
    if not found:
        raise NotMeasured("no prefix was probed at two packed counts in 16 to 128")
    return found


def _hybrid(study: Study, settings: list[str]) -> dict[tuple[str, int], dict[int, float]]:
    return _medians(measured_rows(study, settings, HYBRID, HYBRID_LATENCY))


def _medians(rows: pd.DataFrame) -> dict[tuple[str, int], dict[int, float]]:
    """(setting, prefix) -> packed tokens -> median latency in ms of the target forward."""
    rows = rows[rows["component"] == "target_forward"]
    medians = rows.groupby(["setting", "prefix_tokens", "packed_tokens"])["latency_ms"].median()
    found: dict[tuple[str, int], dict[int, float]] = {}
    for (setting, prefix, packed), ms in medians.items():
        found.setdefault((setting, int(prefix)), {})[int(packed)] = float(ms)
    return found


def _has_slope(setting: str) -> bool:
    return bool(len(printed("slope", setting=setting)))


def _as_percent(m: Measurement) -> str:
    return tables.percent(m.value)


def _as_slope(m: Measurement) -> str:
    return f"{m.value:+.4f} ms per token"
