"""Table 7: ms/token of AR, DFlash and CAST at the predicted width, gain over DFlash, and round length R.

ms/token = mean over prompts; gain = ratio of those cells minus one with a 95% paired bootstrap interval over
prompts; R in the table is r_prompt_mean (mean over prompts of the prompt's mean R), r_pooled is in the CSV.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import CHAIN, PLAIN, TREE, Study, Summary

HEADER = [
    "Setting, N*",
    "Domain (prompts)",
    "AR ms/token",
    "DFlash ms/token",
    "CAST ms/token",
    "Gain at N*",
    "Gain, repeat share < 0.1 (prompts)",
    "R at N*",
]
STATISTICS = ["prompts", "ms_per_token", "ms_per_token_pooled", "r_prompt_mean", "r_pooled", "repeat_share"]
# The same numbers over the prompts whose AR output does not loop.
LOW_REPEAT = ["prompts_low_repeat", "r_prompt_mean_low_repeat", "r_pooled_low_repeat"]
PAPER_PROMPTS = 40


def build(study: Study) -> tables.Table:
    rows, data, rules = [], [], set()
    for setting in study.settings:
        predicted, chain = study.predicted(setting), study.chain_budget(setting)
        for domain in study.domains or [""]:
            wanted = {PLAIN: 0, CHAIN: chain, TREE: predicted}
            cells = {
                method: None if budget is None else study.cell(setting, domain, method, budget)
                for method, budget in wanted.items()
            }
            why = {
                method: study.reason(setting, domain=domain or None, method=method, budget=budget)
                for method, budget in wanted.items()
            }
            tried = study.tried_widths(setting, domain)
            if predicted is None or (tried and predicted not in tried):
                why[TREE] = study.missing_width(setting)
            run = study.median_runs.get((setting, domain, TREE, predicted))
            rows.append(tables.Row(_shown(setting, predicted, domain, cells, why, run)))
            data.append(_record(setting, predicted, domain, cells, why) | tables.median_run_columns(run))
        rules.add(len(rows) - 1)
    for printed in paper.table("table7").itertuples():
        label = f"{paper.setting_label(printed.setting)}, {printed.predicted_width}"
        times = [printed.ar_ms_per_token, printed.dflash_ms_per_token, printed.cast_ms_per_token]
        shown = [tables.number(value, digits) for value, digits in zip(times, (1, 2, 2), strict=True)]
        gain = tables.percent(printed.gain_percent / 100)
        domain = f"{paper.DOMAIN_LABELS[printed.domain]} ({PAPER_PROMPTS})"
        cells = [label, domain, *shown, gain, tables.NONE, tables.number(printed.cast_r)]
        rows.append(tables.Row(cells, paper=True))
        data.append(
            {
                "source": "paper", "setting": printed.setting, "domain": printed.domain,
                "predicted_width": printed.predicted_width, "gain_percent": printed.gain_percent,
                "paper_cast_r": printed.cast_r,
            }
            | dict(zip([f"{method}_ms_per_token" for method in (PLAIN, CHAIN, TREE)], times, strict=True))
        )  # fmt: skip
        if printed.domain == "humaneval":
            rules.add(len(rows) - 1)
    return tables.Table(
        title="Decode-only ms/token, gain over DFlash at the predicted width N*, round length R.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours: ms/token is the mean over prompts; brackets are 95% paired bootstrap intervals over "
            "prompts (10,000 resamples). R is r_prompt_mean, the mean over prompts of each prompt's mean "
            "R; r_pooled (tokens over rounds) is in the CSV.",
            "Repeat share < 0.1: only prompts whose AR output repeats less than a tenth of its 8-grams; "
            "small models loop, and loops are easy to draft.",
            "The paper does not say how it averages R; these rows of its Table 7 agree with the pooled statistic.",
            tables.MEDIAN_RUN,
            "The paper's rows are other settings and other models.",
        ],
    )


def _shown(
    setting: str, predicted: int | None, domain: str, cells: dict, why: dict, run: Summary | None
) -> list[tables.Cell | str]:
    label = f"{setting}, {tables.NONE if predicted is None else predicted}"
    times = [
        tables.missing(why[method]) if cell is None else tables.number(cell["ms_per_token"])
        for method, cell in cells.items()
    ]
    tree = cells[TREE]
    if tree is None:
        rest = [tables.missing(why[TREE])] * 3
    else:
        no_chain = tables.missing(why[CHAIN])
        gain = no_chain if pd.isna(tree["gain"]) else tables.with_median_run(tables.gain(tree), run)
        rest = [gain, _without_loops(tree), tables.number(tree["r_prompt_mean"])]
    name = paper.DOMAIN_LABELS.get(domain, domain)
    prompts = next((int(cell["prompts"]) for cell in reversed(cells.values()) if cell is not None), 0)
    return [label, f"{name} ({prompts})" if prompts else name, *times, *rest]


def _without_loops(tree: Summary) -> tables.Cell | str:
    prompts = int(tree["prompts_low_repeat"])
    if not prompts or pd.isna(tree["gain_low_repeat"]):
        return tables.missing("every AR output repeats itself")
    return f"{tables.gain(tree, '_low_repeat')} ({prompts})"


def _record(setting: str, predicted: int | None, domain: str, cells: dict, why: dict) -> dict:
    record = {"source": "ours", "setting": setting, "domain": domain, "predicted_width": predicted}
    for method, cell in cells.items():
        record |= {f"{method}_{name}": None if cell is None else cell[name] for name in STATISTICS}
    tree = cells[TREE]
    for suffix in ("", "_low_repeat"):
        for bound in ("gain", "gain_low", "gain_high"):
            name = f"{bound}{suffix}"
            record[f"{name}_percent"] = None if tree is None else 100 * tree[name]
    record |= {f"{TREE}_{name}": None if tree is None else tree[name] for name in LOW_REPEAT}
    for end in ("", "_low", "_high"):
        record[f"speedup{end}_over_ar"] = None if tree is None else tree[f"speedup{end}"]
    notes = [f"{method} not measured: {why[method]}" for method, cell in cells.items() if cell is None]
    return record | {"note": "; ".join(notes)}
