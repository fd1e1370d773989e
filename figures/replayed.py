"""Tables of replayed score logs (Appendices G, G.1, G.2): a line for each quantity, a column for each domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from cast.experiments.records import REPLAY

from . import paper, tables
from .data import DOMAIN_ORDER, Study
from .panels import domains_of, settings_of


@dataclass(frozen=True)
class Quantity:
    """One line of the table.

    where: values of the REPLAY columns that name it.
    printed: ids of the paper's prose numbers that stand beside it; `says`: words that their quantity holds.
    percent: our fraction is shown in percent.
    """

    label: str
    where: dict
    printed: Sequence[str] = field(default=())
    percent: bool = False
    digits: int = 2
    says: str = ""


def r_of(label: str, method: str, printed: Sequence[str] = (), **where) -> Quantity:
    """Mean R of the rounds that the method's own tree takes, pooled over rounds."""
    where = {"roots": "own", "method": method, "quantity": "r_pooled", **where}
    return Quantity(label, where, printed)


def build(
    study: Study, experiment: str, title: str, quantities: Sequence[Quantity], notes: Sequence[str]
) -> tables.Table:
    rows = study.records(experiment, REPLAY)
    measured = rows[rows["status"] == "measured"] if len(rows) else rows
    domains = domains_of(study, rows)
    printed = paper.prose()
    printed = printed[printed["id"].isin([name for quantity in quantities for name in quantity.printed])]
    theirs = sorted(printed["domain"].dropna().unique(), key=DOMAIN_ORDER.index)
    shown, data = [], []
    for setting in settings_of(study, rows):
        for quantity in quantities:
            cells = []
            for domain in domains:
                found = _found(measured, setting, domain, quantity)
                reason = study.reason(setting, experiment, rows, domain=domain or None)
                cells.append(_shown(found, quantity) if found is not None else tables.missing(reason))
                place = {"source": "ours", "setting": setting, "domain": domain, "quantity": quantity.label}
                kept = ("value", "low", "high", "n", "prompts")
                data.append(
                    place | {name: found[name] for name in kept} | {"note": ""}
                    if found is not None
                    else place | {"note": f"not measured: {reason}"}
                )
            beside = [_printed(printed, quantity, domain) for domain in theirs]
            anywhere = _printed(printed, quantity, None)
            shown.append(tables.Row([setting, quantity.label, *cells, *beside, anywhere]))
    data += [{"source": "paper"} | row for row in printed.to_dict("records")]
    names = [paper.DOMAIN_LABELS.get(domain, domain or "all") for domain in domains]
    return tables.Table(
        title=title,
        header=[
            "Setting",
            "Quantity",
            *names,
            *(f"paper: {paper.DOMAIN_LABELS[domain]}" for domain in theirs),
            "paper",
        ],
        rows=shown,
        data=pd.DataFrame(data),
        notes=[
            "Ours: 95% bootstrap interval over prompts in brackets, then n, what the number was counted over: "
            "rounds where no note says otherwise. The paper's columns are Qwen3-8B's, the last of no single domain.",
            *notes,
        ],
    )


def _found(rows: pd.DataFrame, setting: str, domain: str, quantity: Quantity) -> pd.Series | None:
    if not len(rows):
        return None
    where = {"setting": setting, "domain": domain, **quantity.where}
    for column, value in where.items():
        rows = rows[(rows[column] == value).fillna(False)]
    return rows.iloc[0] if len(rows) else None


def _shown(found: pd.Series, quantity: Quantity) -> str:
    scale, unit = (100.0, "%") if quantity.percent else (1.0, "")
    value, low, high = (None if pd.isna(found[name]) else scale * found[name] for name in ("value", "low", "high"))
    number = f"{value:.{quantity.digits}f}{unit}"
    interval = "" if low is None or high is None else f" [{low:.{quantity.digits}f}, {high:.{quantity.digits}f}]"
    return f"{number}{interval} ({int(found['n']):,})"


def _printed(printed: pd.DataFrame, quantity: Quantity, domain: str | None) -> str:
    rows = printed[printed["id"].isin(list(quantity.printed)) & printed["quantity"].str.contains(quantity.says)]
    rows = rows[rows["domain"].isna()] if domain is None else rows[rows["domain"] == domain]
    unit = "%" if (rows["unit"] == "percent").any() else ""
    return " to ".join(f"{value:g}{unit}" for value in rows["value"]) if len(rows) else tables.NONE
