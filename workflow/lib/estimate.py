"""How long a study will take, from its configuration alone.

python -m workflow.lib.estimate embedded
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from jobs.composition import ConfigurationError, config_digest, recorded
from jobs.status import duration
from jobs.study import StudyJob, expand
from workflow.lib import options, run

# Checks, and converting the embedded target on first use.
PREFLIGHT_S = 30.0
# Statistics, figures and tables of one study.
RENDER_S = 60.0


def seconds(job: StudyJob) -> float:
    """Of one job: its time limit, where it has one, and its study's estimate for the rest."""
    return float(job.compose().get("time_limit_s") or 0.0) + job.estimate_s


def to_measure(jobs: Sequence[StudyJob]) -> list[StudyJob]:
    """Those without a record of their present configuration."""
    return [job for job in jobs if not _is_recorded(job)]


def _is_recorded(job: StudyJob) -> bool:
    told, config = recorded(Path(job.record)), job.compose()
    # What a job computes from records is told their paths only when it runs.
    if reads := told.get("config", {}).get("inputs"):
        config = OmegaConf.merge(config, {"inputs": reads})
    return told.get("config_digest") == config_digest(config)


def tell(study: str, jobs: Sequence[StudyJob]) -> str:
    """One line for the jobs that are still to be measured."""
    total = sum(seconds(job) for job in jobs) + RENDER_S + (PREFLIGHT_S if jobs else 0.0)
    counts = Counter(job.experiment for job in jobs)
    parts = ", ".join(f"{count} x {experiment}" for experiment, count in counts.items()) or "nothing to measure"
    return f"study {study}: {parts}, then figures and tables; about {duration(total)}"


def main(study: str, overrides: str = "", scale: str = "") -> int:
    """``overrides``: a JSON list of Hydra overrides, or nothing."""
    try:
        matrix = expand(study, options.strings("overrides", overrides or []), scale=scale or None)
        print(tell(matrix.name, to_measure(matrix.jobs)))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run(main)
