"""The paper against itself: its derived numbers recomputed from the numbers they derive from.

A printed number of d decimals stands for the interval of half a unit of its last place around it. A derived one
*agrees* when the recomputation from the printed inputs rounds to it, agrees *within rounding* when some inputs
inside their intervals give it, and otherwise *does not agree*. `checks` does this for every number that can be
derived; `CONFLICTS` are the statements that do not follow from each other, one sentence each.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from . import paper
from .probe import SLOPE_RANGE, slopes

AGREES, ROUNDING, DISAGREES = "agrees", "agrees within rounding", "does not agree"


@dataclass(frozen=True)
class Number:
    """A number and the interval it may lie in."""

    value: float
    low: float
    high: float

    @classmethod
    def printed(cls, value: float, decimals: int) -> Number:
        half = 0.5 * 10.0**-decimals
        return cls(value, value - half, value + half)

    def over(self, other: Number) -> Number:
        """The ratio of two positive numbers."""
        return Number(self.value / other.value, self.low / other.high, self.high / other.low)

    def map(self, increasing: Callable[[float], float]) -> Number:
        return Number(increasing(self.value), increasing(self.low), increasing(self.high))


def weighted(numbers: Sequence[Number], weights: Sequence[float]) -> Number:
    """A sum with weights of either sign."""
    value = sum(weight * number.value for number, weight in zip(numbers, weights, strict=True))
    ends = [sorted((weight * n.low, weight * n.high)) for n, weight in zip(numbers, weights, strict=True)]
    return Number(value, sum(low for low, _ in ends), sum(high for _, high in ends))


def mean(numbers: Sequence[Number]) -> Number:
    return weighted(numbers, [1 / len(numbers)] * len(numbers))


def gain_percent(slower: Number, faster: Number) -> Number:
    """Gain of the second time over the first, in percent."""
    return slower.over(faster).map(lambda ratio: 100 * (ratio - 1))


@dataclass(frozen=True)
class Check:
    """One derived number. ``what`` names it, ``source`` what it was recomputed from."""

    what: str
    source: str
    printed: float
    decimals: int
    recomputed: Number

    @property
    def verdict(self) -> str:
        interval = Number.printed(self.printed, self.decimals)
        if abs(round(self.recomputed.value, self.decimals) - self.printed) < 1e-9:
            return AGREES
        within = self.recomputed.low <= interval.high + 1e-9 and interval.low <= self.recomputed.high + 1e-9
        return ROUNDING if within else DISAGREES


def checks() -> list[Check]:
    """Every derived number of the paper's tables and text."""
    parts = (
        _speedups, _averages, _gains_of_tables, _means_of_table2, _gaps_of_table2, _length_and_prefix,
        _growths, _fitted_slopes, _prefix_slopes, _text,
    )  # fmt: skip
    return [check for part in parts for check in part()]


def _speedups() -> Iterator[Check]:
    """Table 1 at temperature 0 from the times of Table 12."""
    printed = paper.table("table1").query("temperature == 0").set_index(["setting", "method", "width", "domain"])
    times = paper.table("table12").set_index(["setting", "domain", "method", "width"])["ms_per_token"]
    for (setting, domain, method, width), ms in times.items():
        packed = width + 1 if method == "dflash" else width
        if (setting, method, packed, domain) in printed.index:
            plain = Number.printed(times[setting, domain, "autoregressive", 0], 2)
            what = f"Table 1, {setting}, {domain}, {method} ({packed}): speedup"
            value = printed.loc[(setting, method, packed, domain), "speedup"]
            yield Check(what, "Table 12", value, 2, plain.over(Number.printed(ms, 2)))


