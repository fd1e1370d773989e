"""Synthetic records for the figures: a small factory that goes through the real schemas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cast.experiments.records import DECODE, LATENCY, write_records

WIDTHS = [15, 23, 47, 127]
PACKED = [1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
DOMAINS = ["math", "code", "chat"]
# Two deployments on one machine: milliseconds per packed token, intercept, predicted width.
DEPLOYMENTS = {"smollm2_bf16": (0.48, 52.0, 47), "smollm2_fp32": (1.27, 68.0, 23)}


def identity(experiment: str, setting: str, domain: str) -> dict:
    return {
        "experiment": experiment,
        "setting": setting,
        "device": "cpu",
        "target": "smollm2_135m",
        "drafter": "smollm2_dflash",
        "domain": domain,
        "dtype": "float32" if "fp32" in setting else "bfloat16",
        "engine": "eager",
        "threads": 2,
        "host": "host",
        "session": "s1",
        "status": "measured",
        "reason": "",
    }


def decode_row(
    setting: str, domain: str, method: str, budget: int, prompt: int, ms_per_token: float, r: float, **changes
) -> dict:
    """One measured decode row: 96 new tokens in as many rounds as a committed length of r per round needs."""
    rounds = max(1, round(95 / r))
    row = identity("width_sweep", setting, domain) | {
        "method": method, "budget": budget, "prompt_id": f"{domain}/{prompt}", "prompt_index": prompt,
        "repeat": 0, "seed": 0, "temperature": 0.0, "sampler": "greedy", "top_k": 8, "block_size": 16,
        "max_new_tokens": 96, "order": 0, "traced": False, "prompt_tokens": 40, "new_tokens": 96, "rounds": rounds,
        "committed_tokens": max(95, rounds), "stop_reason": "length", "prefill_ms": 200.0,
        "first_draft_ms": 9.0, "decode_ms": 96 * ms_per_token, "ms_per_token": ms_per_token,
        "drafter_passes": rounds, "target_passes": rounds, "draft_ms_per_round": np.nan,
        "verify_ms_per_round": np.nan, "overhead_ms_per_round": np.nan, "repeat_share": 0.02, "departure": -1,
        "departure_gap": np.nan, "output_sha256": hashlib.sha256(f"{domain}{prompt}".encode()).hexdigest(),
    }  # fmt: skip
    return row | changes


MEASURED_COLUMNS = [
    "prompt_tokens", "new_tokens", "rounds", "committed_tokens", "stop_reason", "prefill_ms",
    "first_draft_ms", "decode_ms", "ms_per_token", "drafter_passes", "target_passes", "repeat_share",
    "departure", "departure_gap", "output_sha256",
]  # fmt: skip


def failed(row: dict, reason: str) -> dict:
    """The same row as a failure leaves it."""
    return row | dict.fromkeys(MEASURED_COLUMNS) | {"status": "failed", "reason": reason}


def latency_rows(setting: str, medians: dict[int, float], draft_ms: float = 9.0) -> list[dict]:
    """Five iterations for each packed count, spread by 2% around the median, and the draft pass."""
    points = [("target_forward", n, ms) for n, ms in medians.items()] + [("draft", 16, draft_ms)]
    return [
        identity("latency_probe", setting, "random")
        | {
            "component": component,
            "prefix_tokens": 256,
            "packed_tokens": n,
            "iteration": i,
            "latency_ms": ms * factor,
        }
        for component, n, ms in points
        for i, factor in enumerate([0.98, 0.99, 1.0, 1.01, 1.02])
    ]


def width_content(setting: str, width: int, slope: float = 0.5) -> dict:
    prediction = {
        "cost": "affine", "rounding": "up", "slope_estimator": "least_squares", "slope_ms_per_token": slope,
        "intercept_ms": 50.0, "width": width, "crossing": width - 2, "threshold": 0.02, "throughput": {},
    }  # fmt: skip
    return {
        "setting": setting, "study": "synthetic", "scores_source": f"{setting}/math", "scores_rounds": 600,
        "prefix_tokens": 256, "draft_ms": 9.0, "overhead_ms": 0.0, "allowed_widths": WIDTHS,
        "predictions": [prediction], "default": 0, "width": width, "probe_wall_s": 20.0,
        "scores_wall_s": 60.0,
    }  # fmt: skip


class StudyFolder:
    """Writes records the way the jobs do: Parquet with a provenance JSON beside it."""

    def __init__(self, root: Path):
        self.root = root

    def sweep(self, setting: str, domain: str, rows: list[dict], wall_s: float = 300.0) -> None:
        self._write("width_sweep", setting, domain, rows, DECODE, wall_s)

    def probe(self, setting: str, rows: list[dict], wall_s: float = 20.0) -> None:
        self._write("latency_probe", setting, "random", rows, LATENCY, wall_s)

    def width(self, setting: str, width: int, slope: float = 0.5) -> None:
        self._json(setting, width_content(setting, width, slope))

    def no_width(self, setting: str, reason: str) -> None:
        self._json(setting, {"setting": setting, "study": "synthetic", "width": None, "reason": reason})

    def _json(self, setting: str, content: dict) -> None:
        path = self.root / "width" / f"{setting}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def _write(self, experiment, setting, domain, rows, schema, wall_s) -> None:
        path = self.root / experiment / setting / f"{domain}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_records(pd.DataFrame(rows), path, schema)
        path.with_suffix(".json").write_text(json.dumps({"wall_s": wall_s, "records": len(rows)}))


def plausible_sweep(setting: str, domain: str, prompts: int = 5, widths: Sequence[int] = WIDTHS) -> list[dict]:
    """Rows that look like a measurement: R grows with the width, round time with the packed count."""
    slope, intercept, _ = DEPLOYMENTS[setting]
    random = np.random.default_rng(list((setting + domain).encode()))
    ease = {"math": 1.0, "code": 1.15, "chat": 0.85}[domain]
    rows = []
    for prompt in range(prompts):
        luck = ease * random.lognormal(0, 0.15)
        for method, budget in [("autoregressive", 0), ("dflash", 15), *(("cast", width) for width in widths)]:
            gained = (
                0.0 if method == "autoregressive" else 0.8 if method == "dflash" else 0.5 * np.log2(1 + budget) - 0.6
            )
            r = 1 + luck * gained
            draft = 0.0 if method == "autoregressive" else 9.0
            round_ms = draft + intercept + slope * (budget + 1)
            rows.append(
                decode_row(setting, domain, method, budget, prompt, round_ms / r * random.lognormal(0, 0.015), r)
            )
    return rows


def write_plausible(root: Path, **options) -> Path:
    folder = StudyFolder(root)
    for setting, (slope, intercept, width) in DEPLOYMENTS.items():
        folder.probe(setting, latency_rows(setting, {n: intercept + slope * n for n in PACKED}))
        folder.width(setting, width, slope)
        for domain in DOMAINS:
            folder.sweep(setting, domain, plausible_sweep(setting, domain, **options))
    return root
