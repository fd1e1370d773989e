"""Gain on a shared device (appendix D): the width sweep's cell once more, beside another tenant of the device.

The tenant is a process of the job's own that streams memory. Gains over DFlash are ratios of cell ms/token (means over
prompts) with 95% paired bootstrap intervals; both on the prompts that both experiments measured.
"""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import DECODE

from . import paper, tables
from .claims.finding import difference
from .data import CHAIN, PLAIN, SWEEP, TREE, Study
from .panels import Panel
from .shared_device import EXPERIMENT, SIDES, common_cells, trees_by_width

HEADER = [
    "Setting", "Domain", "N", "Prompts", "AR ms/token, idle", "AR ms/token, shared", "Gain, idle", "Gain, shared",
    "Change (points)",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    # Its cells are compared on the prompts of both: those of `common_cells`.
    shared = Panel(study, EXPERIMENT, study.records(EXPERIMENT, DECODE), pd.DataFrame())
    rows, data = [], []
    for setting, domain in shared.places:
        label = [setting, paper.DOMAIN_LABELS.get(domain, domain)]
        place = {"source": "ours", "setting": setting, "domain": domain}
        cells = common_cells(study, setting, domain)
        trees = {side: trees_by_width(found) for side, found in cells.items()}
        widths = sorted({*trees["idle"], *trees["shared"]} if trees["shared"] else [])
        if not widths:
            missing = shared.missing(setting, domain)
            rows.append(tables.Row([*label, *[tables.NONE] * 5, missing, tables.NONE]))
            data.append(place | {"note": missing.text})
        for width in widths:
            shown, record = _row(study, shared, place, cells, {side: trees[side].get(width) for side in SIDES}, width)
            rows.append(tables.Row([*label, str(width), *shown]))
            data.append(place | {"width": width} | record)
    printed = _paper_record()
    rows.append(_paper_row(printed))
    data.append(printed)
    return tables.Table(
        title="Gain over DFlash on an idle device and beside another tenant of the same device.",
        header=HEADER,
        rows=rows,
        data=pd.DataFrame(data, columns=_COLUMNS),
        notes=[
            "Ours: the tenant is a process that streams memory for as long as the job runs; idle is the width sweep's "
            "cell, on the prompts that both measured and at the same length. Brackets are 95% paired bootstrap "
            "intervals over prompts (10,000 resamples); that of the change is made of both, as of independent cells. "
            "Not a measurement of speed.",
            "The paper's row: an unknown tenant on its GPU.",
        ],
    )


_CHANGE = ("change_points", "change_low_points", "change_high_points")
_QUANTITIES = [
    "prompts", "ar_ms_per_token", "dflash_ms_per_token", "cast_ms_per_token", "gain_percent", "gain_low_percent",
    "gain_high_percent",
]  # fmt: skip
_COLUMNS = [
    "source", "setting", "domain", "width",
    *(f"{name}_{side}" for side in SIDES for name in _QUANTITIES),
    *_CHANGE, "note",
]  # fmt: skip


def _row(study: Study, shared, place: dict, cells: dict, trees: dict, width: int) -> tuple[list, dict]:
    record: dict = {}
    gains, notes = {}, []
    keys = {"method": TREE, "budget": width}
    for side, tree in trees.items():
        if tree is None:
            gains[side] = tables.missing(_reason(study, shared, side, place["setting"], place["domain"], keys))
            notes.append(gains[side].text)
            continue
        gains[side] = tables.gain(tree)
        record |= {f"prompts_{side}": int(tree["prompts_paired"]), f"cast_ms_per_token_{side}": tree["ms_per_token"]}
        record |= {f"{name}_percent_{side}": 100 * tree[name] for name in ("gain", "gain_low", "gain_high")}
        for name, method in (("ar", PLAIN), ("dflash", CHAIN)):
            found = cells[side][cells[side]["method"] == method].sort_values("budget")
            record[f"{name}_ms_per_token_{side}"] = found["ms_per_token"].iloc[-1] if len(found) else float("nan")
    both = all(trees.values())
    record |= {"note": "; ".join(notes)} | dict.fromkeys(_CHANGE)
    if both:
        change = [100 * end for end in difference(trees["shared"], trees["idle"])]
        record |= dict(zip(_CHANGE, change, strict=True))
    prompts = {record[f"prompts_{side}"] for side in SIDES if trees[side]}
    shown = [
        "/".join(str(count) for count in sorted(prompts)),
        *(tables.number(record.get(f"ar_ms_per_token_{side}"), 1) for side in SIDES),
        *(gains[side] for side in SIDES),
        tables.gap(dict(zip(("gap_points", "gap_low", "gap_high"), change, strict=True))) if both else tables.NONE,
    ]
    return shown, record


def _reason(study: Study, shared, side: str, setting: str, domain: str, keys: dict) -> str:
    if side == "shared":
        return shared.reason(setting, domain, **keys)
    if study.cell(setting, domain, TREE, keys["budget"]) is not None:
        return f"the {SWEEP} measured this cell on other prompts or at another length"
    return study.reason(setting, domain=domain, **keys)


def _paper_record() -> dict:
    prose = paper.prose()
    rows = prose[prose["id"] == "shared_gpu"]
    record = {"source": "paper", "setting": rows["setting"].iloc[0], "domain": rows["domain"].iloc[0], "note": ""}
    for side in SIDES:
        named = rows[rows["quantity"].str.contains(side, regex=False)]
        record[f"gain_percent_{side}"] = float(named["value"].iloc[0])
    return record | {"change_points": record["gain_percent_shared"] - record["gain_percent_idle"]}


def _paper_row(record: dict) -> tables.Row:
    gains = [tables.percent(record[f"gain_percent_{side}"] / 100, 0) for side in SIDES]
    label = [paper.setting_label(record["setting"]), paper.DOMAIN_LABELS[record["domain"]]]
    return tables.Row([*label, *[tables.NONE] * 4, *gains, f"{record['change_points']:+.0f}"], paper=True)
