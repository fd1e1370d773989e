"""Check a study before anything is measured, and convert the embedded target once.

    python scripts/preflight.py study=embedded

Composes every job, reads every prompt set, opens every checkpoint kept on disk, and checks cores and disk.
The first problem is one line and exit code 2; a checkpoint of the hub is looked for by the job that needs
it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from omegaconf import DictConfig

from cast.errors import CastError
from cast.experiments import device
from cast.experiments.files import write_json
from cast.experiments.prompts import load_prompts
from jobs import composition, measuring, pairs
from jobs.entry import run
from jobs.study import StudyJob, expand

# Records, checkpoints of jobs and the report of one study, with room.
_DISK_BYTES = 200 * 2**20


def preflight(config: DictConfig) -> None:
    study = expand(config.study.name, list(config.overrides), scale=config.scale and config.scale.name)
    composed = [(job, job.compose()) for job in study.jobs]
    for job, job_config in composed:
        _check_job(job, job_config)
    free = shutil.disk_usage(".").free
    if free < _DISK_BYTES:
        raise CastError(f"{free >> 20} MiB free here; a study needs {_DISK_BYTES >> 20} MiB")
    checkpoints = {
        source: _check_checkpoint(source)
        for source in {c.target.source for _, c in composed}
        | {c.drafter.source for _, c in composed}
        | {head.source for _, c in composed for heads in pairs.baseline_heads(c).values() for head in heads}
    }
    output = Path(config.out or f"outputs/preflight/{study.name}.json")
    write_json(
        output,
        {
            "study": study.name,
            "jobs": {job.record: composition.config_digest(job_config) for job, job_config in composed},
            "checkpoints": dict(sorted(checkpoints.items())),
        },
    )
    print(f"{study.name}: {len(composed)} jobs checked")


def _check_job(job: StudyJob, config: DictConfig) -> None:
    measuring.check_values(config)
    device.check_threads(config.device.threads)
    # Prompt sets of the hub are read by their jobs: a check must not need the network.
    if config.domain is not None and (config.domain.source != "hub" or config.data.root):
        load_prompts(config.domain, data_root=config.data.root)


def _check_checkpoint(source: str) -> str:
    """What was found, in words; for the embedded pair this converts the target on first use."""
    if source == "embedded":
        from cast.models.embedded import embedded_target

        pairs.quiet_transformers()
        embedded_target()
        return "converted"
    if pairs.is_hub_id(source):
        return "from the hub, when its job runs"
    if source.startswith("random:"):
        return "drawn from a seed"
    if source == "none":
        return "none needed"
    if not Path(source, "config.json").is_file():
        raise CastError(f"checkpoint {source} is missing or has no config.json; give a folder or a hub id")
    return "on disk"


if __name__ == "__main__":
    run(preflight, config_name="whole_study")
