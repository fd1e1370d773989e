"""One W&B run for each cell, opened after its last timed forward; a tracker never fails a measurement."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from jobs.composition import config_digest, plain


def track(config: DictConfig, record: Path, frame: pd.DataFrame, summary: Mapping[str, Any]) -> None:
    """Log a finished record: configuration, summary numbers, rows as a table, the file as an artifact.

    Does nothing with ``tracking=none``. Any trouble becomes one warning and, online, a run on disk.
    """
    mode = config.tracking.mode.value
    if mode == "none":
        return
    try:
        _log(config, record, frame, summary, mode)
    except Exception as error:  # whatever a tracker raises is not the measurement's trouble
        told = " ".join(str(error).split())[:200] or type(error).__name__
        print(f"warning: W&B ({mode}): {told}; the record is complete without it", file=sys.stderr)
        if mode == "online":
            track(_offline(config), record, frame, summary)


def _offline(config: DictConfig) -> DictConfig:
    from jobs.schema import TrackingMode

    copy = config.copy()
    copy.tracking.mode = TrackingMode.offline
    return copy


def _log(config: DictConfig, record: Path, frame: pd.DataFrame, summary: Mapping[str, Any], mode: str) -> None:
    import wandb

    # results/<study>/wandb for a study's job, beside the record by hand.
    in_study = len(record.parts) > 2 and record.parts[0] == "results"
    folder = Path(*record.parts[:2]) / "wandb" if in_study else record.parent / "wandb"
    folder.mkdir(parents=True, exist_ok=True)
    cell = f"{config.experiment.name}/{config.setting.name}/{record.stem}/{config_digest(config)}"
    run = wandb.init(
        project=config.tracking.project,
        entity=config.tracking.entity,
        mode=mode,
        dir=str(folder),
        id=hashlib.sha256(cell.encode()).hexdigest()[:16],
        name=cell.rsplit("/", 1)[0],
        group=config.setting.name,
        job_type=config.experiment.name,
        config=plain(config),
        settings=wandb.Settings(init_timeout=15, x_disable_stats=True, silent=True),
    )
    try:
        run.log({"rows": wandb.Table(dataframe=frame.astype(object).where(frame.notna(), None))})
        run.summary.update(dict(summary))
        artifact = wandb.Artifact(f"{config.experiment.name}-{config.setting.name}-{record.stem}", type="record")
        artifact.add_file(str(record))
        run.log_artifact(artifact)
    finally:
        run.finish()
