"""What a study will measure, before it does: the paper's measurements and the jobs that yield each, the time that
each device is needed for, and the weights to be downloaded.

python -m workflow.lib.plan paper
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jobs.composition import ConfigurationError
from jobs.status import duration
from jobs.study import StudyJob, StudyMatrix, expand, load_study
from workflow.lib import estimate, options, run

INVENTORY = [f"E{number:02d}" for number in range(1, 49)]
"""The paper's measurements."""


def jobs_of(study: StudyMatrix, name: str) -> dict[str, list[StudyJob]]:
    """Measurement of the paper -> the jobs that yield it.

    Raises:
        ConfigurationError: a part names no job of the study.
    """
    found: dict[str, list[StudyJob]] = {}
    for measurement, parts in load_study(name).inventory.items():
        found[measurement] = []
        for experiment, part in parts.items():
            jobs = [
                job
                for job in study.of(experiment)
                if job.setting in part.get("settings", study.settings)
                and job.domain in part.get("domains", study.domains)
            ]
            if not jobs or not set(part) <= {"settings", "domains"}:
                raise ConfigurationError(f"conf/study/{name}.yaml: {measurement} names no job of {experiment}")
            found[measurement] += jobs
    return found


def table(study: StudyMatrix, name: str) -> Iterator[str]:
    """One line for each measurement and experiment: settings and domains, or why there are none."""
    yielding, reasons = jobs_of(study, name), load_study(name).not_here
    for measurement in INVENTORY if yielding or reasons else []:
        jobs = yielding.get(measurement, [])
        if not jobs:
            yield f"{measurement}  -  {reasons.get(measurement, 'not in this study')}"
        for experiment in dict.fromkeys(job.experiment for job in jobs):
            chosen = [job for job in jobs if job.experiment == experiment]
            settings = ", ".join(dict.fromkeys(job.setting for job in chosen))
            domains = ", ".join(dict.fromkeys(job.domain for job in chosen))
            yield f"{measurement}  {experiment}: {settings}: {domains}"


def totals(study: StudyMatrix, jobs: Sequence[StudyJob], weights_gb: dict[str, float]) -> Iterator[str]:
    """One line for each device, and one for what comes from the hub."""
    by_device: dict[str, list[StudyJob]] = defaultdict(list)
    composed = {job: job.compose() for job in jobs}
    for job in jobs:
        by_device[composed[job].device.name].append(job)
    for device, own in by_device.items():
        yield f"{device}: {len(own)} jobs, about {duration(sum(estimate.seconds(job) for job in own))}"
    targets = dict.fromkeys(composed[job].target.name for job in jobs if "/" in composed[job].target.source)
    sizes = [weights_gb[target] for target in targets if target in weights_gb]
    if sizes:
        yield f"downloads: {len(sizes)} targets of {sum(sizes):.0f} GB altogether, and their drafters"


def main(name: str, overrides: str = "", scale: str = "") -> int:
    """``overrides``: a JSON list of Hydra overrides, or nothing; ``scale``: a name of ``conf/scale``, or nothing."""
    try:
        study = expand(name, options.strings("overrides", overrides or []), scale=scale or None)
        print("\n".join([*table(study, name), *totals(study, study.jobs, dict(load_study(name).weights_gb))]))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run(main)
