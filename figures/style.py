"""One look for every figure: fonts, sizes, colours, and how a figure reaches the disk."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import pandas as pd

from .data import DOMAIN_ORDER
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
_CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A900"]
METHOD_COLOURS = {
    "autoregressive": "#000000",
    "dflash": "#E69F00",
    "cast": "#0072B2",
    "eagle3": "#CC79A7",
    "dart": "#009E73",
    "ngram": "#56B4E9",
}
METHOD_LABELS = {
    "autoregressive": "AR", "dflash": "DFlash", "cast": "CAST", "eagle3": "EAGLE-3", "dart": "DART", "ngram": "n-gram",
}  # fmt: skip
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# Colour never carries a domain alone: each has its marker too.

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


def setting_colours(settings: Iterable[str]) -> dict[str, str]:
    """A colour for each setting, by its place in the given order (so pass all settings of the study)."""
    return {name: _CYCLE[index % len(_CYCLE)] for index, name in enumerate(settings)}


def domain_style(domain: str) -> dict[str, str]:
    """Colour and marker of a domain: the same in every figure, whatever else is drawn."""
    place = DOMAIN_ORDER.index(domain) if domain in DOMAIN_ORDER else sum(domain.encode())
    return {"color": _CYCLE[place % len(_CYCLE)], "marker": MARKERS[place % len(MARKERS)]}


def not_measured(axes: Axes, reasons: Iterable[str]) -> None:
    """Turn a panel into the statement that there is nothing to draw, and why."""
    axes.set_axis_off()
    text = "not measured:\n" + wrapped("; ".join(dict.fromkeys(reasons)), 34)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK, fontsize=7)


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
