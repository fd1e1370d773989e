"""Table 6: target-forward latency in ms by prefix length and packed tokens, and the cost slope behind each prefix.

Ours: medians of the timed iterations (quartiles in the CSV); slopes over n in [16, 128] by least squares and by
endpoints, in ms per packed token. The prefixes of one setting take turns within one session.
"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from cast.experiments.records import LATENCY

from . import paper, tables
from .data import Study
from .probe import ESTIMATORS, Curve, curve_records, curves, latency_cells, paper_curves, slope_cells

EXPERIMENT = "prefix_probe"
BASE = 16
"""The chain's pack: ratios are to its latency."""
_COLUMNS = [
    "source", "setting", "prefix_tokens", "quantity", "packed_tokens", "value", "q25", "q75", "iterations",
    "ratio_to_16", "note",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    rows, printed = study.records(EXPERIMENT, LATENCY), paper.table("table6")
    latencies = printed[printed["quantity"] == "latency_ms"].rename(columns={"value": "latency_ms"})
    latencies = pd.concat([latencies, _coder()], ignore_index=True)
    own = rows.loc[rows["component"] == "target_forward", "packed_tokens"].unique() if len(rows) else []
    counts = sorted({*(int(n) for n in own), *latencies["packed_tokens"].astype(int)})
    ours, theirs = list(curves(study, EXPERIMENT, rows, counts)), list(paper_curves(latencies))
    data = [record for curve in ours for record in _records("ours", curve)]
    data += [record for curve in theirs for record in _records("paper", curve)]
    slopes = printed[printed["quantity"] == "slope_ms_per_token"]
    data += (slopes.assign(source="paper", quantity="slope_printed_ms_per_token")).to_dict("records")
    return tables.Table(
        title="Target-forward latency (ms) by KV prefix and packed tokens n = N + 1, batch one; slope in ms per token.",
        header=["Setting", "Prefix", *(f"n={n}" for n in counts), *ESTIMATORS.values()],
        rows=[
            *(_row(curve, curve.setting, counts) for curve in ours),
            *(_row(curve, paper.setting_label(curve.setting), counts, paper_row=True) for curve in theirs),
        ],
        data=pd.DataFrame(data, columns=_COLUMNS),
        rules_after={place for place, (one, next_) in enumerate(pairwise(ours)) if one.setting != next_.setting},
        notes=[
            "In brackets: the ratio to n = 16, the chain's pack. Ours: median over the timed iterations, all prefixes "
            "in turn within one session (quartiles in the CSV). Slopes over n in [16, 128].",
            "The paper's slopes are recomputed here from its printed latencies; it prints those by endpoints, at "
            f"most {slopes['value'].max():.3f}. Its rows are other settings: bf16 on an H100 SXM; those of Qwen3-Coder "
            "are from the text of its appendix H.2.",
        ],
    )


def _coder() -> pd.DataFrame:
    """What the text of appendix H.2 prints of a target that the table leaves out, behind a prefix of 1k."""
    prose = paper.prose()
    rows = prose[prose["id"] == "coder_probe"]
    packed = rows["quantity"].str.extract(r"at (\d+) packed tokens", expand=False).astype(int)
    found = {"prefix_tokens": 1000, "packed_tokens": packed, "latency_ms": rows["value"].astype(float)}
    return pd.DataFrame({"setting": rows["setting"], **found})


def _row(curve: Curve, label: str, counts: list[int], paper_row: bool = False) -> tables.Row:
    prefix = tables.NONE if curve.prefix_tokens is None else f"{curve.prefix_tokens:,}"
    latencies = latency_cells(curve, counts, BASE, digits=1 if paper_row else 2)
    return tables.Row([label, prefix, *latencies, *slope_cells(curve)], paper=paper_row)


def _records(source: str, curve: Curve) -> list[dict]:
    base = curve.medians.get(BASE)
    return [
        record | {"ratio_to_16": record["value"] / base if base and record.get("value") and "q25" in record else None}
        for record in curve_records(source, curve)
    ]