def _averages() -> Iterator[Check]:
    """The average columns of Tables 1, 16 and 17."""
    table1 = paper.table("table1").melt(
        ["setting", "temperature", "method", "width", "domain"], ["speedup", "r"], "quantity"
    )
    for name, rows in (("1", table1), ("16", paper.table("table16")), ("17", paper.table("table17"))):
        keys = [c for c in ("setting", "temperature", "method", "width", "quantity") if c in rows]
        for key, cells in rows[rows["quantity"] != "ms_per_token"].groupby(keys):
            domains, average = cells[cells["domain"] != "average"], cells[cells["domain"] == "average"]
            recomputed = mean([Number.printed(value, 2) for value in domains["value"]])
            what = f"Table {name}, {', '.join(map(str, key))}: average"
            yield Check(what, f"Table {name}", average["value"].iloc[0], 2, recomputed)


def _gains_of_tables() -> Iterator[Check]:
    """Gains printed beside the times they are ratios of: Tables 7, 9 and 10."""
    for name, slower, faster in (
        ("table7", "dflash_ms_per_token", "cast_ms_per_token"),
        ("table9", "dflash_ms_per_token", "tree_ms_per_token"),
        ("table10", "dflash_ms_per_token", "cast_ms_per_token"),
    ):
        for row in paper.table(name).to_dict("records"):
            gain = gain_percent(Number.printed(row[slower], 2), Number.printed(row[faster], 2))
            what = f"Table {name[5:]}, {row['setting']}, {row['domain']}: gain (%)"
            yield Check(what, f"Table {name[5:]}", row["gain_percent"], 1, gain)


def setting_gains(setting: str) -> tuple[str, dict[int, Number]]:
    """A setting's gain by width, the mean of its domain gains in percent, and the table it comes from."""
    if setting in set(paper.table("table8")["setting"]):
        rows = paper.table("table8").query("setting == @setting")
        cells = rows.groupby("width")["gain_percent"]
        return "Table 8", {int(n): mean([Number.printed(value, 1) for value in gains]) for n, gains in cells}
    for name in ("table12", "table16", "table17"):
        rows = paper.table(name).query("setting == @setting and domain != 'average'")
        if len(rows):
            break
    if name == "table12":
        rows = rows.assign(value=1 / rows["ms_per_token"], quantity="rate")
    else:
        rows = rows[rows["quantity"] == "speedup"]
    by = rows.pivot(index="domain", columns=["method", "width"], values="value")
    (chain,) = by["dflash"].columns
    found = {}
    for width in by["cast"].columns:
        pairs = list(zip(by["dflash", chain], by["cast", width], strict=True))
        if name == "table12":  # times were printed, not their inverse
            cells = [gain_percent(Number.printed(1 / a, 2), Number.printed(1 / b, 2)) for a, b in pairs]
        else:
            cells = [gain_percent(Number.printed(b, 2), Number.printed(a, 2)) for a, b in pairs]
        found[int(width)] = mean(cells)
    return f"Table {name[5:]}", found


def _means_of_table2() -> Iterator[Check]:
    """Table 2's gains from the sweeps: at the predicted width, at the oracle and at 127."""
    for row in paper.table("table2").to_dict("records"):
        source, gains = setting_gains(row["setting"])
        for column, width in (
            ("gain_percent", row["predicted_width"]),
            ("oracle_gain_percent", row["oracle_width"]),
            ("gain_at_127_percent", 127),
        ):
            yield Check(f"Table 2, {row['setting']}: {column} at N = {width}", source, row[column], 1, gains[width])


def _gaps_of_table2() -> Iterator[Check]:
    for row in paper.table("table2").to_dict("records"):
        ends = [Number.printed(row[name], 1) for name in ("gain_percent", "oracle_gain_percent")]
        yield Check(
            f"Table 2, {row['setting']}: gap (points)", "Table 2", row["gap_points"], 1, weighted(ends, [1, -1])
        )


def _length_and_prefix() -> Iterator[Check]:
    for row in paper.table("table14").to_dict("records"):
        gain = gain_percent(Number.printed(row["cast_speedup"], 2), Number.printed(row["dflash_speedup"], 2))
        what = f"Table 14, {row['setting']}, {row['domain']}, {row['max_new_tokens']} new tokens: gain (%)"
        yield Check(what, "Table 14", row["gain_percent"], 0, gain)


