"""Table 9: tree-shape ablation at the chain's packed count (16 for block 16): as many tokens, another shape.

R = mean over prompts of the prompt's mean R (pooled R in the CSV), ms/token = mean over prompts, gain = ratio
of those cells minus one with a 95% paired bootstrap interval over prompts.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import CHAIN, TREE, Study

HEADER = ["Setting", "Domain", "DFlash R", "Tree R", "DFlash ms/token", "Tree ms/token", "Shape gain"]
STATISTICS = ["r_prompt_mean", "r_pooled", "ms_per_token"]


def build(study: Study) -> tables.Table:
    rows, data, rules = [], [], set()
    for setting in study.settings:
        budget = study.chain_budget(setting)
        for domain in study.domains or [""]:
            row, record = _ours(study, setting, domain, budget)
            rows.append(row)
            data.append(record)
        rules.add(len(rows) - 1)
    for printed in paper.table("table9").itertuples():
        numbers = [printed.dflash_r, printed.tree_r, printed.dflash_ms_per_token, printed.tree_ms_per_token]
        cells = [
            paper.setting_label(printed.setting),
            paper.DOMAIN_LABELS[printed.domain],
            *(tables.number(value) for value in numbers),
            tables.percent(printed.gain_percent / 100),
        ]
        rows.append(tables.Row(cells, paper=True))
        data.append(
            {"source": "paper", "setting": printed.setting, "domain": printed.domain, "width": 15}
            | dict(
                zip(
                    ["paper_dflash_r", "paper_tree_r", "dflash_ms_per_token", "cast_ms_per_token"],
                    numbers,
                    strict=True,
                )
            )
            | {"gain_percent": printed.gain_percent}
        )
        if printed.domain == "humaneval":
            rules.add(len(rows) - 1)
    return tables.Table(
        title="Tree shape at the chain's packed count (16 for block 16): chain against as large a tree.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours: R is r_prompt_mean, the mean over prompts of each prompt's mean R (r_pooled is in the "
            "CSV); ms/token is the mean over prompts; brackets are 95% paired bootstrap intervals over "
            "prompts (10,000 resamples).",
            tables.MEDIAN_RUN,
            "The paper's rows are other settings and models; its R here agrees with the pooled statistic.",
        ],
    )


def _ours(study: Study, setting: str, domain: str, budget: int | None) -> tuple[tables.Row, dict]:
    cells = {
        method: None if budget is None else study.cell(setting, domain, method, budget) for method in (CHAIN, TREE)
    }
    why = {method: study.reason(setting, domain=domain or None, method=method, budget=budget) for method in cells}
    gaps = {method: tables.missing(reason) for method, reason in why.items()}
    shown = [
        gaps[method] if cell is None else tables.number(cell[statistic])
        for statistic in ("r_prompt_mean", "ms_per_token")
        for method, cell in cells.items()
    ]
    tree = cells[TREE]
    no_gain = tree is None or pd.isna(tree["gain"])
    run = study.median_runs.get((setting, domain, TREE, budget))
    gain = gaps[TREE if tree is None else CHAIN] if no_gain else tables.with_median_run(tables.gain(tree), run)
    record = {"source": "ours", "setting": setting, "domain": domain, "width": budget}
    for method, cell in cells.items():
        record |= {f"{method}_{name}": None if cell is None else cell[name] for name in STATISTICS}
    for bound in ("gain", "gain_low", "gain_high"):
        record[f"{bound}_percent"] = None if tree is None else 100 * tree[bound]
    record["prompts"] = None if tree is None else tree["prompts"]
    notes = [f"{method} not measured: {why[method]}" for method, cell in cells.items() if cell is None]
    row = tables.Row([setting, paper.DOMAIN_LABELS.get(domain, domain), *shown, gain])
    return row, record | tables.median_run_columns(run) | {"note": "; ".join(notes)}
