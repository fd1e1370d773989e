"""Table 3: mean gain of prompts over DFlash with its 95% interval, and gains at temperature one over three seeds.

Greedy: each prompt is timed several times and averaged first; the mean over prompts of each prompt's gain, with a
BCa bootstrap interval over prompts (the percentile interval is in the CSV). Temperature one: the mean over seeds of
the cell's gain and, as in the paper, its range over the seeds (the bootstrap interval is in the CSV).
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import Study
from .panels import REPEATED, SAMPLED, panel

HEADER = [
    "Setting", "N", "T", "Domain", "Prompts", "Repeats or seeds", "Mean gain", "Change over repeats (points)",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    from cast.experiments.statistics import repeat_summary, seed_summary  # scipy: only where records are resampled

    rows, data, rules = [], [], set()
    blocks = (
        (panel(study, REPEATED, repeat_summary), 0, _greedy),
        (panel(study, SAMPLED, seed_summary), 1, _sampled),
    )
    for block, temperature, record_of in blocks:
        for setting, domain in block.places:
            cells = block.deployed(setting, domain)
            place = {"source": "ours", "setting": setting, "temperature": temperature, "domain": domain}
            if not len(cells):
                missing = block.missing(setting, domain)
                rows.append(_row(place, [missing, tables.NONE, tables.NONE, missing, tables.NONE]))
                data.append(place | {"note": missing.text})
            for cell in cells.to_dict("records"):
                record, shown = record_of(cell)
                rows.append(_row(place, shown))
                data.append(place | {"width": cell["budget"], "note": ""} | record)
        rules.add(len(rows) - 1)
    for printed in paper.table("table3").to_dict("records"):
        gain = f"{tables.percent(printed['gain_percent'] / 100)} [{printed['low_percent']}, {printed['high_percent']}]"
        width, temperature = str(printed["predicted_width"]), str(printed["temperature"])
        name, domain = paper.setting_label(printed["setting"]), paper.DOMAIN_LABELS[printed["domain"]]
        rows.append(tables.Row([name, width, temperature, domain, tables.NONE, "3", gain, tables.NONE], paper=True))
        data.append({"source": "paper"} | printed)
    return tables.Table(
        title="Mean gain over DFlash of the predicted width: prompts timed several times, and three seeds.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours, T = 0: mean over prompts of each prompt's gain, its repeats averaged first; brackets are 95% BCa "
            "bootstrap intervals over prompts (10,000 resamples). Change over repeats: between the smallest and the "
            "largest gain of the cell within one repeat.",
            "Ours, T = 1: mean over seeds of the cell's gain; brackets are its range over the seeds, as in the paper. "
            "The interval over prompts is in the CSV.",
            "The paper's rows are other settings and models.",
        ],
    )


def _row(place: dict, shown: list) -> tables.Row:
    width, *rest = shown
    domain = paper.DOMAIN_LABELS.get(place["domain"], place["domain"])
    return tables.Row([place["setting"], width, str(place["temperature"]), domain, *rest])


def _greedy(cell: dict) -> tuple[dict, list]:
    record = {
        "gain_percent": 100 * cell["prompt_gain"],
        "low_percent": 100 * cell["prompt_gain_low"],
        "high_percent": 100 * cell["prompt_gain_high"],
        "percentile_low_percent": 100 * cell["prompt_gain_percentile_low"],
        "percentile_high_percent": 100 * cell["prompt_gain_percentile_high"],
        "cell_gain_percent": 100 * cell["gain"],
        "cell_gain_low_percent": 100 * cell["gain_low"],
        "cell_gain_high_percent": 100 * cell["gain_high"],
        "repeat_gain_low_percent": 100 * cell["repeat_gain_low"],
        "repeat_gain_high_percent": 100 * cell["repeat_gain_high"],
    } | {name: cell[name] for name in ("prompts", "repeats", "repeat_change_points")}
    gain = tables.gain({name.removeprefix("prompt_"): cell[name] for name in _PROMPT_GAIN})
    change = tables.number(cell["repeat_change_points"], 1) if cell["repeats"] > 1 else tables.NONE
    return record, [str(cell["budget"]), str(cell["prompts"]), str(cell["repeats"]), gain, change]


_PROMPT_GAIN = ("prompt_gain", "prompt_gain_low", "prompt_gain_high")


def _sampled(cell: dict) -> tuple[dict, list]:
    record = {
        "gain_percent": 100 * cell["gain"],
        "low_percent": 100 * cell["seed_gain_low"],
        "high_percent": 100 * cell["seed_gain_high"],
        "cell_gain_percent": 100 * cell["gain"],
        "cell_gain_low_percent": 100 * cell["gain_low"],
        "cell_gain_high_percent": 100 * cell["gain_high"],
    } | {name: cell[name] for name in ("prompts", "seeds")}
    return record, [str(cell["budget"]), str(cell["prompts"]), str(cell["seeds"]), seed_range(cell), tables.NONE]


def seed_range(cell: dict) -> str:
    """``+16.7% [16.0, 18.0]``: the mean gain over seeds and its range."""
    return tables.gain({"gain": cell["gain"], "gain_low": cell["seed_gain_low"], "gain_high": cell["seed_gain_high"]})
