"""Figure 4: replay diagnostics. (a) Rank of the target's token at the chain's first rejection; (b) reliability of the
candidates at depth one; (c) sorted candidate masses with the stopping threshold.

Ours: by domain, with 95% intervals (bootstrap over prompts). Where nothing was replayed, (c) shows the
mass curve of the drafter's score log, which the width prediction rests on. The paper's printed numbers in grey: as a
range where its text gives one over its domains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from cast.experiments.records import REPLAY, SCORES

from . import paper, style
from .data import Study
from .panels import domains_of, settings_of

EXPERIMENT, SCORE_LOG = "replay", "drafter_scores"
THRESHOLD = "threshold"
BANDS = ["2-4", "5-8", "9-32", "beyond 32"]
COLUMNS = ["source", "panel", "setting", "domain", "at", "x", "value", "low", "high", "n", "note"]
MISSING = "not measured: "
PAPER_TARGET = "Qwen3-8B"


def plotted(study: Study) -> pd.DataFrame:
    """The data of the figure: shares and hit rates as fractions; ``x`` is the confidence (b) or the place (c)."""
    rows = study.records(EXPERIMENT, REPLAY)
    found = []
    for setting in settings_of(study, rows):
        for domain in study.domains or domains_of(study, rows):
            mine = rows
            if len(rows):
                mine = rows[(rows["setting"] == setting) & (rows["status"] == "measured")]
                mine = mine[mine["domain"] == domain]
            if not len(mine):
                reason = study.reason(setting, EXPERIMENT, rows, domain=domain or None)
                found.append({"setting": setting, "domain": domain, "note": f"{MISSING}{reason}"})
                continue
            found += [{"setting": setting, "domain": domain, "note": ""} | point for point in _points(mine)]
        if not any(row["setting"] == setting and row.get("panel") == "c" for row in found):
            found += _score_curve(study, setting)
        found += _threshold(study, setting)
    found = [{"source": "ours"} | row for row in found]
    frame = pd.DataFrame([*found, *_paper_rows()], columns=COLUMNS)
    for column in ("x", "value", "low", "high"):  # a record's missing interval is pandas' NA, which matplotlib refuses
        frame[column] = frame[column].astype("Float64").to_numpy(float, na_value=np.nan)
    return frame


def render(study: Study, out: Path) -> list[Path]:
    frame = plotted(study)
    ours, theirs = frame[frame["source"] == "ours"], frame[frame["source"] == "paper"]
    settings = list(ours.loc[ours["panel"].isin(["a", "b", "c"]), "setting"].unique()) or [None]
    figure, grid = style.new_figure(style.TWO_COLUMNS, 2.2 * len(settings), len(settings), 3)
    for line, setting in zip(grid, settings, strict=True):
        mine = ours[ours["setting"] == setting] if setting else ours
        for panel, axes, draw in zip("abc", line, (_ranks, _reliability, _masses), strict=True):
            part = mine[(mine["panel"] == panel) & mine["value"].notna()]
            axes.set_title(f"({panel}) {setting or 'ours'}")
            if part[part["at"] != THRESHOLD].empty:
                noted = mine[mine["note"].str.startswith(MISSING)]
                own = noted[noted["panel"] == panel]
                notes = own if len(own) else noted
                style.not_measured(axes, notes["note"])
            else:
                draw(axes, part, theirs[theirs["panel"] == panel])
    style.shared_legend(figure)
    return style.save(figure, out, frame)


def _points(rows: pd.DataFrame) -> list[dict]:
    ranks = rows[(rows["analysis"] == "rejection_ranks") & (rows["quantity"] == "share")].set_index("bin")
    points = [
        {"panel": "a", "at": band, "x": place} | dict(ranks.loc[band, ["value", "low", "high", "n"]])
        for place, band in enumerate(BANDS)
        if band in ranks.index
    ]
    bins = rows[(rows["analysis"] == "reliability") & (rows["top_k"] > 1)].pivot(
        index="bin", columns="quantity", values="value"
    )
    hits = rows[(rows["analysis"] == "reliability") & (rows["top_k"] > 1) & (rows["quantity"] == "hit_rate")]
    points += [
        {"panel": "b", "at": hit.bin, "x": bins.loc[hit.bin, "confidence"], "value": hit.value}
        | {"low": hit.low, "high": hit.high, "n": hit.n}
        for hit in hits.itertuples()
    ]
    masses = rows[rows["analysis"] == "mass_curve"]
    points += [
        {"panel": "c", "x": mass.budget, "value": mass.value, "low": mass.low, "high": mass.high, "n": mass.n}
        for mass in masses.itertuples()
    ]
    return points


def _score_curve(study: Study, setting: str) -> list[dict]:
    """The mass curve behind the setting's width: of the score log that it names, else as the prediction keeps it."""
    content = study.widths.get(setting, {})
    rows = study.records(SCORE_LOG, SCORES)
    measured = rows[rows["status"] == "measured"] if len(rows) else pd.DataFrame(columns=["setting", "domain"])
    own = measured.loc[measured["setting"] == setting, "domain"]
    source, domain = (content.get("scores_source") or f"{setting}/{next(iter(own), '')}").split("/", 1)
    mine = measured[(measured["setting"] == source) & (measured["domain"] == domain)]
    if len(mine):
        curve = [{"x": row.rank, "value": row.mass, "n": row.rounds} for row in mine.sort_values("rank").itertuples()]
    else:
        masses, rounds = content.get("masses") or [], content.get("scores_rounds")
        curve = [{"x": place, "value": mass, "n": rounds} for place, mass in enumerate(masses, start=1)]
    common = {"setting": setting, "domain": domain, "panel": "c"}
    if not curve:
        reason = study.reason(source, SCORE_LOG, rows, domain=domain or None)
        return [common | {"note": f"{MISSING}{reason}"}]
    return [common | {"at": f"scores of {source}", "note": ""} | point for point in curve]


