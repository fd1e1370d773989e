"""Table 15: shrinking the drafter's block against shrinking the tree, at matched packed counts.

Cells: ms/token (mean over prompts) with R (mean over prompts of the prompt's mean R; pooled R in the CSV). Gains over
the chain of the same block, with 95% paired bootstrap intervals over prompts, are in the CSV.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .comparison import COMPARISON
from .data import CHAIN, SWEEP, TREE, Study
from .panels import Panel, instead, recorded_panel

EXPERIMENT = "block_length"
# (method, nodes, block): packed tokens are one more than nodes.
CONFIGURATIONS = [(CHAIN, 7, 8), (TREE, 7, 8), (TREE, 7, 16), (CHAIN, 15, 16), (TREE, 15, 16)]
_NAMES = {CHAIN: "chain", TREE: "tree"}
HEADER = [
    "Setting",
    "Domain",
    *(
        f"{nodes + 1} packed: {_NAMES[method]}{f' N = {nodes}' if method == TREE else ''}, block {block}"
        for method, nodes, block in CONFIGURATIONS
    ),
]


def build(study: Study) -> tables.Table:
    block = recorded_panel(study, (EXPERIMENT, SWEEP, COMPARISON), "cell_summary", split="block_size")
    rows, data, rules = [], [], set()
    for setting, domain in block.places:
        found = [_cell(block, setting, domain, *configuration) for configuration in CONFIGURATIONS]
        rows.append(tables.Row([setting, paper.DOMAIN_LABELS.get(domain, domain), *_shown(found)]))
        data += [
            {"source": "ours", "experiment": block.experiment, "setting": setting, "domain": domain} | record
            for record in found
        ]
    rules.add(len(rows) - 1)
    for (setting, domain), cells in paper.table("table15").groupby(["setting", "domain"], sort=False):
        records = {(cell.method, cell.width, cell.block_size): cell for cell in cells.itertuples()}
        shown = [f"{records[key].ms_per_token:.2f} ({records[key].r:.2f})" for key in CONFIGURATIONS]
        rows.append(tables.Row([paper.setting_label(setting), paper.DOMAIN_LABELS[domain], *shown], paper=True))
        data += [{"source": "paper"} | cell for cell in cells.rename(columns={"r": "paper_r"}).to_dict("records")]
    return tables.Table(
        title="Shorter blocks against narrower trees at matched packed counts: ms/token (R).",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            *instead(block, EXPERIMENT),
            "Ours: bold is the fastest at eight packed tokens, where all three were measured; a block of eight is the "
            "same head on a shorter block. ms/token is the mean over prompts, R the mean over prompts of each prompt's "
            "mean R. In the CSV: pooled values of both; the speedup over plain decoding, which is timed once for both "
            "blocks; and the gain over the longest chain of the same block, with 95% paired bootstrap intervals "
            "over prompts. Speedup and gain are ratios of means on the prompts that both methods have.",
            "The paper's rows are another setting and model.",
        ],
    )


def _cell(block: Panel, setting: str, domain: str, method: str, nodes: int, size: int) -> dict:
    record = {"method": method, "width": nodes, "block_size": size, "packed_tokens": nodes + 1}
    cells = block.of(setting, domain, method=method, budget=nodes, block_size=size)
    if not len(cells) or not cells["prompts"].iloc[0]:
        keys = {"method": method, "budget": nodes, "block_size": size}
        own = block.experiment == EXPERIMENT
        missing = block.missing(setting, domain, **keys) if own else tables.missing(f"no {EXPERIMENT} record")
        return record | {"note": missing.text}
    cell = cells.iloc[0]
    names = ("ms_per_token", "ms_per_token_pooled", "r_prompt_mean", "r_pooled", "prompts")
    names += ("speedup", "speedup_low", "speedup_high")
    return record | {name: cell[name] for name in names} | tables.gain_columns(cell) | {"note": ""}


def _shown(records: list[dict]) -> list[tables.Cell]:
    narrow = [record.get("ms_per_token") for record in records if record["width"] == 7]
    fastest = None if None in narrow else min(narrow)
    return [
        tables.missing(record["note"].removeprefix("not measured: "))
        if record["note"]
        else tables.Cell(
            f"{record['ms_per_token']:.2f} ({record['r_prompt_mean']:.2f})",
            bold=record["width"] == 7 and record["ms_per_token"] == fastest,
        )
        for record in records
    ]
