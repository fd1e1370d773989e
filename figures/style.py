"""One look for every figure: fonts, sizes, colours, and how a figure reaches the disk."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import pandas as pd

from .data import DOMAIN_ORDER, NO_RECORDS
from .files import complete_or_absent

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ONE_COLUMN = 3.3
"""Width of a one-column figure in inches."""
TWO_COLUMNS = 6.9
"""Width of a figure across both columns in inches."""
DPI = 200

INK = "#222222"
PAPER = "#9a9a9a"
"""The paper's own numbers are drawn in this grey, everywhere."""

# Okabe-Ito: eight colours that stay apart under the common colour-vision deficiencies.
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A900"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]

# The PDF and SVG writers otherwise stamp the clock and random ids into the file.
_METADATA = {"pdf": {"CreationDate": None, "Producer": None, "Creator": "figures"}, "svg": {"Date": None}}

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    # A white ground without a border: grid and marker lines stop behind the words.
    "legend.frameon": True,
    "legend.framealpha": 1,
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.borderpad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "cast",
    "svg.fonttype": "path",
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options):
    """A figure of width x height inches in the common style, and its axes as a 2-d array [rows, columns]."""
    plt.rcParams.update(_RC)
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained", **options)


def look(place: int) -> dict[str, str]:
    """Colour and marker of a figure's n-th series, from 0; 64 pairs before one comes again.

    Colour never stands alone: each series has its marker too.
    """
    return {"color": CYCLE[place % len(CYCLE)], "marker": MARKERS[(place + place // len(CYCLE)) % len(MARKERS)]}


def domain_style(domain: str) -> dict[str, str]:
    """Colour and marker of a domain: the same in every figure, whatever else is drawn."""
    return look(DOMAIN_ORDER.index(domain) if domain in DOMAIN_ORDER else sum(domain.encode()))


def shared_legend(figure: Figure) -> None:
    """One legend for all panels in a strip of its own below them; of one label, the first panel's look."""
    handles: dict[str, object] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    labels = list(handles)

    def inches(rows: int) -> float:
        """Of columns of so many entries: of each its line and space, and its longest label."""
        starts = range(0, len(labels), rows)
        return sum(0.43 + 0.048 * max(map(len, labels[start : start + rows])) for start in starts)

    rows = next((n for n in range(1, len(labels)) if inches(n) < figure.get_figwidth()), len(labels))
    figure.set_figheight(figure.get_figheight() + 0.15 * rows)
    columns = -(-len(labels) // rows)
    figure.legend(handles.values(), labels, loc="outside lower center", ncols=columns)


def not_measured(axes: Axes, reasons: Iterable[str]) -> None:
    """Turn a panel into the statement that there is nothing to draw, and why (NO_RECORDS without a reason)."""
    axes.set_axis_off()
    bare = dict.fromkeys(reason.removeprefix("not measured: ") for reason in reasons if reason)
    text = "not measured:\n" + wrapped("; ".join(bare) or NO_RECORDS, 34)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK, fontsize=7)


def save_not_measured(out: Path, data: pd.DataFrame) -> list[Path]:
    """The figure of which nothing was measured: why, from the notes of our rows."""
    figure, grid = new_figure(TWO_COLUMNS, 1.2)
    ours = data[data["source"] == "ours"] if "source" in data else data
    not_measured(grid[0, 0], ours["note"])
    return save(figure, out, data)


def wrapped(text: str, characters: int) -> str:
    """The text broken into lines of at most so many characters."""
    return "\n".join(textwrap.wrap(text, characters))


def save(figure: Figure, out: Path, data: pd.DataFrame) -> list[Path]:
    """Write <out>.pdf, .svg, .png (200 dpi) and the plotted data as .csv, all or none, and close the figure.

    The bytes depend on figure and data alone: no clock, no random ids.
    """
    out = Path(out)
    with complete_or_absent(out.parent) as scratch:
        for suffix in ("pdf", "svg", "png"):
            figure.savefig(scratch / f"{out.name}.{suffix}", metadata=_METADATA.get(suffix))
        data.to_csv(scratch / f"{out.name}.csv", index=False, lineterminator="\n")
    plt.close(figure)
    return [out.with_name(f"{out.name}.{suffix}") for suffix in ("pdf", "svg", "png", "csv")]
