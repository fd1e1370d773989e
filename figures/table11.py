"""Table 11: verification latency in ms of hybrid targets (gated delta-rule layers) by prefix and packed tokens.

Ours: medians of the timed forwards, each on an untimed copy of the prefix's cache (quartiles in the CSV). The entry
cost is what a pass over two tokens takes beyond a pass over one; the slope is over n in [16, 128].
"""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import HYBRID_LATENCY

from . import paper, tables
from .data import Study
from .probe import ESTIMATORS, Curve, curve_records, curves, latency_cells, paper_curves, slope_cells

EXPERIMENT = "hybrid_probe"
_COLUMNS = [
    "source", "setting", "weights", "prefix_tokens", "quantity", "packed_tokens", "fused_kernels", "value", "q25",
    "q75", "iterations", "note",
]  # fmt: skip


def build(study: Study) -> tables.Table:
    rows, printed = study.records(EXPERIMENT, HYBRID_LATENCY), paper.table("table11")
    own = rows["packed_tokens"].unique() if len(rows) else []
    counts = sorted({*(int(n) for n in own), *printed["packed_tokens"]})
    shown, data = [], []
    for curve in curves(study, EXPERIMENT, rows, counts):
        kernels = _kernels(rows, curve)
        weights = _weights(rows, curve.setting)
        label = curve.setting + (", random weights" if weights == "random" else "")
        shown.append(_row(curve, label, _said(kernels), counts))
        for record in [*curve_records("ours", curve), *_entry("ours", curve)]:
            named = {"weights": weights, "fused_kernels": kernels.get(record.get("packed_tokens"), "")}
            data.append(record | named)
    for curve in paper_curves(printed):
        shown.append(_row(curve, paper.setting_label(curve.setting), "fused", counts, paper_row=True))
        data += [*curve_records("paper", curve), *_entry("paper", curve)]
    return tables.Table(
        title="Verification latency (ms) of hybrid targets by prefix and packed tokens n, batch one.",
        header=["Setting", "Kernels", "Prefix", *(f"n={n}" for n in counts), "entry, n=2", *ESTIMATORS.values()],
        rows=shown,
        data=pd.DataFrame(data, columns=_COLUMNS),
        notes=[
            "Ours: median over the timed forwards, each on an untimed copy of the prefix's cache (quartiles in the "
            "CSV). Entry: the pass over two tokens beyond the pass over one, in ms and in percent. Slopes in ms per "
            "token over n in [16, 128]. Kernels: the packages of fused gated delta-rule kernels that ran, plain where "
            "transformers' own code did.",
            "Random weights: a small random model of the same family. It proves the protocol and says nothing of the "
            "cost of the paper's targets.",
            "The paper's rows: bf16 on a Blackwell card, medians of 15; entry costs and slopes recomputed here.",
        ],
    )


def _row(curve: Curve, label: str, kernels: str, counts: list[int], paper_row: bool = False) -> tables.Row:
    prefix = tables.NONE if curve.prefix_tokens is None else f"{curve.prefix_tokens:,}"
    entry = {record["quantity"]: record["value"] for record in _entry("", curve)}
    shown = f"{entry['entry_ms']:+.1f} ({entry['entry_percent']:+.0f}%)" if entry else tables.NONE
    latencies = latency_cells(curve, counts, digits=1 if paper_row else 2)
    return tables.Row([label, kernels, prefix, *latencies, shown, *slope_cells(curve)], paper=paper_row)


def _entry(source: str, curve: Curve) -> list[dict]:
    """What the second token costs, in ms and in percent of the pass over one; empty where either is missing."""
    one, two = curve.medians.get(1), curve.medians.get(2)
    if one is None or two is None:
        return []
    place = {"source": source, "setting": curve.setting, "prefix_tokens": curve.prefix_tokens}
    return [
        place | {"quantity": "entry_ms", "value": two - one},
        place | {"quantity": "entry_percent", "value": 100 * (two / one - 1)},
    ]


def _weights(rows: pd.DataFrame, setting: str) -> str:
    found = rows.loc[rows["setting"] == setting, "weights"].dropna() if len(rows) else []
    return ", ".join(sorted(set(found)))


def _kernels(rows: pd.DataFrame, curve: Curve) -> dict[int, str]:
    """Packed tokens -> packages of fused kernels that a pass of that size called, or "none"."""
    if curve.note:
        return {}
    mine = rows[(rows["setting"] == curve.setting) & (rows["prefix_tokens"] == curve.prefix_tokens)]
    return {int(n): name for n, name in mine.groupby("packed_tokens")["fused_kernels"].first().dropna().items()}


def _said(kernels: dict[int, str]) -> str:
    """One word where all sizes agree, else each with its sizes."""
    sizes: dict[str, list[str]] = {}
    for n, name in sorted(kernels.items()):
        sizes.setdefault("plain" if name == "none" else name, []).append(str(n))
    if len(sizes) == 1:
        return next(iter(sizes))
    return "; ".join(f"{name} (n={', '.join(counts)})" for name, counts in sizes.items()) or tables.NONE
