"""Table 10: sampled decoding at temperature one: R, ms/token, mean gain over the seeds and its range.

R = mean over prompts of the prompt's mean R over all seeds (pooled R in the CSV), ms/token = mean over prompts, gain
= mean over seeds of the ratio of those cells minus one, with its range over seeds and a 95% interval over prompts.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import Study
from .panels import SAMPLED, panel

HEADER = [
    "Setting", "N", "Domain", "DFlash R", "CAST R", "DFlash ms/token", "CAST ms/token", "Mean gain", "Seed range",
    "Largest seed deviation",
]  # fmt: skip
SHOWN = ["dflash_r_prompt_mean", "r_prompt_mean", "dflash_ms_per_token", "ms_per_token"]


def build(study: Study) -> tables.Table:
    rows, data = [], []
    block = panel(study, SAMPLED, "seed_summary")
    for setting, domain in block.places:
        place = {"source": "ours", "setting": setting, "domain": domain}
        label = paper.DOMAIN_LABELS.get(domain, domain)
        cells = block.deployed(setting, domain)
        if not len(cells):
            missing = block.missing(setting, domain)
            rows.append(tables.Row([setting, tables.NONE, label, *[missing] * 6, tables.NONE]))
            data.append(place | {"note": missing.text})
        for cell in cells.to_dict("records"):
            seeds = f"{100 * cell['seed_gain_low']:+.1f} to {100 * cell['seed_gain_high']:+.1f}%"
            numbers = [tables.number(cell[name]) for name in SHOWN]
            deviation = tables.percent(cell["seed_ms_deviation"])
            rows.append(
                tables.Row([setting, str(cell["budget"]), label, *numbers, tables.gain(cell), seeds, deviation])
            )
            kept = [*SHOWN, "dflash_r_pooled", "r_pooled", "prompts", "seeds"]
            gains = ("gain", "gain_low", "gain_high", "seed_gain_low", "seed_gain_high", "seed_ms_deviation")
            data.append(
                place
                | {"width": cell["budget"], "note": ""}
                | {name: cell[name] for name in kept}
                | {f"{name}_percent": 100 * cell[name] for name in gains}
            )
    for printed in paper.table("table10").to_dict("records"):
        numbers = [printed[f"{name}"] for name in ("dflash_r", "cast_r", "dflash_ms_per_token", "cast_ms_per_token")]
        rows.append(
            tables.Row(
                [
                    paper.setting_label(printed["setting"]),
                    str(printed["width"]),
                    paper.DOMAIN_LABELS[printed["domain"]],
                    *(tables.number(value) for value in numbers),
                    tables.percent(printed["gain_percent"] / 100),
                    f"{printed['low_percent']:+.1f} to {printed['high_percent']:+.1f}%",
                    tables.NONE,
                ],
                paper=True,
            )
        )
        renamed = {"low_percent": "seed_gain_low_percent", "high_percent": "seed_gain_high_percent"}
        renamed |= {"dflash_r": "paper_dflash_r", "cast_r": "paper_cast_r", "cast_ms_per_token": "ms_per_token"}
        data.append({"source": "paper"} | {renamed.get(name, name): value for name, value in printed.items()})
    return tables.Table(
        title="Sampled decoding at temperature 1: the predicted width against the chain, over the seeds.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        notes=[
            "Ours: R is the mean over prompts of each prompt's mean R over all seeds (r_pooled is in the CSV); "
            "brackets are 95% bootstrap intervals over prompts (10,000 resamples), all seeds of a prompt together. "
            "Largest seed deviation: of a seed's mean tree time from the mean over seeds.",
            "The paper's rows are another setting and model.",
        ],
    )
