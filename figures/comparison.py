"""Tables that compare methods domain by domain: time or speedup over plain decoding, and R (Tables 1, 4, 13, 16, 17).

Speedups and times are ratios and means of the prompts' ms per token, R the mean over prompts of the prompt's mean R.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from . import paper, tables
from .data import DOMAIN_ORDER, PLAIN, SWEEP, TREE, Study
from .methods import METHODS, method_label
from .panels import SAMPLED, Panel, panel

COMPARISON, COMPARISON_SAMPLED = "drafter_comparison", "drafter_comparison_sampled"
_TABLES = ("table1", "table4", "table13", "table16", "table17")
GREEDY = (COMPARISON, SWEEP)
DRAWN = (COMPARISON_SAMPLED, SAMPLED)
KEPT = ["prompts", "speedup", "speedup_low", "speedup_high", "ms_per_token", "r_prompt_mean", "r_pooled"]
KEPT += ["gain", "gain_low", "gain_high"]
DEPLOYED = "CAST is shown at the predicted width; where that was not measured, at every width that was."
SWEEP_FIRST = (
    "A cell measured in the width sweep and in the drafter comparison is shown from the sweep, so that all widths of a "
    "domain are over the same prompts; the other methods may have been timed on more or fewer of them."
)
STATISTICS = (
    "Ours: ms/token is the mean over prompts. A speedup is the ratio of two such means, plain decoding's over the "
    "method's, on the prompts that both have; the plain decoding is that of the same experiment, which the CSV names. "
    "In brackets: R, the mean over prompts of each prompt's mean R. In the CSV: pooled R, and the gain over DFlash, "
    "again a ratio of means; it and the speedup with 95% paired bootstrap intervals over prompts."
)
UNEQUAL = "Heads of unequal training are compared, each as it was published or trained here."


@dataclass(frozen=True)
class Comparison:
    """What a table shows.

    name: of the paper's table, whose settings it is about; other studies show all of theirs.
    experiments: temperature -> the experiments whose cells it takes; the first that measured a cell serves it.
    methods: shown ones; None for all.
    widths: "deployed" shows the tree at the predicted width, "all" at every width.
    value: "speedup" over plain decoding or "ms_per_token".
    """

    name: str
    title: str
    experiments: Mapping[int, Sequence[str]]
    methods: Sequence[str] | None = None
    widths: str = "deployed"
    value: str = "speedup"
    notes: Sequence[str] = ()


def build(study: Study, what: Comparison) -> tables.Table:
    """The table: a line for each setting, temperature, method, head and width, a column for each domain."""
    printed = _paper_cells(what)
    cells = _cells(study, what, study.domains or _ordered(printed["domain"]))
    domains = list(dict.fromkeys([*_ordered(cells["domain"]), *_ordered(printed["domain"])]))
    ours = [_row(study, line, what, domains) for _, line in _lines(cells)]
    theirs = [_row(None, line, what, domains) for _, line in _lines(printed)]
    frames = [cells.assign(source="ours"), printed.assign(source="paper")]
    data = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    return tables.Table(
        title=what.title,
        header=["Setting", "T", "Method", *(paper.DOMAIN_LABELS.get(name, name) for name in domains), "Average"],
        rows=[*ours, *theirs],
        data=data,
        rules_after={len(ours) - 1} if ours else set(),
        notes=[
            *what.notes,
            *_absent(study, what),
            STATISTICS,
            "The average is over domains, shown where all of them were measured. Numbers after a method are nonroot "
            "nodes; the paper counts the root of the baselines.",
            UNEQUAL,
        ],
    )


def _cells(study: Study, what: Comparison, domains: Sequence[str]) -> pd.DataFrame:
    """The measured cells of the settings the table is about; where there is none, a noted row for each domain."""
    found = []
    for temperature, experiments in what.experiments.items():
        known: set[tuple] = set()
        for experiment in experiments:
            block = panel(study, experiment, "cell_summary")
            for cell in _chosen(study, block, what):
                key = tuple(cell[column] for column in ("setting", "domain", "method", "budget", "drafter"))
                if key not in known and cell["prompts"]:
                    known.add(key)
                    found.append({"temperature": temperature, "experiment": experiment, "note": ""} | cell)
        if not known:
            found += [
                {"temperature": temperature, "setting": setting, "domain": domain, "method": "", "budget": 0}
                | {
                    "drafter": "",
                    "note": f"not measured: {study.reason(setting, experiments[0], _rows(study, experiments[0]))}",
                }
                for setting in _about(study.settings, what)
                for domain in domains
            ]
    columns = ["temperature", "experiment", "setting", "domain", "method", "budget", "drafter", *KEPT, "note"]
    return pd.DataFrame(found).reindex(columns=columns)


def _absent(study: Study, what: Comparison) -> list[str]:
    """The experiments of the table that left no record, in which its other methods would have been."""
    names = dict.fromkeys(name for experiments in what.experiments.values() for name in experiments)
    return [f"Not measured: no {name} record in this study." for name in names if not len(_rows(study, name))]


def _rows(study: Study, experiment: str) -> pd.DataFrame:
    from cast.experiments.records import DECODE

    return study.records(experiment, DECODE)


def _about(settings: Sequence[str], what: Comparison) -> list[str]:
    """The settings that the paper's table is about; all of them where the study has none of the paper's."""
    own = set(paper.table(what.name)["setting"])
    known = [setting for setting in settings if setting in own]
    named = any(setting in set(paper.table(name)["setting"]) for setting in settings for name in _TABLES)
    return known if named else list(settings)


def _chosen(study: Study, block: Panel, what: Comparison) -> list[dict]:
    if not len(block.cells):
        return []
    settings = _about(list(dict.fromkeys(setting for setting, _ in block.places)), what)
    rows = block.cells[block.cells["setting"].isin(settings)]
    if what.methods is not None:
        rows = rows[rows["method"].isin(what.methods)]
    if what.widths == "deployed":
        deployed = {place: set(block.deployed(*place)["budget"]) for place in block.places}
        keep = [row.method != TREE or row.budget in deployed[row.setting, row.domain] for row in rows.itertuples()]
        rows = rows[keep]
    return rows[["setting", "domain", "method", "budget", "drafter", *KEPT]].to_dict("records")


def _paper_cells(what: Comparison) -> pd.DataFrame:
    """The paper's numbers of the table in our columns, its printed averages under the domain "average"."""
    frame = paper.table(what.name)
    if "quantity" in frame:
        frame = frame.pivot(index=["setting", "method", "width", "domain"], columns="quantity", values="value")
        frame = frame.reset_index()
    frame = frame.rename(columns={"width": "budget", "r": "r_prompt_mean", "head": "drafter"})
    frame["temperature"] = frame.get("temperature", 0)
    frame["drafter"] = frame["drafter"].fillna("") if "drafter" in frame else ""
    columns = [
        "temperature",
        "setting",
        "domain",
        "method",
        "budget",
        "drafter",
        "speedup",
        "ms_per_token",
        "r_prompt_mean",
    ]
    return frame.reindex(columns=columns).assign(note="")


