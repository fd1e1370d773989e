"""Figure 7: serving goodput over concurrent requests B. The paper's four series: block chain, fixed wide tree,
uniform width and request-level allocation, all by the dense verifier; and ours, best-first by the ragged one.

Geometric means over repeats with 95% Student intervals of the log, in the CSV also of each series over uniform width.
The paper prints no goodput; what its text says of request-level allocation over uniform is in the CSV.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from cast.experiments.records import SERVING

from . import style
from .data import Study
from .panels import measured
from .serving import GOODPUT, Batch, batches, printed

SERIES = {
    ("dense", "chain"): ("chain", "#E69F00", "s"),
    ("dense", "fixed_wide"): ("fixed wide tree", "#CC79A7", "^"),
    ("dense", "uniform"): ("uniform width", "#009E73", "v"),
    ("dense", "best_first"): ("request-level, dense", "#56B4E9", "D"),
    ("ragged", "best_first"): ("request-level, ragged (ours)", "#0072B2", "o"),
}
COLUMNS = [
    "source", "setting", "domain", "verifier", "policy", "active", "median", "mean", "low", "high", "repeats",
    "over_uniform_percent", "over_uniform_low_percent", "over_uniform_high_percent", "note",
]  # fmt: skip


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: goodput in tokens/s (median, geometric mean and its interval) by series and B."""
    found = []
    for place in measured(study, GOODPUT, SERVING):
        found += [batch.record | point for batch in batches(place) for point in _points(batch)] or [place.record]
    for one in printed("dense_request_level"):
        batch = int(one["quantity"].rsplit("batch ", 1)[1])
        place = {"source": "paper", "setting": one["setting"], "verifier": "dense", "policy": "best_first"}
        found.append(place | {"active": batch, "over_uniform_percent": float(one["value"]), "note": one["where"]})
    return pd.DataFrame(found, columns=COLUMNS)


def _points(batch: Batch) -> list[dict]:
    from cast.experiments.serving_statistics import compare, spread

    points = []
    for variant in SERIES:
        numbers = spread(batch.runs, variant)
        if numbers["repeats"]:
            over = compare(batch.runs, variant, ("dense", "uniform"))
            points.append({"verifier": variant[0], "policy": variant[1]} | _over_uniform(over) | numbers)
    return points


def _over_uniform(ratio) -> dict[str, float]:
    numbers = {"": ratio.gain, "low_": ratio.low, "high_": ratio.high}
    return {f"over_uniform_{end}percent": 100 * value for end, value in numbers.items()}


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    ours = frame[frame["source"] == "ours"]
    if not ours["mean"].notna().any():
        return style.save_not_measured(out, frame)
    places = list(ours[["setting", "domain"]].drop_duplicates().itertuples(index=False, name=None))
    columns = min(2, len(places))
    lines = -(-len(places) // columns)
    width = style.ONE_COLUMN if columns == 1 else style.TWO_COLUMNS
    figure, grid = style.new_figure(width, 2.4 * lines, lines, columns)
    for axes, place in zip(grid.flat, places, strict=False):
        mine = ours[(ours["setting"] == place[0]) & (ours["domain"] == place[1])]
        axes.set_title(", ".join(part for part in place if part))
        _draw(axes, mine)
    for axes in grid.flat[len(places) :]:
        axes.set_axis_off()
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _draw(axes: Axes, rows: pd.DataFrame) -> None:
    measured = rows[rows["mean"].notna()]
    if not len(measured):
        style.not_measured(axes, rows["note"])
        return
    have = [one for one in SERIES if ((measured["verifier"] == one[0]) & (measured["policy"] == one[1])).any()]
    for place, variant in enumerate(have):
        label, colour, marker = SERIES[variant]
        line = measured[(measured["verifier"] == variant[0]) & (measured["policy"] == variant[1])]
        line = line.sort_values("active")
        mean, low, high = (line[name].to_numpy(float) for name in ("mean", "low", "high"))
        # Side by side, so that intervals at one B stay apart.
        at = line["active"].to_numpy(float) * 1.05 ** (place - (len(have) - 1) / 2)
        reach = np.nan_to_num(np.clip([mean - low, high - mean], 0, None))  # too few repeats: a point alone
        look = {"color": colour, "marker": marker, "linestyle": "-" if variant[0] == "dense" else "--"}
        axes.errorbar(at, mean, yerr=reach, **look, elinewidth=0.7, capsize=1.5, capthick=0.6, label=label)
    axes.set_xscale("log", base=2)
    batches = sorted(measured["active"].unique())
    axes.set_xticks(batches, labels=[str(int(batch)) for batch in batches])
    axes.set_xticks([], minor=True)
    axes.set_xlim(batches[0] / 1.4, batches[-1] * 1.4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("concurrent requests B")
    axes.set_ylabel("goodput (tokens/s)")
