"""Table 8: gain over DFlash by tree width; bold marks each row's oracle, underline the predicted width.

Gain = ratio of cell ms/token (mean over prompts) minus one; 95% paired bootstrap intervals over prompts are
in the CSV.
"""

from __future__ import annotations

import pandas as pd

from cast.width.oracle import sweep_oracle

from . import paper, tables
from .data import TREE, Study


def build(study: Study) -> tables.Table:
    printed = paper.table("table8")
    predictions = paper.table("table2").set_index("setting")["predicted_width"]
    widths = sorted({*study.tree_widths(), *printed["width"]})
    rows, data, rules = [], [], set()
    for setting in study.settings:
        for domain in study.domains or [""]:
            found = {width: study.cell(setting, domain, TREE, width) for width in study.tree_widths(setting)}
            found = {width: cell for width, cell in found.items() if cell is not None and pd.notna(cell["gain"])}
            why = {
                width: study.reason(setting, domain=domain or None, method=TREE, budget=width)
                for width in widths
                if width not in found
            }
            gains = {width: float(cell["gain"]) for width, cell in found.items()}
            shown = _cells(gains, widths, study.predicted(setting), why)
            rows.append(tables.Row([setting, paper.DOMAIN_LABELS.get(domain, domain), *shown]))
            data += [_record(study, setting, domain, width, found.get(width), why.get(width, "")) for width in widths]
        rules.add(len(rows) - 1)
    for (setting, domain), cells in printed.groupby(["setting", "domain"], sort=False):
        gains = dict(zip(cells["width"], cells["gain_percent"] / 100, strict=True))
        marks = {width for width, second in zip(cells["width"], cells["second_host"], strict=True) if second}
        shown = _cells(gains, widths, predictions[setting], {}, marks)
        rows.append(tables.Row([paper.setting_label(setting), paper.DOMAIN_LABELS[domain], *shown], paper=True))
        data += [
            {
                "source": "paper",
                "setting": setting,
                "domain": domain,
                "width": width,
                "gain_percent": 100 * gain,
            }
            for width, gain in gains.items()
        ]
        if domain == "humaneval":
            rules.add(len(rows) - 1)
    return tables.Table(
        title="Gain over DFlash by tree width N (nodes). Bold: row's oracle. Underline: predicted width.",
        header=["Setting", "Domain", *(f"N={width}" for width in widths)],
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours: gain is the ratio of cell ms/token (mean over prompts) minus one; every cell's 95% "
            "paired bootstrap interval over prompts is in the CSV.",
            tables.MEDIAN_RUN,
            "The paper's rows are other settings and other models; a dash: not in its sweep. ‡ marks its "
            "second A6000 host, whose cells it leaves out of the oracle.",
        ],
    )


def _cells(gains: dict, widths: list[int], predicted: int | None, why: dict, marks: set | None = None) -> list:
    """One cell for each width; a second-host cell (``marks``) cannot be its row's oracle, as in the paper."""
    marks = marks or set()
    candidates = {width: gain for width, gain in gains.items() if width not in marks}
    oracle = sweep_oracle(candidates) if candidates else None
    shown: list[tables.Cell | str] = []
    for width in widths:
        if width in gains:
            text = tables.percent(gains[width]) + ("‡" if width in marks else "")
            shown.append(tables.Cell(text, bold=width == oracle, underline=width == predicted))
        else:
            shown.append(tables.missing(why[width]) if width in why else tables.NONE)
    return shown


def _record(study: Study, setting: str, domain: str, width: int, cell, why: str) -> dict:
    record = {"source": "ours", "setting": setting, "domain": domain, "width": width}
    if cell is None:
        return record | {"note": f"not measured: {why}"}
    return (
        record
        | {
            "gain_percent": 100 * cell["gain"],
            "low_percent": 100 * cell["gain_low"],
            "high_percent": 100 * cell["gain_high"],
            "prompts": cell["prompts"],
            "predicted": width == study.predicted(setting),
        }
        | tables.median_run_columns(study.median_runs.get((setting, domain, TREE, width)))
    )