def _ordered(domains: pd.Series) -> list[str]:
    named = [name for name in dict.fromkeys(domains) if name != "average"]
    return sorted(named, key=lambda name: DOMAIN_ORDER.index(name) if name in DOMAIN_ORDER else len(DOMAIN_ORDER))


def _lines(cells: pd.DataFrame):
    """Groups of one line each: plain decoding first, then by method and width, CAST last."""
    order = {method: place for place, method in enumerate(METHODS)}
    keys = ["temperature", "setting", "method", "drafter", "budget"]
    groups = list(cells.groupby(keys, sort=False, dropna=False)) if len(cells) else []
    settings = {name: place for place, name in enumerate(dict.fromkeys(cells["setting"]))}
    return sorted(groups, key=lambda g: (g[0][0], settings[g[0][1]], order.get(g[0][2], 99), g[0][3], g[0][4]))


def _row(study: Study | None, line: pd.DataFrame, what: Comparison, domains: Sequence[str]) -> tables.Row:
    first = line.iloc[0]
    by_domain = {row["domain"]: row for row in line.to_dict("records")}
    shown = [_shown(by_domain.get(domain), first["method"], what) for domain in domains]
    if study is None:
        setting, average = paper.setting_label(first["setting"]), by_domain.get("average")
    else:
        setting, average = first["setting"], _average(study, line)
    label = method_label(first["method"]) or tables.NONE
    head = f", {first['drafter']}" if first["method"] in ("eagle3", "dart") and first["drafter"] else ""
    width = f" ({int(first['budget'])}{head})" if first["method"] not in (PLAIN, "") else ""
    cells = [setting, str(int(first["temperature"])), f"{label}{width}", *shown]
    return tables.Row([*cells, _shown(average, first["method"], what)], paper=study is None)


def _average(study: Study, line: pd.DataFrame) -> dict | None:
    """Means over domains, where every domain of the study has the cell."""
    measured = line[line["note"] == ""]
    if not len(measured) or not set(study.domains) <= set(measured["domain"]):
        return None
    means = measured[["speedup", "ms_per_token", "r_prompt_mean"]].astype(float).mean()
    return {"note": "", **means.to_dict()}


def _shown(cell: Mapping | None, method: str, what: Comparison) -> tables.Cell | str:
    if cell is None:
        return tables.NONE
    if cell["note"]:
        return tables.missing(cell["note"].removeprefix("not measured: "))
    plain = method == PLAIN or what.value == "ms_per_token"
    value = cell["ms_per_token"] if plain and pd.notna(cell["ms_per_token"]) else cell["speedup"]
    if pd.isna(value):
        return tables.NONE
    unit = " ms" if plain and pd.notna(cell["ms_per_token"]) else "×"
    r = cell["r_prompt_mean"]
    return f"{value:.2f}{unit}" + (f" ({r:.2f})" if pd.notna(r) and method != PLAIN else "")
