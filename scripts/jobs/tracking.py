"""One W&B run for each cell, opened after its last timed forward; a tracker never fails a measurement.

W&B's own switch, the environment's WANDB_MODE=disabled, works as ``tracking=none`` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from cast.experiments.files import sha256_file
from jobs.composition import config_digest, plain


def track(config: DictConfig, record: Path, frame: pd.DataFrame | None, summary: Mapping[str, Any]) -> None:
    """Log a finished record: configuration, summary numbers, rows as a table, the file as an artifact.

    Logs nothing with ``tracking=none``. Any trouble becomes one warning and, online, a run on disk. A job by hand,
    which was told no ``out``, prints the summary.
    """
    if config.out is None and summary:
        print("\n".join(f"{name}: {value:.4g}" for name, value in summary.items()))
    guarded(config, lambda chosen: _log(chosen, record, frame, summary))


def track_study(config: DictConfig, name: str, results: Path, figures: Sequence[Path], tables: Sequence[Path]) -> None:
    """Log the figures (PNG) and tables (CSV) of a study as one run."""

    def log(chosen: DictConfig) -> None:
        import wandb

        with _run(chosen, results / "wandb", f"{name}/render", name, "render", {"study": name}) as run:
            run.log({path.stem: wandb.Image(str(path)) for path in figures})
            run.log({path.stem: wandb.Table(dataframe=_plain_cells(pd.read_csv(path))) for path in tables})

    guarded(config, log)


def guarded(config: DictConfig, log: Callable[[DictConfig], None]) -> None:
    """Track with ``log``, as far as ``config.tracking`` asks for it; whatever goes wrong is one warning."""
    mode = config.tracking.mode.value
    if mode == "none" or os.environ.get("WANDB_MODE") == "disabled":
        return
    try:
        log(config)
    except Exception as error:  # whatever a tracker raises is not the measurement's trouble
        told = " ".join(str(error).split())[:200] or type(error).__name__
        print(f"warning: W&B ({mode}): {told}; the results are complete without it", file=sys.stderr)
        if mode == "online":
            guarded(_offline(config), log)


def _offline(config: DictConfig) -> DictConfig:
    from jobs.schema import TrackingMode

    copy = config.copy()
    copy.tracking.mode = TrackingMode.offline
    return copy


def _log(config: DictConfig, record: Path, frame: pd.DataFrame | None, summary: Mapping[str, Any]) -> None:
    import wandb

    # results/<study>/wandb for a study's job, beside the record by hand.
    in_study = len(record.parts) > 2 and record.parts[0] == "results"
    folder = Path(*record.parts[:2]) / "wandb" if in_study else record.parent / "wandb"
    cell = f"{config.experiment.name}/{config.setting.name}/{record.stem}"
    # Offline, an artifact cannot be used: its inputs are named in the configuration, and a sync keeps them.
    inputs = {path: sha256_file(path) for path in config.get("inputs", {}).values()}
    content = plain(config) | {"input_digests": inputs}
    run_id = f"{cell}/{config_digest(config)}"
    with _run(config, folder, run_id, config.setting.name, config.experiment.name, content) as run:
        if frame is not None:
            run.log({"rows": wandb.Table(dataframe=_plain_cells(frame))})
        run.summary.update(dict(summary))
        artifact = wandb.Artifact(cell.replace("/", "-"), type="record")
        artifact.add_file(str(record))
        run.log_artifact(artifact)


@contextlib.contextmanager
def _run(config: DictConfig, folder: Path, key: str, group: str, job_type: str, content: dict) -> Iterator[Any]:
    """An open run; the same ``key`` is the same run, also after a resume."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=config.tracking.project,
        entity=config.tracking.entity,
        mode=config.tracking.mode.value,
        dir=str(folder),
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        name=key.rsplit("/", 1)[0],
        group=group,
        job_type=job_type,
        config=content,
        settings=wandb.Settings(init_timeout=15, x_disable_stats=True, silent=True),
    )
    try:
        yield run
    finally:
        run.finish()


def _plain_cells(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(object).where(frame.notna(), None)
