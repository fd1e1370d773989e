"""How long a study will take, from its configuration alone.

PYTHONPATH=scripts python -m workflow.lib.estimate embedded
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jobs.status import duration
from jobs.study import StudyJob, expand

# Checks, and converting the embedded target on first use.
PREFLIGHT_S = 30.0
# Statistics, figures and tables of one study.
RENDER_S = 60.0


def seconds(job: StudyJob) -> float:
    """Of one job: its time limit, where it has one, and its study's estimate for the rest."""
    return float(job.compose().get("time_limit_s") or 0.0) + job.estimate_s


def tell(study: str, jobs: Sequence[StudyJob]) -> str:
    """One line for the jobs that are still to be measured."""
    total = sum(seconds(job) for job in jobs) + RENDER_S + (PREFLIGHT_S if jobs else 0.0)
    counts = Counter(job.experiment for job in jobs)
    parts = (
        ", ".join(f"{count} x {experiment}" for experiment, count in counts.items()) or "nothing to measure"
    )
    return f"study {study}: {parts}, then figures and tables; about {duration(total)}"


def main(study: str) -> None:
    print(tell(study, [job for job in expand(study).jobs if not Path(job.record).exists()]))


if __name__ == "__main__":
    main(sys.argv[1])
