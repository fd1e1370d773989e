"""Table 12: ms/token of AR, the chain and every tree width, and R of the chain and of the widest tree.

ms/token = mean over prompts; R = mean over prompts of the prompt's mean R; pooled values of both in the CSV, as are
gains over the chain with 95% paired bootstrap intervals over prompts.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import CHAIN, PLAIN, TREE, Study

STATISTICS = ["prompts", "ms_per_token", "ms_per_token_pooled", "r_prompt_mean", "r_pooled"]
STATISTICS += ["speedup", "speedup_low", "speedup_high"]


def build(study: Study) -> tables.Table:
    printed = paper.table("table12")
    widths = sorted({*study.tree_widths(), *printed.loc[printed["method"] == TREE, "width"]})
    rows, data, rules = [], [], set()
    for setting in study.settings:
        for domain in study.domains or [""]:
            row, records = _ours(study, setting, domain, widths)
            rows.append(row)
            data += records
        rules.add(len(rows) - 1)
    for (setting, domain), cells in printed.groupby(["setting", "domain"], sort=False):
        times = {(cell.method, cell.width): cell.ms_per_token for cell in cells.itertuples()}
        lengths = {(cell.method, cell.width): cell.r for cell in cells.itertuples()}
        keys = [(PLAIN, 0), (CHAIN, 15), *((TREE, width) for width in widths)]
        shown = [tables.number(times.get(key)) for key in keys]
        ends = [tables.number(lengths[CHAIN, 15]), f"{lengths[TREE, 127]:.2f} (127)"]
        label = [
            paper.setting_label(setting),
            paper.DOMAIN_LABELS[domain],
            str(cells["max_new_tokens"].iloc[0]),
        ]
        rows.append(tables.Row([*label, *shown, *ends], paper=True))
        data += [
            {
                "source": "paper",
                "setting": setting,
                "domain": domain,
                "method": cell.method,
                "width": cell.width,
            }
            | {"max_new_tokens": cell.max_new_tokens, "ms_per_token": cell.ms_per_token, "paper_r": cell.r}
            for cell in cells.itertuples()
        ]
        if domain == "mbpp":
            rules.add(len(rows) - 1)
    return tables.Table(
        title="Greedy width sweep: decode-only ms/token, round length R of the chain and the widest tree.",
        header=[
            "Setting",
            "Domain",
            "max new",
            "AR",
            "chain",
            *(f"N={width}" for width in widths),
            "R chain",
            "R widest (N)",
        ],
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours: ms/token is the mean over prompts; R is r_prompt_mean, the mean over prompts of each "
            "prompt's mean R. In the CSV: pooled values of both; the speedup, AR's ms/token over the cell's; and the "
            "gain, the chain's ms/token over the cell's minus one, with 95% paired bootstrap intervals over "
            "prompts. Both are ratios of means on the prompts that both methods have.",
            "The paper's rows are other settings and other models; its R here agrees with the mean over "
            "prompts. A dash: not in its sweep.",
        ],
    )


def _ours(study: Study, setting: str, domain: str, widths: list[int]) -> tuple[tables.Row, list[dict]]:
    chain_budget = study.chain_budget(setting)
    keys = [(PLAIN, 0), (CHAIN, chain_budget), *((TREE, width) for width in widths)]
    new_tokens = _max_new_tokens(study, setting, domain)
    shown, records, cells = [], [], {}
    for method, budget in keys:
        cell = cells[method, budget] = None if budget is None else study.cell(setting, domain, method, budget)
        record = {"source": "ours", "setting": setting, "domain": domain, "method": method, "width": budget}
        record["max_new_tokens"] = new_tokens
        if cell is None:
            why = study.reason(setting, domain=domain or None, method=method, budget=budget)
            shown.append(tables.missing(why))
            records.append(record | {"note": f"not measured: {why}"})
        else:
            shown.append(tables.number(cell["ms_per_token"]))
            records.append(record | {name: cell[name] for name in STATISTICS} | tables.gain_columns(cell))
    chain, widest = (
        cells[CHAIN, chain_budget],
        [key for key in keys if key[0] == TREE and cells[key] is not None],
    )
    no_tree = tables.missing(study.reason(setting, domain=domain or None, method=TREE))
    ends = [
        tables.missing(study.reason(setting, domain=domain or None, method=CHAIN))
        if chain is None
        else tables.number(chain["r_prompt_mean"]),
        no_tree if not widest else f"{cells[widest[-1]]['r_prompt_mean']:.2f} ({widest[-1][1]})",
    ]
    label = [
        setting,
        paper.DOMAIN_LABELS.get(domain, domain),
        tables.NONE if new_tokens is None else str(new_tokens),
    ]
    return tables.Row([*label, *shown, *ends]), records


def _max_new_tokens(study: Study, setting: str, domain: str) -> int | None:
    if not len(study.decode):
        return None
    rows = study.decode
    rows = rows[(rows["setting"] == setting) & (rows["domain"] == domain)]
    return None if rows.empty else int(rows["max_new_tokens"].iloc[0])