def _growths() -> Iterator[Check]:
    """Growth of the target forward that the text states, from Table 5."""
    for setting, low, high, identifier in (
        ("blackwell-qwen3_8b", 16, 64, "greedy_probe_growth"),
        ("h100_sxm-qwen3_8b", 16, 128, "sxm_growth"),
        ("h100_sxm-qwen3_4b", 16, 128, "sxm_growth"),
        ("blackwell-qwen3_8b", 1, 64, "width_tax"),
    ):
        latency = _latency(setting)
        growth = gain_percent(Number.printed(latency[high], 1), Number.printed(latency[low], 1))
        printed = _prose(identifier, setting=setting).iloc[0]
        decimals = 0 if printed == int(printed) else 1
        yield Check(
            f"text, {setting}: growth from {low} to {high} packed tokens (%)", "Table 5", printed, decimals, growth
        )


def slope_of(packed: Sequence[int], latency_ms: Sequence[float], estimator: str, decimals: int = 1) -> Number:
    """The cost slope over n in [16, 128] by either estimator, with what the rounding of latencies leaves open."""
    inside = [(n, ms) for n, ms in zip(packed, latency_ms, strict=True) if SLOPE_RANGE[0] <= n <= SLOPE_RANGE[1]]
    n = np.array([float(place) for place, _ in inside])
    if estimator == "least_squares":
        weights = (n - n.mean()) / ((n - n.mean()) ** 2).sum()
    else:
        weights = np.zeros(len(n))
        weights[[0, -1]] = np.array([-1, 1]) / (n[-1] - n[0])
    return weighted([Number.printed(ms, decimals) for _, ms in inside], weights.tolist())


def _fitted_slopes() -> Iterator[Check]:
    """The text's four slopes, "a linear fit", by both estimators over Table 5."""
    for setting, printed in _prose_rows("slope")[["setting", "value"]].itertuples(index=False):
        latency = _latency(setting)
        for estimator in ("least_squares", "endpoints"):
            what = f"text, {setting}: slope (ms per token) by {estimator.replace('_', ' ')}"
            yield Check(what, "Table 5", printed, 3, slope_of(list(latency), list(latency.values()), estimator))


def _prefix_slopes() -> Iterator[Check]:
    """Table 6's slopes, which its caption calls endpoint slopes."""
    for (setting, prefix), rows in paper.table("table6").groupby(["setting", "prefix_tokens"]):
        latency = rows[rows["quantity"] == "latency_ms"]
        printed = rows.loc[rows["quantity"] == "slope_ms_per_token", "value"].iloc[0]
        recomputed = slope_of(latency["packed_tokens"], latency["value"], "endpoints")
        yield Check(f"Table 6, {setting}, prefix {prefix}: slope (ms per token)", "Table 6", printed, 3, recomputed)


def _text() -> Iterator[Check]:
    """Lifts and means that the text states."""
    replayed = {
        name: _prose_rows(f"dart_{name}").set_index("domain")["value"]
        for name in ("replay_63", "replay_chain", "lift_63")
    }
    for domain, lift in replayed["lift_63"].items():
        ends = [Number.printed(replayed[name][domain], 2) for name in ("replay_63", "replay_chain")]
        what = f"text, {domain}: R of DART's best-first tree of 63 nodes over its chain (%)"
        yield Check(what, "Appendix G.2", lift, 1, gain_percent(*ends))
    table7, table9 = (
        paper.table(name).set_index(["setting", "domain"])["gain_percent"] for name in ("table7", "table9")
    )
    blackwell = [key for key in table9.index if key[0].startswith("blackwell")]
    extra = [weighted([Number.printed(table7[key], 1), Number.printed(table9[key], 1)], [1, -1]) for key in blackwell]
    stated = _prose_rows("width_beyond_shape").set_index("quantity")["value"]
    (named,) = (value for name, value in stated.items() if name.endswith("mean"))
    yield Check("text: gain that width adds on Blackwell, mean (points)", "Tables 7 and 9", named, 1, mean(extra))


