"""Table 14: generation length and long prefix: speedups over AR, R, the gain at the predicted width and the oracle.

Speedup and gain are ratios of cell ms/token (means over prompts); gains carry 95% paired bootstrap intervals.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import CHAIN, PLAIN, Study
from .panels import Panel, panel

EXPERIMENTS = {"generation_length": "Generation length", "long_prefix": "Long prefix"}
KEPT = ("speedup", "speedup_low", "speedup_high", "r_prompt_mean", "r_pooled", "ms_per_token")
HEADER = [
    "Cell", "Setting", "Domain", "New tokens", "AR ms/token", "DFlash × AR (R)", "CAST × AR (R)", "N", "Gain",
    "Oracle N (gain)",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    rows, data, rules = [], [], set()
    for experiment, title in EXPERIMENTS.items():
        block = panel(study, experiment, "cell_summary", split="max_new_tokens")
        for setting, domain in block.places:
            limits = sorted(block.of(setting, domain)["max_new_tokens"].unique()) if len(block.cells) else []
            for limit in limits or [None]:
                shown, record = _cell(block, setting, domain, limit)
                length = tables.NONE if limit is None else str(limit)
                label = paper.DOMAIN_LABELS.get(domain, domain)
                rows.append(tables.Row([title, setting, label, length, *shown]))
                place = {"source": "ours", "experiment": experiment, "setting": setting, "domain": domain}
                data.append(place | {"max_new_tokens": limit} | record)
        rules.add(len(rows) - 1)
    for printed in paper.table("table14").to_dict("records"):
        long = pd.notna(printed["prefix_tokens"])
        rows.append(
            tables.Row(
                [
                    EXPERIMENTS["long_prefix" if long else "generation_length"],
                    paper.setting_label(printed["setting"]),
                    paper.DOMAIN_LABELS[printed["domain"]],
                    str(printed["max_new_tokens"]),
                    tables.number(printed["ar_ms_per_token"], 1),
                    f"{printed['dflash_speedup']:.2f} ({printed['dflash_r']:.2f})",
                    f"{printed['cast_speedup']:.2f} ({printed['cast_r']:.2f})",
                    str(printed["predicted_width"]),
                    tables.percent(printed["gain_percent"] / 100, 0),
                    f"{printed['oracle_width']} ({tables.percent(printed['oracle_gain_percent'] / 100, 0)})",
                ],
                paper=True,
            )
        )
        data.append({"source": "paper"} | {_PAPER_NAMES.get(name, name): value for name, value in printed.items()})
    return tables.Table(
        title="Generation length and long prefix: speedup over AR, R, gain over DFlash and the sweep oracle.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "Ours: ms/token is the mean over prompts; a speedup is that of AR over the method's, a gain DFlash's over "
            "CAST's minus one, both ratios of such means on the prompts that both methods have. R is the mean over "
            "prompts of each prompt's mean R (r_pooled is in the CSV); N is the predicted width, the widest one "
            "measured where that was not; brackets are 95% paired bootstrap intervals over prompts (10,000 "
            "resamples). The oracle is the width with the largest gain among those measured here.",
            "The paper's rows are other settings and models; its long prefixes have 8k tokens.",
        ],
    )


# Of statistics that the paper does not name, so that no column mixes them with ours.
_PAPER_NAMES = {"dflash_r": "paper_dflash_r", "cast_r": "paper_cast_r", "predicted_width": "width"}


def _cell(block: Panel, setting: str, domain: str, limit: int | None) -> tuple[list, dict]:
    keys = {} if limit is None else {"max_new_tokens": limit}
    missing = block.missing(setting, domain, **keys)
    trees = block.trees(setting, domain, **keys)
    if not len(trees):
        return [missing, *[tables.NONE] * 3, missing, tables.NONE], {"note": missing.text}
    tree = block.deployed(setting, domain, **keys).iloc[-1]
    best = trees.loc[trees["gain"].idxmax()]
    chains = block.of(setting, domain, method=CHAIN, **keys).sort_values("budget")
    plain = block.of(setting, domain, method=PLAIN, **keys)
    chain = chains.iloc[-1]
    ar_ms = float(plain["ms_per_token"].iloc[0]) if len(plain) else float("nan")
    record = {
        "ar_ms_per_token": ar_ms,
        "width": int(tree["budget"]),
        "prompts": int(tree["prompts_paired"]),
        "note": "",
    }
    for name, cell in (("dflash", chain), ("cast", tree)):
        record |= {f"{name}_{column}": cell[column] for column in KEPT}
    record |= tables.gain_columns(tree)
    record |= {"oracle_width": int(best["budget"])}
    record |= {f"oracle_{name}": value for name, value in tables.gain_columns(best).items()}
    shown = [
        tables.number(ar_ms, 1),
        *(f"{tables.number(cell['speedup'])} ({tables.number(cell['r_prompt_mean'])})" for cell in (chain, tree)),
        str(record["width"]),
        tables.gain(tree),
        f"{record['oracle_width']} ({tables.gain(best)})",
    ]
    return shown, record
