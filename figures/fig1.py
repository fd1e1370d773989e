"""Figure 1: one recorded round, the chain (top) and the tree (bottom) of the same drafter scores.

Bars are the drafter's probabilities of its best candidates at each position: amber where the method verifies the
candidate, grey where it drops it. Boxes are verified tokens: green and filled where the target accepts, red and
dashed where not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from cast.experiments.records import EXAMPLE, read_records

from . import style
from .data import Study

EXPERIMENT = "worked_example"
KEPT, DROPPED = "#E69F00", "#c8c8c8"
ACCEPTED, REJECTED, ROOT = "#009E73", "#D55E00", style.INK
ROW = 0.62
"""Height of one row of boxes, in units of a column's width."""
FOOT = 0.08
"""Where the bars stand, above the root's row."""
INCHES = 0.5
"""Of one unit."""
LONGEST = 8
"""Characters of a token that fit a box."""


def plotted(study: Study) -> pd.DataFrame:
    """The rows of the first example recorded, settings and domains in their order; empty without one."""
    paths = sorted(study.root.glob(f"{EXPERIMENT}/*/*.parquet"))
    if not paths:
        return pd.DataFrame([{"note": f"not measured: no {EXPERIMENT} record"}])
    frame = read_records(paths, EXAMPLE)
    measured = frame[frame["status"] == "measured"]
    if not len(measured):
        return pd.DataFrame([{"note": f"not measured: {'; '.join(frame['reason'].unique())}"}])
    order = {name: place for place, name in enumerate(study.settings)}
    first = min(
        measured[["setting", "domain"]].drop_duplicates().itertuples(index=False),
        key=lambda cell: (order.get(cell.setting, len(order)), cell.setting, cell.domain),
    )
    chosen = measured[(measured["setting"] == first.setting) & (measured["domain"] == first.domain)]
    return chosen.drop(columns=["status", "reason"]).assign(note="")


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    if "kind" not in frame:
        return style.save_not_measured(out, frame)
    tree, chain = (frame[frame["kind"] == kind].sort_values("node") for kind in ("tree", "chain"))
    panels = (
        (chain, [0] * len(chain), "DFlash: the top-1 chain"),
        (tree, _rows(tree), "CAST: the best-first tree"),
    )
    above = FOOT + float(_heights(frame[frame["kind"] == "candidate"]).max()) + 0.05
    below = [ROW * (max(rows) + 1) + 0.05 for _, rows, _ in panels]
    heights = [above + low for low in below]
    figure, grid = style.new_figure(style.TWO_COLUMNS, INCHES * sum(heights) + 0.9, 2, 1, height_ratios=heights)
    positions = int(frame["depth"].max())
    for axes, low, (nodes, rows, name) in zip(grid[:, 0], below, panels, strict=True):
        committed = int(nodes["accepted"].sum()) + 1
        axes.set_title(f"{name}, {len(nodes) + 1} packed tokens, commits R = {committed}", loc="left", color=style.INK)
        _scores(axes, frame, nodes)
        _boxes(axes, frame, nodes, rows)
        axes.set_xlim(-0.6, positions + 0.6)
        axes.set_ylim(-low, above)
        axes.set_axis_off()
    figure.supxlabel(_told(frame), fontsize=6)
    return style.save(figure, out, frame)


def _rows(tree: pd.DataFrame) -> list[int]:
    """A row for each node: its best child continues its own, every other child opens a new one."""
    children: dict[int, list[int]] = {}
    for node, parent in zip(tree["node"], tree["parent"], strict=True):
        children.setdefault(int(parent), []).append(int(node))
    rows: dict[int, int] = {}

    def place(node: int, row: int) -> int:
        """Place a node's subtree from this row on; returns the next free row."""
        rows[node] = row
        free = row
        for child in children.get(node, []):
            free = place(child, free)
        return max(free, row + 1)

    place(-1, 0)
    return [rows[int(node)] for node in tree["node"]]


def _scores(axes: Axes, frame: pd.DataFrame, nodes: pd.DataFrame) -> None:
    """The bars of every position, on a square-root scale so that small probabilities stay visible."""
    kept = set(zip(nodes["depth"], nodes["token_id"], strict=True))
    candidates = frame[frame["kind"] == "candidate"]
    most = int(candidates["rank"].max())
    at = candidates["depth"].to_numpy(dtype=float) + 0.84 * (
        (candidates["rank"].to_numpy(dtype=float) - 0.5) / most - 0.5
    )
    used = [key in kept for key in zip(candidates["depth"], candidates["token_id"], strict=True)]
    axes.bar(at, _heights(candidates), 0.84 / most * 0.85, bottom=FOOT, color=np.where(used, KEPT, DROPPED))


def _heights(candidates: pd.DataFrame) -> np.ndarray:
    """Of their bars: square roots of the probabilities."""
    return np.sqrt(np.exp(candidates["log_probability"].to_numpy(dtype=float)))


def _boxes(axes: Axes, frame: pd.DataFrame, nodes: pd.DataFrame, rows: list[int]) -> None:
    """The root and every verified token, joined to its parent."""
    root = frame[frame["kind"] == "root"].iloc[0]
    where = {-1: (0.0, -ROW / 2)}
    where |= {
        int(node): (float(depth), -ROW * (row + 0.5))
        for node, depth, row in zip(nodes["node"], nodes["depth"], rows, strict=True)
    }
    for node, parent in zip(nodes["node"], nodes["parent"], strict=True):
        (x, y), (px, py) = where[int(node)], where[int(parent)]
        axes.plot([px + 0.42, px + 0.5, px + 0.5, x - 0.42], [py, py, y, y], color=style.INK, linewidth=0.5, zorder=0)
    _box(axes, where[-1], root["token"], ROOT)
    for node, token, accepted in zip(nodes["node"], nodes["token"], nodes["accepted"], strict=True):
        look = (ACCEPTED, "#d9f0e8", "solid") if accepted else (REJECTED, "white", (0, (3, 1.5)))
        _box(axes, where[int(node)], token, *look)


def _box(axes: Axes, centre: tuple[float, float], token: str, colour: str, face="white", line="solid") -> None:
    x, y = centre
    axes.add_patch(
        FancyBboxPatch(
            (x - 0.4, y - 0.2), 0.8, 0.4, boxstyle="round,pad=0.02,rounding_size=0.08",
            facecolor=face, edgecolor=colour, linewidth=0.9, linestyle=line,
        )
    )  # fmt: skip
    axes.text(x, y, _shown(token), ha="center", va="center", fontsize=4.8, color=colour)


def _shown(token: str) -> str:
    """A token as text: the leading space dropped, line breaks made visible, dollar signs literal."""
    text = token.strip(" ").replace("\n", "\\n").replace("$", r"\$") or "␣"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _told(frame: pd.DataFrame) -> str:
    """How the target goes on, whose round it is, and what the marks mean."""
    target = frame[frame["kind"] == "target"].sort_values("depth")
    text = "".join(target["token"]).replace("\n", "\\n").replace("$", r"\$")
    row = frame.iloc[0]
    return (
        f"target continues: {style.wrapped(text, 110)}\n"
        f"{row['target']}, {row['dtype']}, prompt {row['prompt_id']}, round {row['round']}\n"
        "bars: the drafter's probabilities (square-root scale), amber verified, grey dropped; "
        "boxes: green accepted, red and dashed rejected"
    )
