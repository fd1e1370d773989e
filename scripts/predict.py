"""Predict the tree width of a setting from its latency probe and a score log, in every mode of the rule.

    python scripts/predict.py setting=smollm2_bf16 \\
        inputs.latency=outputs/probe/records.parquet inputs.scores=outputs/scores/records.parquet
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from cast.errors import CastError
from cast.experiments import device
from cast.experiments.files import read_json, sha256_file, write_json
from cast.experiments.provenance import git_state
from cast.experiments.records import LATENCY, SCORES, read_records
from jobs import measuring
from jobs.composition import config_digest, plain
from jobs.entry import run
from jobs.schema import Cost, Width


def predict(config: DictConfig) -> None:
    measuring.require(config, Width, "predict")
    measuring.check_values(config)
    for key in ("inputs.latency", "inputs.scores"):
        if OmegaConf.is_missing(config.inputs, key.split(".")[1]):
            raise CastError(f"no {key} given; add {key}=<record>.parquet, written by probe.py or scores.py")
    output = measuring.output_path(config, "predict", ".json")
    measuring.check_free(config, output, computed=True)
    latency = read_records(config.inputs.latency, LATENCY)
    scores = read_records(config.inputs.scores, SCORES)
    measuring.check_source("latency", config.inputs.latency, latency.setting, config.setting.name, "setting")
    measuring.check_source("scores", config.inputs.scores, scores.drafter, config.drafter.name, "drafter")
    try:
        prediction = _prediction(config, latency, scores)
    except CastError as error:
        # A probe or a score log that could not be measured: the tables say so beside the other settings.
        if (pd.concat([latency.status, scores.status]) == "measured").all():
            raise
        prediction = {"width": None, "reason": str(error)}
        print(f"failed: {error}")
    write_json(output, _identity(config) | prediction)
    if prediction["width"] is not None:
        print(f"{config.setting.name}: N* = {prediction['width']}")


def _prediction(config: DictConfig, latency: pd.DataFrame, scores: pd.DataFrame) -> dict[str, Any]:
    from cast.experiments import width_prediction

    failed = scores[scores.status != "measured"]
    if len(failed):
        raise CastError(f"no width can be predicted: the score log failed ({failed.reason.iloc[0]})")
    affine = config.cost is Cost.affine
    prediction = width_prediction.predict(
        latency,
        scores.sort_values("rank")["mass"].to_numpy(dtype=float),
        allowed_widths=list(config.budgets),
        # The measured curve has no slope to estimate.
        deployed=(config.cost.value, config.rounding.value, config.slope.value if affine else None),
        overhead_ms=config.overhead_ms,
    )
    first = scores.iloc[0]
    return {
        **prediction,
        "scores_source": f"{first.setting}/{first.domain}",
        "scores_rounds": int(first["rounds"]),
        "probe_wall_s": _wall_s(config.inputs.latency),
        "scores_wall_s": _wall_s(config.inputs.scores),
    }


def _identity(config: DictConfig) -> dict[str, Any]:
    out = Path(config.out or "")
    kind = device.resolve_kind(config.device.kind.value)
    commit, dirty = git_state()
    return {
        "setting": config.setting.name,
        "study": out.parts[1] if len(out.parts) > 2 and out.parts[0] == "results" else "",
        "config": plain(config),
        "config_digest": config_digest(config),
        "host": socket.gethostname(),
        "device": device.describe(kind, config.device.threads),
        "git_commit": commit,
        "git_dirty": dirty,
        "inputs": {path: sha256_file(path) for path in (config.inputs.latency, config.inputs.scores)},
    }


def _wall_s(record: str) -> float | None:
    """Seconds a record took to measure, from the provenance beside it."""
    provenance = Path(record).with_suffix(".json")
    told = read_json(provenance) if provenance.is_file() else None
    wall_s = told.get("wall_s") if isinstance(told, dict) else None
    return wall_s if isinstance(wall_s, int | float) else None


if __name__ == "__main__":
    run(predict, experiment="width")
