"""Figure 3: speedup over DFlash against the tree width N, a panel for each setting, a line for each domain.

Ours: cell ms/token of DFlash over that of CAST, with 95% paired bootstrap intervals over prompts. A solid
line marks the predicted width N*, a dotted one the sweep oracle. The paper's sweep (its Table 12) has a panel
of its own.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from . import paper, style
from .data import CHAIN, TREE, Study

COLUMNS = [
    "source", "setting", "domain", "width", "speedup_over_dflash", "low", "high", "prompts",
    "predicted_width", "oracle_width", "note",
]  # fmt: skip
PAPER_SETTING = "h100_sxm-qwen3_8b"


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: one row per setting, domain and width; speedups as ratios."""
    rows = []
    for setting in study.settings:
        shared = {
            "source": "ours", "setting": setting,
            "predicted_width": study.predicted(setting), "oracle_width": study.oracle(setting),
        }  # fmt: skip
        for domain in study.domains:
            rows += [shared | {"domain": domain} | point for point in _points(study, setting, domain)]
        if not study.domains:
            rows.append(shared | {"note": f"not measured: {study.reason(setting)}"})
    return pd.DataFrame(rows + _paper_rows(), columns=COLUMNS)


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    # Without any setting the first panel says so; the last one is always the paper's.
    panels = [*(study.settings or ["ours"]), None]
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure, grid = style.new_figure(style.TWO_COLUMNS, 2.35 * lines, lines, columns)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, setting in zip(grid.flat, panels, strict=False):
        mine = frame[frame["source"] == "paper"] if setting is None else frame[frame["setting"] == setting]
        mine = mine[mine["source"] == ("paper" if setting is None else "ours")]
        name = f"paper: {paper.setting_label(PAPER_SETTING)}" if setting is None else setting
        measured = mine.dropna(subset=["speedup_over_dflash"])
        if measured.empty:
            axes.set_title(name)
            style.not_measured(axes, mine["note"])
            continue
        axes.set_title(_title(name, measured))
        _panel(axes, measured, greyed=setting is None)
        _gaps(axes, mine[mine["speedup_over_dflash"].isna()])
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _panel(axes: Axes, measured: pd.DataFrame, greyed: bool) -> None:
    axes.axhline(1, color=style.INK, linewidth=0.5, zorder=0)
    for domain, line in measured.groupby("domain", sort=False):
        look = style.domain_style(domain)
        label = paper.DOMAIN_LABELS.get(domain, domain)
        if greyed:
            axes.plot(line["width"], line["speedup_over_dflash"], **look | {"color": style.PAPER}, label=label)
            continue
        below, above = line["speedup_over_dflash"] - line["low"], line["high"] - line["speedup_over_dflash"]
        axes.errorbar(
            line["width"], line["speedup_over_dflash"], yerr=[below.clip(lower=0), above.clip(lower=0)],
            **look, elinewidth=0.6, capsize=1.5, capthick=0.6, label=label,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    widths = sorted(measured["width"].astype(int).unique())
    axes.set_xticks(widths, labels=[str(width) for width in widths])
    axes.minorticks_off()
    for column, dashes in (("predicted_width", "-"), ("oracle_width", ":")):
        if pd.notna(measured[column].iloc[0]):
            axes.axvline(measured[column].iloc[0], color=style.INK, linestyle=dashes, linewidth=1, zorder=1)
    axes.set_xlabel("tree width N (nodes, log scale)")
    axes.set_ylabel("speedup over DFlash")


def _gaps(axes: Axes, absent: pd.DataFrame) -> None:
    """Say below the panel which of its points are not measured, and why."""
    places: dict[str, list[str]] = {}
    for (domain, note), rows in absent.groupby(["domain", "note"], sort=False):
        widths = ", ".join(str(int(width)) for width in rows["width"].dropna())
        name = paper.DOMAIN_LABELS.get(domain, domain)
        places.setdefault(note.removeprefix("not measured: "), []).append(f"{name}{f' N = {widths}' if widths else ''}")
    if places:
        told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in places.items())
        axes.set_xlabel(f"{axes.get_xlabel()}\n{style.wrapped(f'not measured: {told}', 38)}")


def _title(name: str, panel: pd.DataFrame) -> str:
    predicted, oracle = panel["predicted_width"].iloc[0], panel["oracle_width"].iloc[0]
    shown = [
        f"{label} {int(width)} ({line})" if pd.notna(width) else f"no {label}"
        for label, width, line in (("N*", predicted, "solid"), ("oracle", oracle, "dotted"))
    ]
    return f"{name}\n{', '.join(shown)}"


def _points(study: Study, setting: str, domain: str) -> list[dict]:
    """One entry for each width tried; one without width where nothing was measured in this domain."""
    points = []
    for width in study.tried_widths(setting, domain):
        cell = study.cell(setting, domain, TREE, width)
        if cell is None or pd.isna(cell["gain"]):
            reason = study.reason(setting, domain=domain, method=TREE, budget=width)
            points.append({"width": width, "note": f"not measured: {reason}"})
        else:
            values = {
                "speedup_over_dflash": 1 + cell["gain"],
                "low": 1 + cell["gain_low"],
                "high": 1 + cell["gain_high"],
            }
            points.append({"width": width, "prompts": cell["prompts"], "note": ""} | values)
    return points or [{"note": f"not measured: {study.reason(setting, domain=domain)}"}]


def _paper_rows() -> list[dict]:
    table = paper.table("table12")
    table = table[table["setting"] == PAPER_SETTING]
    chain = table[table["method"] == CHAIN].set_index("domain")["ms_per_token"]
    trees = table[table["method"] == TREE]
    prediction = paper.table("table2").set_index("setting").loc[PAPER_SETTING]
    return [
        {
            "source": "paper", "setting": PAPER_SETTING, "domain": row.domain, "width": row.width,
            "speedup_over_dflash": chain[row.domain] / row.ms_per_token,
            "predicted_width": prediction["predicted_width"], "oracle_width": prediction["oracle_width"],
            "note": "from the printed ms/token of Table 12",
        }
        for row in trees.itertuples()
    ]  # fmt: skip