def _threshold(study: Study, setting: str) -> list[dict]:
    content = study.widths.get(setting, {})
    if study.predicted(setting) is None or "predictions" not in content:
        return []
    value = content["predictions"][content["default"]].get("threshold")
    return [] if value is None else [{"setting": setting, "panel": "c", "at": THRESHOLD, "value": value, "note": ""}]


def _paper_rows() -> list[dict]:
    prose = paper.prose()

    def values(identifier: str, within: str = "") -> list[float]:
        rows = prose[(prose["id"] == identifier) & prose["quantity"].str.contains(within, regex=False)]
        return rows["value"].astype(float).tolist()

    ranges = [
        ("a", "2-4", 0.0, values("rejection_rank_2_4"), 100),
        ("a", "5-8", 1.0, values("rejection_rank_5_8"), 100),
        ("a", "beyond 32", 3.0, values("rejection_beyond_32"), 100),
        ("b", "0.9-1.0", 0.95, values("calibration", "0.9-1.0"), 1),
        ("b", "0.6-0.7", 0.65, values("calibration", "0.6-0.7"), 1),
    ]
    rows = [
        {"panel": panel, "at": at, "x": x, "low": min(found) / unit, "high": max(found) / unit}
        for panel, at, x, found, unit in ranges
    ]
    rows += [
        {"panel": "c", "x": place, "value": values("sorted_mass", f"{place}{'st' if place == 1 else 'th'} ")[0]}
        for place in (1, 48, 64)
    ]
    rows.append({"panel": "c", "at": THRESHOLD, "value": values("threshold")[0]})
    return [{"source": "paper", "setting": PAPER_TARGET, "domain": "", "note": ""} | row for row in rows]


def _ranks(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    domains = list(ours["domain"].unique())
    thickness = 0.8 / len(domains)
    for place, domain in enumerate(domains):
        rows = ours[ours["domain"] == domain]
        at = rows["x"].astype(float) + (place - (len(domains) - 1) / 2) * thickness
        spread = rows[["value", "low", "high"]].to_numpy(dtype=float)
        axes.bar(
            at, 100 * spread[:, 0], thickness * 0.92, color=style.domain_style(domain)["color"],
            label=paper.DOMAIN_LABELS.get(domain, domain),
        )  # fmt: skip
        known = np.isfinite(spread).all(axis=1)
        value, low, high = 100 * spread[known].T
        axes.errorbar(
            at[known], value, yerr=np.clip([value - low, high - value], 0, None),
            fmt="none", ecolor=style.INK, elinewidth=0.6, capsize=1.5, capthick=0.6,
        )  # fmt: skip
    for number, band in enumerate(theirs.itertuples()):
        axes.fill_between(
            [band.x - 0.45, band.x + 0.45], 100 * band.low, 100 * band.high,
            facecolor="none", edgecolor=style.PAPER, hatch="////", linewidth=0.6,
            label="paper, range" if number == 0 else None,
        )  # fmt: skip
    axes.set_xticks(range(len(BANDS)), labels=["2–4", "5–8", "9–32", ">32"])
    axes.grid(False, axis="x")
    axes.set_xlabel("rank of the target's token")
    axes.set_ylabel("share of first rejections (%)")


def _reliability(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=style.INK, linewidth=0.5, zorder=0)
    for domain, rows in ours.groupby("domain", sort=False):
        value, low, high = rows[["value", "low", "high"]].to_numpy(dtype=float).T
        axes.errorbar(
            rows["x"].astype(float), value, yerr=np.clip([value - low, high - value], 0, None),
            **style.domain_style(domain), elinewidth=0.6, capsize=1.5, capthick=0.6,
            label=paper.DOMAIN_LABELS.get(domain, domain),
        )  # fmt: skip
    for number, band in enumerate(theirs.itertuples()):
        axes.plot(
            [band.x, band.x], [band.low, band.high], color=style.PAPER, linewidth=4, solid_capstyle="butt", zorder=1,
            label="paper, range" if number == 0 else None,
        )  # fmt: skip
    axes.set_xlim(-0.02, 1.03)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("drafter's probability at depth one")
    axes.set_ylabel("hit rate")


def _masses(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    for part, colour, label in ((ours, style.INK, "threshold"), (theirs, style.PAPER, "paper's threshold")):
        for line in part[part["at"] == THRESHOLD].itertuples():
            axes.axhline(line.value, color=colour, linestyle="--", linewidth=0.9, label=label)
    for domain, rows in ours[ours["at"] != THRESHOLD].groupby("domain", sort=False):
        label = paper.DOMAIN_LABELS.get(domain, domain)
        if rows["at"].notna().any():
            label = f"{label}, {rows['at'].iloc[0]}"
        place, mass, low, high = rows[["x", "value", "low", "high"]].to_numpy(dtype=float).T
        colour = style.domain_style(domain)["color"]
        axes.plot(place, mass, color=colour, label=label)
        axes.fill_between(place, low, high, color=colour, alpha=0.2, linewidth=0)
    points = theirs[theirs["at"] != THRESHOLD]
    axes.plot(points["x"].astype(float), points["value"], "D", color=style.PAPER, label="paper, GSM8K")
    axes.set_yscale("log")
    axes.set_xlabel("place in the best-first order")
    axes.set_ylabel("mean mass of the candidate")
