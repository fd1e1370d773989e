"""Figure 2: target-forward latency relative to 16 packed tokens, against the packed count n = N + 1.

Ours: medians of the timed iterations of the latency probe, divided by the median at n = 16, with the
interquartile range as a band. The paper's curves (its Table 5) are thin grey lines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from . import paper, style
from .data import NO_RECORDS, PROBE, Study
from .probe import verification_latency

REFERENCE = 16
COLUMNS = [
    "source", "setting", "prefix_tokens", "packed_tokens", "latency_ms", "latency_ms_q25", "latency_ms_q75",
    "relative", "relative_q25", "relative_q75", "iterations", "note",
]  # fmt: skip


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: our curves, what is missing and why, and the paper's curves."""
    rows = []
    curves = verification_latency(study)
    for setting in study.settings:
        mine = curves[curves["setting"] == setting]
        if mine.empty:
            rows.append(
                {
                    "source": "ours",
                    "setting": setting,
                    "note": f"not measured: {study.reason(setting, experiment=PROBE)}",
                }
            )
        for prefix, curve in mine.groupby("prefix_tokens"):
            rows += _curve("ours", setting, int(prefix), curve)
    for setting, curve in paper.table("table5").groupby("setting", sort=False):
        curve = curve.rename(columns={"latency_ms": "median"})
        rows += _curve("paper", setting, 1000, curve)
    return pd.DataFrame(rows, columns=COLUMNS)


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    figure, grid = style.new_figure(style.ONE_COLUMN, 2.3)
    axes = grid[0, 0]
    ours, theirs = frame[frame["source"] == "ours"], frame[frame["source"] == "paper"]
    for index, (_, curve) in enumerate(theirs.groupby("setting", sort=False)):
        axes.plot(
            curve["packed_tokens"], curve["relative"], color=style.PAPER, linewidth=0.6, zorder=1,
            label=None if index else "paper (Table 5)",
        )  # fmt: skip
    several = ours.groupby("setting")["prefix_tokens"].nunique().max() > 1 if len(ours) else False
    for place, ((setting, prefix), curve) in enumerate(ours.groupby(["setting", "prefix_tokens"], sort=False)):
        curve, look = curve.dropna(subset=["relative"]), style.look(place)
        label = f"{setting}, prefix {int(prefix)}" if several else setting
        axes.fill_between(
            curve["packed_tokens"], curve["relative_q25"], curve["relative_q75"],
            color=look["color"], alpha=0.2, linewidth=0,
        )  # fmt: skip
        axes.plot(curve["packed_tokens"], curve["relative"], **look, label=label)
    axes.axhline(1, color=style.INK, linewidth=0.5, zorder=0)
    ticks = _spread({1, 16, 32, 64, 128, *ours["packed_tokens"].dropna().astype(int)})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("packed tokens n = N + 1 (log scale)")
    axes.set_ylabel(f"target-forward latency\nrelative to n = {REFERENCE}")
    notes = [f"{row.setting}: {row.note}" for row in ours.itertuples() if isinstance(row.note, str) and row.note]
    if not study.settings:
        notes = [f"ours not measured: {NO_RECORDS}"]
    axes.set_title("\n".join(style.wrapped(note, 62) for note in dict.fromkeys(notes)), fontsize=6, loc="left")
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _curve(source: str, setting: str, prefix: int, curve: pd.DataFrame) -> list[dict]:
    at_reference = curve.loc[curve["packed_tokens"] == REFERENCE, "median"]
    reference = float(at_reference.iloc[0]) if len(at_reference) else np.nan
    note = "" if len(at_reference) else f"not measured: no probe at n = {REFERENCE}, so nothing to relate to"
    rows = []
    for point in curve.sort_values("packed_tokens").to_dict("records"):
        q25, q75 = point.get("q25", np.nan), point.get("q75", np.nan)
        rows.append(
            {
                "source": source,
                "setting": setting,
                "prefix_tokens": prefix,
                "packed_tokens": int(point["packed_tokens"]),
                "latency_ms": point["median"],
                "latency_ms_q25": q25,
                "latency_ms_q75": q75,
                "relative": point["median"] / reference,
                "relative_q25": q25 / reference,
                "relative_q75": q75 / reference,
                "iterations": point.get("count", np.nan),
                "note": note,
            }
        )
    return rows


def _spread(ticks: set[int]) -> list[int]:
    """Thin the ticks, powers of two first, so that their labels stay apart on a logarithmic axis."""
    kept: list[int] = []
    for tick in sorted(ticks, key=lambda value: (value & (value - 1) > 0, value)):
        if all(abs(np.log2(tick / other)) > 0.45 for other in kept):
            kept.append(tick)
    return sorted(kept)
