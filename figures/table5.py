"""Table 5: target-forward latency in ms by packed tokens n = N + 1, and both estimates of the cost slope.

Ours: medians of the timed iterations of the latency probe (quartiles in the CSV); slopes over n in [16, 128]
by least squares and by endpoints, in ms per packed token.
"""

from __future__ import annotations

import pandas as pd

from . import paper, tables
from .data import PROBE, Study
from .probe import ESTIMATORS, slopes, verification_latency


def build(study: Study) -> tables.Table:
    curves, printed = verification_latency(study), paper.table("table5")
    counts = sorted({*curves["packed_tokens"].astype(int), *printed["packed_tokens"]})
    rows, data = [], []
    several = len(curves) > 0 and curves.groupby("setting")["prefix_tokens"].nunique().max() > 1
    for setting in study.settings:
        mine = curves[curves["setting"] == setting]
        if mine.empty:
            reason = study.reason(setting, experiment=PROBE)
            rows.append(tables.Row([setting, *[tables.missing(reason)] * (len(counts) + len(ESTIMATORS))]))
            data.append({"source": "ours", "setting": setting, "note": f"not measured: {reason}"})
        for prefix, curve in mine.groupby("prefix_tokens"):
            label = f"{setting}, prefix {int(prefix)}" if several else setting
            medians = dict(zip(curve["packed_tokens"].astype(int), curve["median"], strict=True))
            reasons = {n: study.reason(setting, experiment=PROBE, packed_tokens=n) for n in counts if n not in medians}
            rows.append(
                tables.Row(_shown(label, medians, counts, {n: tables.missing(why) for n, why in reasons.items()}))
            )
            data += [
                _record("ours", setting, int(prefix), "latency_ms", point["packed_tokens"], point["median"])
                | {"q25": point["q25"], "q75": point["q75"], "iterations": point["count"]}
                for point in curve.to_dict("records")
            ]
            data += _slope_records("ours", setting, int(prefix), medians)
        data += _draft_records(study, setting)
    for setting, curve in printed.groupby("setting", sort=False):
        latencies = dict(zip(curve["packed_tokens"], curve["latency_ms"], strict=True))
        rows.append(tables.Row(_shown(paper.setting_label(setting), latencies, counts, {}, digits=1), paper=True))
        data += [_record("paper", setting, 1000, "latency_ms", n, value) for n, value in latencies.items()]
        data += _slope_records("paper", setting, 1000, latencies)
    return tables.Table(
        title="Target-forward latency (ms) by packed tokens n = N + 1, batch one; slope in ms per token.",
        header=["Setting", *(f"n={n}" for n in counts), *ESTIMATORS.values()],
        rows=rows,
        data=pd.DataFrame(data, columns=_COLUMNS),
        notes=[
            "Ours: median over the timed iterations (quartiles and the draft pass in the CSV). Slopes "
            "over n in [16, 128].",
            "The paper's slopes are recomputed here from its printed latencies. Its text quotes 0.056 "
            "(Blackwell 8B), 0.015 (Blackwell 4B), 0.018 and 0.017 (H100 SXM 8B and 4B), which is not one"
            " estimator throughout.",
            "The paper's rows are other settings: 1k-token prefix, bf16, its own GPUs and models.",
        ],
    )


_COLUMNS = [
    "source",
    "setting",
    "prefix_tokens",
    "quantity",
    "packed_tokens",
    "value",
    "q25",
    "q75",
    "iterations",
    "note",
]


def _record(source, setting, prefix, quantity, packed_tokens, value) -> dict:
    return {
        "source": source, "setting": setting, "prefix_tokens": prefix, "quantity": quantity,
        "packed_tokens": packed_tokens, "value": value,
    }  # fmt: skip


def _slope_records(source: str, setting: str, prefix: int, latencies: dict[int, float]) -> list[dict]:
    found = slopes(list(latencies), list(latencies.values()))
    return [
        _record(source, setting, prefix, f"slope_{name}_ms_per_token", None, value) for name, value in found.items()
    ]


def _draft_records(study: Study, setting: str) -> list[dict]:
    if not len(study.latency):
        return []
    rows = study.latency
    rows = rows[(rows["setting"] == setting) & (rows["status"] == "measured") & (rows["component"] == "draft")]
    records = []
    for prefix, timed in rows.groupby("prefix_tokens")["latency_ms"]:
        low, middle, high = timed.quantile([0.25, 0.5, 0.75])
        record = _record("ours", setting, int(prefix), "draft_ms", None, middle)
        records.append(record | {"q25": low, "q75": high, "iterations": len(timed)})
    return records


def _shown(label: str, latencies: dict[int, float], counts: list[int], absent: dict, digits: int = 2) -> list:
    found = slopes(list(latencies), list(latencies.values()))
    cells = [tables.number(latencies[n], digits) if n in latencies else absent.get(n, tables.NONE) for n in counts]
    return [label, *cells, *(tables.NONE if value is None else f"{value:.4f}" for value in found.values())]
