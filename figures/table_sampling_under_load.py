"""Sampling under load (appendix F, E47): drawn tokens at served prefixes against plain decoding, by number of draws.

The largest total variation over served prefixes, beside the floor of as many draws from the autoregressive law itself;
an error of drawing alone decays as the control's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cast.experiments.records import TOTAL_VARIATION

from . import tables
from .data import Study
from .draws import DTYPES, SAMPLERS
from .panels import measured
from .serving import printed

EXPERIMENT = "sampling_under_load"
HEADER = [
    "Setting", "Domain", "Precision", "Sampler", "Draws", "Prefixes", "TV, largest", "TV, mean", "Floor, mean",
    "Floor, 99.9%", "Above their 99.9%", "Decay", "Law of the pass",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    shown, data, rules = [], [], set()
    for place in measured(study, EXPERIMENT, TOTAL_VARIATION):
        if place.reason:
            shown.append(place.missing_row(len(HEADER)))
            data.append(place.record)
            continue
        mine = place.rows[place.rows["level"] == "first"]
        for (dtype, sampler), part in sorted(mine.groupby(["dtype", "sampler"]), key=_in_order):
            for numbers in _by_draws(part):
                shown.append(_row([*place.label, DTYPES.get(dtype, dtype), SAMPLERS[sampler]], numbers))
                data.append(place.record | {"dtype": dtype, "sampler": sampler} | numbers)
            rules.add(len(shown) - 1)
    for one in printed("served_total_variation"):
        floor, value = "floor" in one["quantity"], float(one["value"])
        cells = [tables.NONE] * len(HEADER)
        cells[0], cells[1], cells[2] = one["setting"].upper(), one["where"], "fp64"
        cells[8 if floor else 6] = f"{value:g}"
        shown.append(tables.Row(cells, paper=True))
        name = "floor_mean" if floor else "total_variation_largest"
        data.append({"source": "paper", "setting": one["setting"], "dtype": "float64", name: value})
        data[-1] |= {"note": f"{one['where']}: {one['quantity']}"}
    return tables.Table(
        title="Drawn tokens of served requests at temperature above 0 against autoregressive sampling.",
        header=HEADER,
        rows=shown,
        data=pd.DataFrame(data),
        rules_after=rules,
        notes=[
            "First token of a round, at the prefix of each request that was served in the same batch. TV: total "
            "variation of the draws from the autoregressive law, largest and mean over prefixes. Floors: mean and "
            "99.9% quantile of the total variation of as many draws from that law itself, simulated; means over "
            "prefixes. Above: prefixes beyond their own quantile. AR is plain sampling through the same code.",
            "Decay: exponent of a power law through the largest TV over the numbers of draws; drawing alone gives "
            "the control's: -0.5 once the likely tokens were drawn often, nearer to 0 before. Law of the pass: largest "
            "distance of the law of the batched pass from that of plain decoding.",
            "The paper's numbers are from its text, which states neither draws nor which statistic its floor is.",
        ],
    )


def _in_order(group: tuple[tuple[str, str], pd.DataFrame]) -> tuple[int, int]:
    dtype, sampler = group[0]
    return list(DTYPES).index(dtype), list(SAMPLERS).index(sampler)


def _by_draws(rows: pd.DataFrame) -> list[dict]:
    found = []
    for walks, part in rows.groupby("walks", sort=True):
        distances = part["total_variation"]
        found.append({
            "draws": int(walks), "prefixes": len(part), "total_variation_largest": distances.max(),
            "total_variation_mean": distances.mean(), "floor_mean": part["floor_mean"].mean(),
            "floor_q999": part["floor_q999"].mean(), "above": int((distances > part["floor_q999"]).sum()),
            "law_distance": part["law_distance"].max(), "least_p": part["p_value"].min(),
        })  # fmt: skip
    largest = [one["total_variation_largest"] for one in found]
    exponent = float("nan")
    if len(found) > 1 and min(largest) > 0:
        exponent = float(np.polyfit(np.log([one["draws"] for one in found]), np.log(largest), 1)[0])
    return [one | {"decay_exponent": exponent} for one in found]


def _row(label: list[str], numbers: dict) -> tables.Row:
    law = numbers["law_distance"]
    names = ("total_variation_largest", "total_variation_mean", "floor_mean", "floor_q999")
    above = tables.Cell(f"{numbers['above']} of {numbers['prefixes']}", bold=numbers["above"] > 0)
    counts = [f"{numbers['draws']:,}", str(numbers["prefixes"])]
    distances = [tables.number(numbers[name], 4) for name in names]
    decay = tables.number(numbers["decay_exponent"])
    return tables.Row([*label, *counts, *distances, above, decay, tables.NONE if pd.isna(law) else f"{law:.1e}"])
