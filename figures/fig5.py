"""Figure 5: gain over DFlash at 16 packed tokens, as many as the chain, so only the tree's shape differs.

Ours: bars by setting and domain with 95% paired bootstrap intervals over prompts. The paper's twelve cells
(its Table 9) stand in a panel of their own, in grey.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from . import paper, style
from .data import NO_RECORDS, TREE, Study

COLUMNS = [
    "source",
    "setting",
    "domain",
    "width",
    "gain_percent",
    "low_percent",
    "high_percent",
    "prompts",
    "note",
]


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
                rows.append(row | {"note": f"not measured: {reason}"})
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
    figure, grid = style.new_figure(
        style.TWO_COLUMNS, 2.5, 1, 2, sharey=True, width_ratios=[max(1, len(study.settings)), 2.6]
    )
    left, right = grid[0]
    left.set_title("ours")
    right.set_title("paper (Table 9)")
    if ours["gain_percent"].notna().any():
        _bars(left, ours, study.settings, lambda name: name)
    else:
        reasons = ours["note"].unique() if len(ours) else [NO_RECORDS]
        style.not_measured(left, [text.removeprefix("not measured: ") for text in reasons])
    _bars(right, theirs, list(theirs["setting"].unique()), paper.setting_label)
    # One scale for both panels, with room above the bars for the legends.
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.2 * (high - low))
    return style.save(figure, out, frame)


def _bars(axes, frame: pd.DataFrame, settings: list[str], label) -> None:
    """Bars grouped by setting; domains carry their colours (ours) or hatches on grey (the paper)."""
    domains = list(frame["domain"].unique())
    thickness = 0.8 / len(domains)
    hatches = ["", "////", "....", "xxxx", "\\\\\\\\"]
    for place, domain in enumerate(domains):
        rows = frame[frame["domain"] == domain].set_index("setting").reindex(settings)
        at = np.arange(len(settings)) + (place - (len(domains) - 1) / 2) * thickness
        greyed = (frame["source"] == "paper").all()
        colour = style.PAPER if greyed else style.domain_style(domain)["color"]
        hatch = hatches[place % len(hatches)] if greyed else None
        axes.bar(
            at, rows["gain_percent"], thickness * 0.92, color=colour, hatch=hatch, edgecolor="white",
            linewidth=0, label=paper.DOMAIN_LABELS.get(domain, domain),
        )  # fmt: skip
        spread = rows[["gain_percent", "low_percent", "high_percent"]].to_numpy(dtype=float)
        known = np.isfinite(spread).all(axis=1)  # too few prompts leave a bar without an interval
        if known.any():
            gain, low, high = spread[known].T
            axes.errorbar(
                at[known], gain, yerr=np.clip([gain - low, high - gain], 0, None),
                fmt="none", ecolor=style.INK, elinewidth=0.7, capsize=2, capthick=0.7,
            )  # fmt: skip
        for x, note in zip(at, rows["note"], strict=True):
            if isinstance(note, str) and note.startswith("not measured"):
                axes.annotate(
                    style.wrapped(note, 38), (x, 0), xytext=(0, 3), textcoords="offset points",
                    rotation=90, ha="center", va="bottom", fontsize=5,
                )  # fmt: skip
    axes.axhline(0, color=style.INK, linewidth=0.6)
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(settings) - 0.5)
    axes.tick_params(labelleft=True)
    axes.set_xticks(range(len(settings)), labels=[label(name).replace(", ", "\n") for name in settings])
    # A drafter with another block verifies another number of tokens; its tree is as large as its chain.
    packed = {int(width) + 1 for width in frame["width"].dropna()}
    count = f"{packed.pop()} packed tokens" if len(packed) == 1 else "the chain's packed count"
    axes.set_ylabel(f"gain over DFlash at\n{count} (%)")
    axes.legend(loc="upper left", ncols=3, columnspacing=0.9, handlelength=1.2, borderaxespad=0.1)
