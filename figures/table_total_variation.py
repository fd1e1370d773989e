"""Total variation of the samplers' draws from autoregressive sampling (appendices C and D.2), by prefix.

The floor is what as many draws from the autoregressive law itself are away from it: mean and 99.9% quantile of
simulated multinomial samples. Beside the samplers stands plain sampling through the same code, as a control.
"""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import TOTAL_VARIATION

from . import paper, tables
from .data import PLAIN, Study
from .draws import DTYPES, SAMPLERS, drawn, in_order
from .panels import measured

EXPERIMENT = "total_variation"
HEADER = [
    "Setting", "Domain", "What is drawn", "Prefix", "Draws", "Floor, mean", "Floor, 99.9%",
    *(name[:1].upper() + name[1:] for name in SAMPLERS.values()), "Law of the tree pass",
]  # fmt: skip
_KEPT = [
    "setting", "domain", "dtype", "level", "depth", "sampler", "prompt_id", "budget", "temperature", "top_p", "seed",
    "walks", "draws", "total_variation", "floor_mean", "floor_q999", "law_distance", "chi_square",
    "degrees_of_freedom", "p_value",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    shown, data, rules = [], [], set()
    for place in measured(study, EXPERIMENT, TOTAL_VARIATION):
        if place.reason:
            shown.append(place.missing_row(len(HEADER)))
            data.append(place.record)
            continue
        # Every number of draws is in the CSV; shown is the largest.
        data += place.rows[_KEPT].assign(source="ours", note="").to_dict("records")
        for _, part in sorted(place.rows.groupby(["level", "dtype"]), key=in_order):
            last = part[part["walks"] == part["walks"].max()]
            label = [*place.label, drawn(last)]
            by_prefix = last.groupby(["prompt_index", "prompt_id"], sort=True)
            lines = [_prefix_row(label, prompt, prefix) for (_, prompt), prefix in by_prefix]
            shown += lines if len(lines) == 1 else [*lines, _summary_row(label, last)]
            rules.add(len(shown) - 1)
    for printed in _paper_records():
        shown.append(_paper_row(printed))
        data.append(printed)
    return tables.Table(
        title="Total variation of drawn tokens from autoregressive sampling, against the Monte-Carlo floor.",
        header=HEADER,
        rows=shown,
        data=pd.DataFrame(data, columns=["source", *_KEPT, "note"]),
        rules_after=rules,
        notes=[
            "Cells: total variation (p of a chi-square test); bold where it is above the 99.9% quantile of its own "
            "floor. The floor is the mean and the 99.9% quantile of the total variation of as many draws from the "
            "autoregressive law itself, simulated. Past the first token the samplers reach the node differently often: "
            "shown are draws and floor of the control; each sampler's own, and fewer draws, are in the CSV.",
            "All prefixes: mean total variation, and how many prefixes lie above their 99.9% quantile. Of k "
            "tests the least p is about 1 / (k + 1) by chance alone.",
            "Law of the tree pass: distance of the law computed in the packed verification pass from the one plain "
            "decoding computes: rounding alone, no draws.",
            "The paper's numbers are from its text, which states neither prefixes nor draws, nor which "
            "statistic its floor is.",
        ],
    )


def _prefix_row(label: list[str], prompt: str, rows: pd.DataFrame) -> tables.Row:
    of = {row["sampler"]: row for row in rows.to_dict("records")}
    control = of.get(PLAIN) or next(iter(of.values()))
    cells = [_cell(of[sampler]) if sampler in of else tables.NONE for sampler in SAMPLERS]
    floor = [tables.number(control[name], 4) for name in ("floor_mean", "floor_q999")]
    return tables.Row([*label, prompt, f"{control['draws']:,}", *floor, *cells, _law(rows)])


def _cell(row: dict) -> tables.Cell:
    text = f"{row['total_variation']:.4f} ({_p(row['p_value'])})"
    return tables.Cell(text, bold=row["total_variation"] > row["floor_q999"])


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _summary_row(label: list[str], rows: pd.DataFrame) -> tables.Row:
    control = rows[rows["sampler"] == PLAIN]
    control = control if len(control) else rows
    floor = [tables.number(control[name].mean(), 4) for name in ("floor_mean", "floor_q999")]
    cells = []
    for sampler in SAMPLERS:
        mine = rows[rows["sampler"] == sampler]
        above = int((mine["total_variation"] > mine["floor_q999"]).sum())
        told = f"{mine['total_variation'].mean():.4f}; {above} of {len(mine)} above; least {_p(mine['p_value'].min())}"
        cells.append(tables.Cell(told, bold=above > 0) if len(mine) else tables.NONE)
    return tables.Row([*label, "all prefixes", f"{control['draws'].mean():,.0f}", *floor, *cells, _law(rows)])


def _law(rows: pd.DataFrame) -> str:
    """The largest distance of the packed pass's law; a joint law of whole generations has no such pass."""
    largest = rows["law_distance"].max()
    return tables.NONE if pd.isna(largest) else f"{largest:.1e}"


def _paper_records() -> list[dict]:
    """What the text prints of each experiment, the floor in its own row."""
    prose = paper.prose()
    rows = prose[prose["id"] == "total_variation"]
    found = []
    for row in rows.to_dict("records"):
        value, quantity = float(row["value"]), row["quantity"]
        place = {"source": "paper", "note": f"{row['where']}: {quantity}"}
        if "floor" in quantity:
            found.append(place | {"floor_mean": value})
            continue
        dtype = "float64" if "fp64" in quantity else "bfloat16"
        sampler = "recursive" if "recursive" in quantity else "walk"
        found.append(place | {"dtype": dtype, "sampler": sampler, "total_variation": value})
    return found


def _paper_row(record: dict) -> tables.Row:
    dtype = DTYPES.get(record.get("dtype"), tables.NONE)
    floor = f"{record['floor_mean']:g}" if "floor_mean" in record else tables.NONE
    cells = [f"{record['total_variation']:g}" if record.get("sampler") == name else tables.NONE for name in SAMPLERS]
    where = record["note"].split(":")[0]
    return tables.Row(
        [where, tables.NONE, dtype, *[tables.NONE] * 2, floor, tables.NONE, *cells, tables.NONE], paper=True
    )
