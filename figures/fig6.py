"""Figure 6: what verification costs under load. (a) Dense verifier latency over the packed tokens W of each request,
relative to W = 1; (b, c) latency of the pass over packed tokens of each request, dense and ragged, in two settings.

Series are batch sizes B. Medians of the timed calls with the range from their 10th to their 90th percentile, in panel a
over the median at W = 1. The paper's three annotations (W = 64 over W = 1) stand in panel a in grey; two settings stand
in for its two GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from cast.experiments.records import WIDTH_TAX

from . import style
from .data import Study
from .panels import settings_of
from .serving import printed

EXPERIMENT = "width_tax"
COLUMNS = [
    "source", "setting", "component", "batch", "packed_tokens", "prefix_tokens", "latency_ms", "low_ms", "high_ms",
    "calls", "over_one_percent", "over_one_low_percent", "over_one_high_percent", "note",
]  # fmt: skip
QUANTILES = (0.1, 0.9)
SPREAD = ("latency_ms", "low_ms", "high_ms")  # median and range
OVER_ONE = ("over_one_percent", "over_one_low_percent", "over_one_high_percent")  # over the median at W = 1
PANELS = 2  # settings of panels b and c


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: one row per setting, component, batch size and packed tokens of each request."""
    rows = study.records(EXPERIMENT, WIDTH_TAX)
    found = []
    for setting in settings_of(study, rows):
        mine = rows
        if len(rows):
            mine = rows[(rows["setting"] == setting) & (rows["status"] == "measured")]
        if not len(mine):
            reason = study.reason(setting, EXPERIMENT, rows)
            found.append({"source": "ours", "setting": setting, "note": f"not measured: {reason}"})
            continue
        cells = mine.groupby(["component", "batch", "packed_tokens", "prefix_tokens"])["latency_ms"]
        table = cells.agg(latency_ms="median", calls="size").reset_index()
        table["low_ms"], table["high_ms"] = (cells.quantile(q).to_numpy() for q in QUANTILES)
        ones = table[table["packed_tokens"] == 1].set_index(["component", "batch"])["latency_ms"]
        for cell in table.to_dict("records"):
            one = ones.get((cell["component"], cell["batch"]), np.nan)
            over = {name: 100 * (cell[ms] / one - 1) for name, ms in zip(OVER_ONE, SPREAD, strict=True)}
            found.append({"source": "ours", "setting": setting, "note": ""} | over | cell)
    return pd.DataFrame([*found, *_paper_rows()], columns=COLUMNS)


def _paper_rows() -> list[dict]:
    rows = []
    for one in printed("width_tax"):
        batch = int(one["quantity"].rsplit("batch ", 1)[1])
        place = {"source": "paper", "setting": one["setting"], "component": "verify_dense", "batch": batch}
        rows.append(place | {"packed_tokens": 64, "over_one_percent": float(one["value"]), "note": one["where"]})
    for one in printed("batched_draft"):
        batch = int(one["quantity"].rsplit("batch ", 1)[1])
        place = {"source": "paper", "setting": one["setting"], "component": "draft", "batch": batch}
        rows.append(place | {"latency_ms": float(one["value"]), "note": one["where"]})
    return rows


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    ours, theirs = frame[frame["source"] == "ours"], frame[frame["source"] == "paper"]
    settings = list(ours["setting"].unique())
    measured = [name for name in settings if ours.loc[ours["setting"] == name, "latency_ms"].notna().any()]
    if not measured:
        return style.save_not_measured(out, frame)
    first = measured[0]
    others = [*dict.fromkeys([*measured, *settings])][:PANELS]
    figure, grid = style.new_figure(style.TWO_COLUMNS, 2.5, 1, 1 + len(others))
    _tax(grid[0][0], ours[ours["setting"] == first], theirs[theirs["component"] == "verify_dense"], first)
    for letter, setting, axes in zip("bc", others, grid[0][1:], strict=False):
        _latency(axes, ours[ours["setting"] == setting], f"({letter}) {setting}")
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _tax(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame, setting: str) -> None:
    axes.set_title(f"(a) {setting}, dense")
    rows = ours[(ours["component"] == "verify_dense") & ours["over_one_percent"].notna()]
    if not len(rows):
        style.not_measured(axes, ["no dense verification at W = 1"])
        return
    for place, (batch, line) in enumerate(rows.groupby("batch", sort=True)):
        times = [1 + line[name].to_numpy(float) / 100 for name in OVER_ONE]
        _line(axes, line["packed_tokens"], times, **style.look(place), label=f"B = {int(batch)}")
    for number, one in enumerate(theirs.sort_values("batch").itertuples()):
        at = one.packed_tokens, 1 + one.over_one_percent / 100
        label = None if number else "paper, W = 64 over W = 1"
        axes.plot([at[0]], [at[1]], "D", color=style.PAPER, linestyle="none", label=label)
        text = f"B = {int(one.batch)}, {one.over_one_percent:+g}%"
        axes.annotate(text, at, xytext=(4, 0), textcoords="offset points", color="#6f6f6f", fontsize=5.5, va="center")
    _scales(axes, {*rows["packed_tokens"], *theirs["packed_tokens"]})
    axes.set_xlim(right=64 * 2**2.6)  # room for the labels
    axes.set_ylabel("latency over that at W = 1")


def _latency(axes: Axes, ours: pd.DataFrame, title: str) -> None:
    axes.set_title(title)
    rows = ours[ours["component"].isin(["verify_dense", "verify_ragged"]) & ours["latency_ms"].notna()]
    if not len(rows):
        style.not_measured(axes, ours["note"])
        return
    places = {batch: place for place, batch in enumerate(sorted(rows["batch"].unique()))}
    for (component, batch), line in rows.groupby(["component", "batch"], sort=True):
        dense = component == "verify_dense"
        _line(
            axes, line["packed_tokens"], [line[name].to_numpy(float) for name in SPREAD],
            **style.look(places[batch]), linestyle="-" if dense else "--", markerfacecolor=None if dense else "white",
        )  # fmt: skip
    for label, line in (("dense", "-"), ("ragged", "--")):
        axes.plot([], [], color=style.INK, linestyle=line, label=label)
    _scales(axes, set(rows["packed_tokens"]))
    axes.set_ylabel("latency of the pass (ms)")


def _line(axes: Axes, packed: pd.Series, spread: Sequence[np.ndarray], **look) -> None:
    """A series by packed tokens; spread: its medians, and the low and the high ends of their ranges."""
    middle, low, high = spread
    reach = np.clip([middle - low, high - middle], 0, None)
    axes.errorbar(packed.astype(float), middle, yerr=reach, elinewidth=0.6, capsize=1.2, capthick=0.5, **look)


def _scales(axes: Axes, widths: set) -> None:
    """Both logarithmic, with plain numbers at the ticks."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xscale("log", base=2)
    ticks = [width for width in sorted(widths) if np.log2(float(width)).is_integer()]
    axes.set_xticks(ticks, labels=[str(int(tick)) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("packed tokens W of a request")
