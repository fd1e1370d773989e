"""Figure 5: gain over DFlash at 16 packed tokens, as many as the chain, so only the tree's shape differs.

Ours: bars by setting and domain with 95% paired bootstrap intervals over prompts. The paper's twelve cells
(its Table 9) stand in a panel of their own, in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from . import paper, style
from .data import TREE, Study

COLUMNS = [
    "source", "setting", "domain", "width", "gain_percent", "low_percent", "high_percent", "prompts", "note",
]  # fmt: skip
MISSING = "not measured: "
SIDE_BY_SIDE = 3
"""Most of our settings for which both panels stand in one line."""


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: one row per setting and domain, gains in percent."""
    rows = []
    for setting in study.settings:
        width = study.chain_budget(setting)
        for domain in study.domains or [""]:
            row = {"source": "ours", "setting": setting, "domain": domain, "width": width, "note": ""}
            cell = None if width is None else study.cell(setting, domain, TREE, width)
            if cell is None or pd.isna(cell["gain"]):
                reason = study.reason(
                    setting, domain=domain or None, method=None if width is None else TREE, budget=width
                )
                rows.append(row | {"note": f"{MISSING}{reason}"})
            else:
                rows.append(
                    row
                    | {
                        "gain_percent": 100 * cell["gain"],
                        "low_percent": 100 * cell["gain_low"],
                        "high_percent": 100 * cell["gain_high"],
                        "prompts": cell["prompts"],
                    }
                )
    for printed in paper.table("table9").itertuples():
        rows.append(
            {
                "source": "paper", "setting": printed.setting, "domain": printed.domain, "width": 15,
                "gain_percent": printed.gain_percent, "note": "",
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    ours, theirs = frame[frame["source"] == "ours"], frame[frame["source"] == "paper"]
    # Side by side as long as the names of our settings have room.
    stacked = len(study.settings) > SIDE_BY_SIDE
    if stacked:
        figure, grid = style.new_figure(style.TWO_COLUMNS, 4.6, 2, 1, sharey=True, height_ratios=[1.3, 1])
    else:
        ratios = [max(1, len(study.settings)), 2.6]
        figure, grid = style.new_figure(style.TWO_COLUMNS, 2.4, 1, 2, sharey=True, width_ratios=ratios)
    above, below = grid.flat
    above.set_title("ours")
    below.set_title("paper (Table 9)")
    if ours["gain_percent"].notna().any():
        _bars(above, ours, study.settings, lambda name: name.replace("-", "\n", 1))
        if stacked:
            above.tick_params(axis="x", labelrotation=25)
        reasons = "; ".join(_reasons(ours))
        if reasons:
            text = style.wrapped(f"n.m., not measured: {reasons}", 120 if stacked else 24 + 24 * len(study.settings))
            above.set_xlabel(text, fontsize=6)
    else:
        style.not_measured(above, ours["note"])
    _bars(below, theirs, list(theirs["setting"].unique()), lambda name: paper.setting_label(name).replace(", ", "\n"))
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _bars(axes: Axes, frame: pd.DataFrame, settings: list[str], label: Callable[[str], str]) -> None:
    """Bars grouped by setting; domains carry their colours (ours) or hatches on grey (the paper)."""
    domains = list(frame["domain"].unique())
    thickness = 0.8 / len(domains)
    hatches = ["", "////", "....", "xxxx", "\\\\\\\\"]
    greyed = (frame["source"] == "paper").all()
    for place, domain in enumerate(domains):
        rows = frame[frame["domain"] == domain].set_index("setting").reindex(settings)
        at = np.arange(len(settings)) + (place - (len(domains) - 1) / 2) * thickness
        colour = style.PAPER if greyed else style.domain_style(domain)["color"]
        hatch = hatches[place % len(hatches)] if greyed else None
        name = paper.DOMAIN_LABELS.get(domain, domain)
        axes.bar(
            at, rows["gain_percent"], thickness * 0.92, color=colour, hatch=hatch, edgecolor="white",
            linewidth=0, label=f"paper: {name}" if greyed else name,
        )  # fmt: skip
        spread = rows[["gain_percent", "low_percent", "high_percent"]].to_numpy(dtype=float)
        known = np.isfinite(spread).all(axis=1)  # too few prompts leave a bar without an interval
        if known.any():
            gain, low, high = spread[known].T
            axes.errorbar(
                at[known], gain, yerr=np.clip([gain - low, high - gain], 0, None),
                fmt="none", ecolor=style.INK, elinewidth=0.7, capsize=2, capthick=0.7,
            )  # fmt: skip
        for x in at[rows["gain_percent"].isna()]:
            axes.annotate(
                "n.m.", (x, 0), xytext=(0, 2), textcoords="offset points", rotation=90, ha="center", va="bottom",
                fontsize=4.5,
            )  # fmt: skip
    axes.axhline(0, color=style.INK, linewidth=0.6)
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(settings) - 0.5)
    axes.tick_params(labelleft=True)
    axes.set_xticks(range(len(settings)), labels=[label(name) for name in settings])
    # A drafter with another block verifies another number of tokens; its tree is as large as its chain.
    packed = {int(width) + 1 for width in frame["width"].dropna()}
    count = f"{packed.pop()} packed tokens" if len(packed) == 1 else "the chain's packed count"
    axes.set_ylabel(f"gain over DFlash at\n{count} (%)")


def _reasons(ours: pd.DataFrame) -> list[str]:
    """Why bars are missing: each reason once for the settings and domains that share it."""
    places: dict[tuple[str, str], list[str]] = {}
    absent = ours[ours["gain_percent"].isna()]
    for (setting, note), rows in absent.groupby(["setting", "note"], sort=False):
        domains = ", ".join(paper.DOMAIN_LABELS.get(domain, domain) for domain in rows["domain"])
        places.setdefault((note.removeprefix(MISSING), domains), []).append(setting)
    return [f"{', '.join(settings)} ({domains}): {reason}" for (reason, domains), settings in places.items()]
