"""How the samplers' total variation from autoregressive sampling decays with the number of draws, against its floor.

One panel for each precision (the first token of a round, mean over prefixes, dots for single prefixes), and one for
the joint law of several tokens where it was drawn. An error of drawing alone decays as the control's: with exponent
-1/2 once the likely tokens were drawn often, more slowly under a law of many rare ones; a sampler with another law
levels off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from cast.experiments.records import TOTAL_VARIATION

from . import paper, style, tables
from .data import CHAIN, PLAIN, TREE, Study
from .draws import LEVELS, SAMPLERS, drawn, in_order
from .methods import METHODS
from .panels import measured

EXPERIMENT = "total_variation"
COLUMNS = ["source", "setting", "domain", "panel", "series", "prompt_id", "draws", "value", "decay_exponent", "note"]
FLOORS = {"floor_mean": ("--", "floor, mean"), "floor_q999": (":", "floor, 99.9%")}
FLOOR_INK = "#555555"
COLOURS = {PLAIN: style.INK, "walk": METHODS[TREE].colour, "recursive": METHODS[CHAIN].colour}
MARKERS = {PLAIN: "o", "walk": "s", "recursive": "^"}
# Factors on the draws, so that the samplers' points stand side by side.
ASIDE = {PLAIN: 0.9, "walk": 1.0, "recursive": 1.11}
PAPER_DTYPES = {"fp64": "float64", "bf16": "bfloat16"}


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: total variation by draws, of each prefix and (no prompt_id) their mean."""
    found = []
    for place in measured(study, EXPERIMENT, TOTAL_VARIATION):
        if place.reason:
            found.append(place.record)
            continue
        # Walks that may miss their node make no common axis of draws.
        mine = place.rows[place.rows["level"] != "deeper"]
        for _, part in sorted(mine.groupby(["level", "dtype"]), key=in_order):
            found += [place.record | {"panel": drawn(part)} | point for point in _points(part)]
    found += _paper_rows()
    return pd.DataFrame(found, columns=COLUMNS)


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    ours, theirs = frame[frame["source"] == "ours"], frame[frame["source"] == "paper"]
    if not ours["value"].notna().any():
        return style.save_not_measured(out, frame)
    lines = list(ours[["setting", "domain"]].drop_duplicates().itertuples(index=False, name=None))
    panels = {line: _of(ours, *line)["panel"].dropna().unique() for line in lines}
    columns = max(1, *(len(titles) for titles in panels.values()))
    figure, grid = style.new_figure(style.TWO_COLUMNS, 2.3 * len(lines), len(lines), columns)
    for (setting, domain), axes in zip(lines, grid, strict=True):
        mine, titles = _of(ours, setting, domain), panels[setting, domain]
        for panel, title in zip(axes, titles, strict=False):
            panel.set_title(f"{setting}, {paper.DOMAIN_LABELS.get(domain, domain)}\n{title}")
            _draw(panel, mine[mine["panel"] == title], theirs[theirs["panel"] == title])
        for panel in axes[len(titles) :]:
            panel.set_axis_off()
        if not len(titles):
            axes[0].set_title(", ".join(part for part in (setting, domain) if part))
            style.not_measured(axes[0], mine["note"])
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _of(frame: pd.DataFrame, setting: str, domain: str) -> pd.DataFrame:
    return frame[(frame["setting"] == setting) & (frame["domain"] == domain)]


def _points(rows: pd.DataFrame) -> list[dict]:
    found = []
    for sampler in SAMPLERS:
        mine = rows[rows["sampler"] == sampler]
        if not len(mine):
            continue
        found += [
            {"series": sampler, "prompt_id": row.prompt_id, "draws": row.walks, "value": row.total_variation}
            for row in mine.itertuples()
        ]
        found += _means(mine, "total_variation", sampler)
    control = rows[rows["sampler"] == PLAIN]
    for name in FLOORS:
        found += _means(control if len(control) else rows, name, name)
    return found


def _means(rows: pd.DataFrame, column: str, series: str) -> list[dict]:
    means = rows.groupby("walks")[column].mean()
    exponent = decay(means.index.to_numpy(float), means.to_numpy(float))
    return [
        {"series": series, "prompt_id": "", "draws": draws, "value": value, "decay_exponent": exponent}
        for draws, value in means.items()
    ]


def decay(draws: np.ndarray, values: np.ndarray) -> float | None:
    """Exponent of a power law through the points, by least squares of logarithms; None where there is none."""
    if len(draws) < 2 or (values <= 0).any():
        return None
    return float(np.polyfit(np.log(draws), np.log(values), 1)[0])


def _paper_rows() -> list[dict]:
    prose = paper.prose()
    found = []
    for row in prose[prose["id"] == "total_variation"].itertuples():
        dtypes = [name for name in PAPER_DTYPES if name in row.quantity] or list(PAPER_DTYPES)
        found += [
            {"source": "paper", "setting": "", "domain": "", "panel": f"{LEVELS['first']}, {dtype}"}
            | {
                "series": "floor" if "floor" in row.quantity else "sampler",
                "value": float(row.value),
                "note": row.where,
            }
            for dtype in dtypes
        ]
    return found


def _draw(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    for series, (line, label) in FLOORS.items():
        rows = ours[ours["series"] == series].sort_values("draws")
        axes.plot(rows["draws"], rows["value"], linestyle=line, marker="_", color=FLOOR_INK, linewidth=0.9, label=label)
    for sampler, label in SAMPLERS.items():
        rows = ours[ours["series"] == sampler]
        mean = rows[rows["prompt_id"] == ""].sort_values("draws")
        single = rows[rows["prompt_id"] != ""]
        if not len(mean):
            continue
        look = {"color": COLOURS[sampler], "marker": MARKERS[sampler]}
        if single["prompt_id"].nunique() > 1:
            axes.plot(
                single["draws"] * ASIDE[sampler], single["value"], linestyle="none", **look, markersize=1.8, alpha=0.35,
                markeredgewidth=0,
            )  # fmt: skip
        axes.plot(mean["draws"] * ASIDE[sampler], mean["value"], **look, label=label)
    for series, line, label in (("floor", "--", "paper, floor"), ("sampler", "-", "paper, samplers")):
        for number, value in enumerate(theirs.loc[theirs["series"] == series, "value"].unique()):
            axes.axhline(
                value, color=style.PAPER, linestyle=line, linewidth=0.7, zorder=0, label=None if number else label
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    draws = sorted(ours["draws"].dropna().unique())
    axes.set_xticks(draws, labels=[f"{int(count):,}" for count in draws])
    axes.set_xticks([], minor=True)
    axes.set_xlim(draws[0] / 1.6, draws[-1] * 1.6)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("draws")
    axes.set_ylabel("total variation")
    _tell_exponents(axes, ours)


def _tell_exponents(axes: Axes, ours: pd.DataFrame) -> None:
    """The decay exponents in a strip below the points."""
    exponents = {
        label: ours.loc[ours["series"] == sampler, "decay_exponent"].dropna() for sampler, label in SAMPLERS.items()
    }
    told = [f"{label} {tables.number(found.iloc[0])}" for label, found in exponents.items() if len(found)]
    if not told:
        return
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom * (bottom / top) ** 0.45, top)
    text = "\n".join(["decay exponent:", *told]).replace("-", "−")
    axes.text(0.03, 0.03, text, transform=axes.transAxes, fontsize=5.5, va="bottom")
