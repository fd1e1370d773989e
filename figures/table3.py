"""Table 3: mean gain of prompts over DFlash with its 95% interval, and gains at temperature one over three seeds.

Greedy: each prompt is timed several times and averaged first; the mean over prompts of each prompt's gain, with a
BCa bootstrap interval over prompts (the percentile interval is in the CSV), and the cell in its repeat of the median
gain. Temperature one: the mean over seeds of the cell's gain and, as in the paper, its range over the seeds (the
bootstrap interval is in the CSV).
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .comparison import COMPARISON, COMPARISON_SAMPLED
from .data import SWEEP, Study
from .panels import REPEATED, SAMPLED, instead, recorded_panel

HEADER = [
    "Setting", "N", "T", "Domain", "Prompts", "Repeats or seeds", "Mean gain", "Change over repeats (points)",
    "Median repeat",
]  # fmt: skip
# Name in the CSV -> the statistic's column, a fraction.
_CELL = {"cell_gain": "gain", "cell_gain_low": "gain_low", "cell_gain_high": "gain_high"}
_GREEDY = _CELL | {
    "gain": "prompt_gain", "low": "prompt_gain_low", "high": "prompt_gain_high",
    "percentile_low": "prompt_gain_percentile_low", "percentile_high": "prompt_gain_percentile_high",
    "repeat_gain_low": "repeat_gain_low", "repeat_gain_high": "repeat_gain_high",
}  # fmt: skip
_SAMPLED = _CELL | {"gain": "gain", "low": "seed_gain_low", "high": "seed_gain_high"}
# Experiments (the first that left a record), their statistic, temperature, columns, what is counted.
_BLOCKS = (
    ((REPEATED, SWEEP, COMPARISON), "repeat_summary", 0, _GREEDY, "repeats"),
    ((SAMPLED, COMPARISON_SAMPLED), "seed_summary", 1, _SAMPLED, "seeds"),
)


def build(study: Study) -> tables.Table:
    rows, data, rules, notes = [], [], set(), []
    for experiments, statistic, temperature, columns, times in _BLOCKS:
        block = recorded_panel(study, experiments, statistic)
        notes += [f"T = {temperature}: {note}" for note in instead(block, experiments[0])]
        for setting, domain in block.places:
            place = {
                "source": "ours",
                "experiment": block.experiment,
                "setting": setting,
                "temperature": temperature,
                "domain": domain,
            }
            label = {"Setting": setting, "T": str(temperature), "Domain": paper.DOMAIN_LABELS.get(domain, domain)}
            cells = block.deployed(setting, domain)
            if not len(cells):
                missing = block.missing(setting, domain)
                rows.append(_row(label | {"N": missing, "Mean gain": missing}))
                data.append(place | {"note": missing.text})
            for cell in cells.to_dict("records"):
                counted = {"Prompts": str(cell["prompts"]), "Repeats or seeds": str(cell[times])}
                gain = dict(zip(("gain", "gain_low", "gain_high"), (cell[columns[n]] for n in _SHOWN), strict=True))
                shown = counted | {"N": str(cell["budget"]), "Mean gain": tables.gain(gain)}
                record = {f"{name}_percent": 100 * cell[column] for name, column in columns.items()}
                record |= {"width": cell["budget"], "prompts": cell["prompts"], times: cell[times], "note": ""}
                if times == "repeats":
                    record |= {"repeat_change_points": cell["repeat_change_points"]} | tables.median_run_columns(cell)
                    shown |= _over_repeats(cell)
                rows.append(_row(label | shown))
                data.append(place | record)
        rules.add(len(rows) - 1)
    for printed in paper.table("table3").to_dict("records"):
        label = {"Setting": paper.setting_label(printed["setting"]), "T": str(printed["temperature"])}
        label |= {"Domain": paper.DOMAIN_LABELS[printed["domain"]], "N": str(printed["predicted_width"])}
        gain = f"{tables.percent(printed['gain_percent'] / 100)} [{printed['low_percent']}, {printed['high_percent']}]"
        rows.append(_row(label | {"Repeats or seeds": "3", "Mean gain": gain}, paper_row=True))
        data.append({"source": "paper"} | printed)
    return tables.Table(
        title="Mean gain over DFlash of the predicted width: prompts timed several times, and three seeds.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            *notes,
            "Ours, T = 0: mean over prompts of each prompt's gain, its repeats averaged first; brackets are 95% BCa "
            "bootstrap intervals over prompts (10,000 resamples). Change over repeats: between the smallest and the "
            "largest gain of the cell within one repeat. Median repeat: the cell's gain in the repeat of the median "
            "gain, with its interval over prompts; its ms/token and R are in the CSV.",
            "Ours, T = 1: mean over seeds of the cell's gain; brackets are its range over the seeds, as in the paper. "
            "The interval over prompts is in the CSV.",
            "The paper's rows are other settings and models.",
        ],
    )


_SHOWN = ("gain", "low", "high")


def _row(shown: dict[str, tables.Cell | str], paper_row: bool = False) -> tables.Row:
    return tables.Row([shown.get(title, tables.NONE) for title in HEADER], paper=paper_row)


def _over_repeats(cell: dict) -> dict[str, str]:
    """What a cell of several repeats shows of them."""
    if cell["repeats"] < 2:
        return {}
    change = tables.number(cell["repeat_change_points"], 1)
    return {"Change over repeats (points)": change, "Median repeat": tables.gain(cell, prefix="median_run_")}