def crossing(threshold: float) -> float:
    """Place N at which the printed masses fall below a threshold, by the power law through the last two."""
    masses = {48: _mass("48th"), 64: _mass("64th")}
    exponent = np.log(masses[64] / masses[48]) / np.log(64 / 48)
    return float(48 * (threshold / masses[48]) ** (1 / exponent))


def thresholds(setting: str) -> dict[str, float]:
    """Slope times throughput at the predicted width on GSM8K, by slope: printed and both estimators."""
    if setting in set(paper.table("table7")["setting"]):
        ms = _cell("table7", setting=setting, domain="gsm8k")["cast_ms_per_token"]
    else:
        ms = _cell("table12", setting=setting, domain="gsm8k", method="cast", width=127)["ms_per_token"]
    found = slopes(*_curve(setting)) | {"printed": _prose("slope", setting=setting).iloc[0]}
    return {name: value / ms for name, value in found.items()}


# Statements that do not follow from each other. Each function gives one sentence; figures/claims names them.


def slope() -> str:
    found = slopes(*_curve("h100_sxm-qwen3_8b"))
    return (
        f"H100 SXM, Qwen3-8B: least squares over Table 5 gives {found['least_squares']:.4f}, endpoints "
        f"{found['endpoints']:.4f}; the text calls 0.018 a linear fit, while 0.056 on Blackwell is one"
    )


def wider_where_flatter() -> str:
    widths = paper.table("table2").set_index("setting")["predicted_width"]
    flat, steep = "blackwell-qwen3_4b", "h100_sxm-qwen3_8b"
    slope = {name: slopes(*_curve(name))["least_squares"] for name in (flat, steep)}
    return (
        f"by its own Table 5 Blackwell, Qwen3-4B is flatter ({slope[flat]:.4f} ms per token) than H100 SXM, "
        f"Qwen3-8B ({slope[steep]:.4f}), yet has the narrower N* ({widths[flat]} against {widths[steep]})"
    )


def width_tax() -> str:
    latency = _latency("blackwell-qwen3_8b")
    growth = 100 * (latency[64] / latency[1] - 1)
    return f"Table 5, Blackwell Qwen3-8B, rises by {growth:.1f}% from 1 to 64 packed tokens, not 10%"


def round_length() -> str:
    domain = {"domain": "mtbench"}
    h100 = _cell("table12", setting="h100_sxm-qwen3_8b", method="dflash", **domain)["r"]
    blackwell = _cell("table9", setting="blackwell-qwen3_8b", **domain)["dflash_r"]
    return (
        f"greedy chain R of Qwen3-8B on MT-Bench is {h100:.2f} in Table 12 and {blackwell:.2f} in Table 9: "
        "by their ms/token a mean over prompts in one, tokens over rounds in the other"
    )


def width_rounding() -> str:
    found = thresholds("blackwell-qwen3_8b")
    return (
        f"the masses 0.016 (48th) and 0.011 (64th) cross {found['printed']:.4f}, the threshold of the printed slope, "
        f"near N = {crossing(found['printed']):.0f} (least squares: {crossing(found['least_squares']):.0f}, endpoints: "
        f"{crossing(found['endpoints']):.0f}); the nearest swept width is 47, the paper deploys 63"
    )


def truncated_grid() -> str:
    table2 = paper.table("table2").set_index("setting")
    fell = []
    for setting in ("a6000-qwen3_8b", "a6000-qwen3_4b"):
        at_95 = _prose_rows("second_host").query("setting == @setting and quantity.str.contains('95')")["value"].iloc[0]
        fell.append(f"{table2.loc[setting, 'gain_at_127_percent'] - at_95:+.1f}")
    return (
        "on the A6000 the forward cost never caps the width, so the rule gives 127; 95 is the end of the first host's "
        f"grid, and on the second host 127 lies {fell[0]} and {fell[1]} points from 95: with 127 predicted, four of "
        "eight settings would match their oracle, not six"
    )


def shared_baseline() -> str:
    table7, table9 = (
        paper.table(n).set_index(["setting", "domain"])["dflash_ms_per_token"] for n in ("table7", "table9")
    )
    drift = (table7 / table9 - 1).abs()
    worst = drift.idxmax()
    return (
        f"the DFlash times of Tables 7 and 9 differ for one cell by up to {100 * drift.max():.0f}% "
        f"({', '.join(worst)}): gains at different widths do not share a baseline"
    )


def replayed_round_length() -> str:
    replayed = _prose("best_first_r", domain="humaneval").iloc[0]
    narrow = _cell("table15", domain="humaneval", method="cast", width=15)["r"]
    wide = _cell("table7", setting="blackwell-qwen3_8b", domain="humaneval")["cast_r"]
    return (
        f"the replayed tree of 47 nodes commits R = {replayed:.1f} on HumanEval, hardly more than the live tree of 15 "
        f"nodes ({narrow:.2f}) and well below that of 63 ({wide:.2f}): the two R can hardly be one statistic"
    )


def saved_rounds() -> str:
    rounds = _prose_rows("rank_cap_rounds").set_index("domain")["value"]
    chain = _prose_rows("replayed_chain_r").set_index("domain")["value"]
    tokens = {domain: rounds[domain] * chain[domain] for domain in ("gsm8k", "humaneval")}
    return (
        f"{rounds['gsm8k']:.0f} and {rounds['humaneval']:.0f} saved rounds of the chain's R = {chain['gsm8k']:.1f} are "
        f"{tokens['gsm8k']:,.0f} and {tokens['humaneval']:,.0f} tokens on GSM8K and HumanEval, more than the 10,240 of "
        "40 prompts with 256 new tokens"
    )


CONFLICTS = (
    slope, wider_where_flatter, width_rounding, truncated_grid, width_tax, round_length, shared_baseline,
    replayed_round_length, saved_rounds,
)  # fmt: skip


def _prose_rows(identifier: str) -> pd.DataFrame:
    return paper.prose().query("id == @identifier")


def _prose(identifier: str, **keys: str) -> pd.Series:
    rows = _prose_rows(identifier)
    for column, value in keys.items():
        rows = rows[rows[column] == value]
    return rows["value"]


def _mass(place: str) -> float:
    rows = _prose_rows("sorted_mass")
    return float(rows[rows["quantity"].str.contains(place)]["value"].iloc[0])


def _curve(setting: str) -> tuple[list[int], list[float]]:
    rows = paper.table("table5").query("setting == @setting")
    return list(rows["packed_tokens"]), list(rows["latency_ms"])


def _latency(setting: str) -> dict[int, float]:
    return dict(zip(*_curve(setting), strict=True))


def _cell(table: str, **keys: str | int) -> pd.Series:
    rows = paper.table(table)
    for column, value in keys.items():
        rows = rows[rows[column] == value]
    return rows.iloc[0]


def summary(found: list[Check]) -> str:
    """How many derived numbers there are, and how they fare."""
    counts = Counter(check.verdict for check in found)
    told = ", ".join(f"{counts[verdict]} {verdict.replace('agrees', 'agree', 1)}" for verdict in (AGREES, ROUNDING))
    wrong = counts[DISAGREES]
    return f"{len(found)} derived numbers of the paper recomputed: {told}, {wrong} do{'es' * (wrong == 1)} not."


@cache
def conflict(name: str) -> str:
    """The sentence of one of `CONFLICTS`, by its function's name."""
    (found,) = (function for function in CONFLICTS if function.__name__ == name)
    return found()


@cache
def _found() -> tuple[Check, ...]:
    return tuple(checks())


def lines() -> list[str]:
    """The summary, every number that does not agree, and every conflict, as sentences."""
    found = list(_found())
    wrong = [
        f"{check.what} is printed as {check.printed:g}; {check.source} gives {check.recomputed.value:.4g} "
        f"({check.recomputed.low:.4g} to {check.recomputed.high:.4g} by rounding)"
        for check in found
        if check.verdict == DISAGREES
    ]
    return [summary(found), *wrong, *(conflict(function.__name__) for function in CONFLICTS)]


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
    print("\n".join(lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
