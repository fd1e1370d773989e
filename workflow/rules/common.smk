import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
# The tree itself comes first: `scripts` for the composition the jobs use, the root for `workflow` and `figures`.
for folder in (ROOT, ROOT / "scripts"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

# Every job is a process of its own: without bytecode each of them compiles its libraries anew (the Makefile says so too).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from cast.errors import CastError
from cast.experiments.device import resolve_kind
from figures import artefacts
from figures.inputs import READS, SUMMARISED
from jobs import composition
from jobs.composition import ConfigurationError
from jobs.inputs import checkpoint_digests as digests_of_checkpoints
from jobs.inputs import prompt_digest
from jobs.study import expand
from jobs.values import check_values
from workflow.lib import estimate, options


def refuse(message):
    """End with one line; Snakemake's own error adds where in this file it was raised, which helps nobody."""
    sys.exit(f"error: {message}")


def escape(text):
    """For a shell directive, in which braces are Snakemake's."""
    return text.replace("{", "{{").replace("}", "}}")


PYTHON = escape(shlex.quote(sys.executable))

try:
    OPTIONS = options.read(config)
    MATRIX = expand(OPTIONS.study, OPTIONS.overrides, scale=OPTIONS.scale)
    COMPOSED = {job: job.compose() for job in MATRIX.jobs}
    for composed in COMPOSED.values():
        check_values(composed)
    SOURCES = {job: MATRIX.sources(job, COMPOSED[job]) for job in MATRIX.jobs}
except (CastError, ConfigurationError) as error:
    refuse(error)

# Software of every rule; used only when Snakemake is asked to deploy it.
SOFTWARE = "../envs/cast.yaml"

# Overrides of tracking and site reach the commands without being params: they measure nothing again.
BOOKKEEPING_OVERRIDES = composition.bookkeeping(OPTIONS.overrides)
BOOKKEEPING = escape(shlex.join(BOOKKEEPING_OVERRIDES))

STUDY = MATRIX.name
RESULTS = f"results/{STUDY}"
# The same choice for another call of Snakemake, and for the checks.
CHOICE = [f"study={OPTIONS.study}", *([f"scale={OPTIONS.scale}"] if OPTIONS.scale else [])]
PREFLIGHT_ARGUMENTS = [*CHOICE, f"overrides={composition.override_list(OPTIONS.overrides)}"]
DEVICES = {composed.device.name for composed in COMPOSED.values()}
if not set(OPTIONS.gpus or ()) <= DEVICES:
    refuse(f"gpus={list(OPTIONS.gpus)}; the devices of study {STUDY}: {', '.join(sorted(DEVICES))}")
SELECTED_JOBS = [
    job for job in MATRIX.jobs if OPTIONS.gpus is None or COMPOSED[job].device.name in OPTIONS.gpus
]


def within_reach(jobs):
    """Without those that read a record which no job of this run makes and which does not lie here."""
    kept = [
        job
        for job in jobs
        if all(source in jobs or Path(source.record).exists() for source in SOURCES[job].values())
    ]
    return kept if kept == jobs else within_reach(kept)


MEASURED_JOBS = within_reach(SELECTED_JOBS)
LEFT_OUT = [job for job in SELECTED_JOBS if job not in MEASURED_JOBS]
MEASURED_SETTINGS = {job.setting for job in MEASURED_JOBS}
MEASURED_DOMAINS = {job.domain for job in MEASURED_JOBS}


def record_paths():
    """Records of this study: those to be measured now, and all that lie there, other clusters' among them."""
    planned = {job.record for job in MATRIX.jobs}
    found = []
    for experiment in MATRIX.experiments:
        pattern = "width/*.json" if experiment == "width" else f"{experiment}/*/*.parquet"
        for path in sorted(Path(RESULTS).glob(pattern)):
            setting, domain = (path.stem, "") if experiment == "width" else (path.parent.name, path.stem)
            # What the rules below would take for theirs without a job for it, e.g. of a domain since dropped.
            stray = setting in MEASURED_SETTINGS and (experiment == "width" or domain in MEASURED_DOMAINS)
            if str(path) in planned or not stray:
                found.append(str(path))
    return list(dict.fromkeys([*(job.record for job in MEASURED_JOBS), *found]))


RECORDS = record_paths()


# What the study's settings, domains and predicted widths follow from.
BACKBONE = ("width_sweep", "latency_probe", "width")


def records_of(*experiments):
    """Those of `RECORDS` that are of these experiments."""
    folders = tuple(f"{RESULTS}/{experiment}/" for experiment in experiments)
    return [path for path in RECORDS if path.startswith(folders)]


# Experiments with records, of which several artefacts show the same cells.
SHARED_CELLS = [experiment for experiment in SUMMARISED if records_of(experiment)]


def read_by(artefact):
    """The records an artefact is drawn from; every one where none is of the backbone, which then is what they name."""
    if artefact not in READS or not records_of(*BACKBONE):
        return RECORDS
    return records_of(*BACKBONE, *READS[artefact])


def cells_read_by(artefact):
    """The summaries an artefact reads beside that of the sweep."""
    return [
        f"{RESULTS}/summary/{experiment}.parquet"
        for experiment in SHARED_CELLS
        if experiment in READS.get(artefact, SHARED_CELLS)
    ]


def of_job(experiment, value):
    """An input function giving ``value`` of the job that the wildcards name."""
    return lambda wildcards: value(MATRIX.job(experiment, wildcards.setting, wildcards.get("domain")))


def outputs(experiment):
    """The record of a job, and the provenance beside a record of rows."""
    if experiment == "width":
        return {"record": f"{RESULTS}/width/{{setting}}.json"}
    record = f"{RESULTS}/{experiment}/{{setting}}/{{domain}}"
    return {"record": f"{record}.parquet", "provenance": f"{record}.json"}


def place(experiment):
    """Of the logs of a job."""
    return f"{experiment}/{{setting}}" if experiment == "width" else f"{experiment}/{{setting}}/{{domain}}"


def configuration(job):
    """What a job measures, as a plain dict: Snakemake runs the job again when this changes, and only then."""
    return composition.measured_part(COMPOSED[job])


def arguments(job):
    """Its Hydra command line, quoted for the shell, as far as it concerns what is measured."""
    sources = [f"inputs.{key}={source.record}" for key, source in SOURCES[job].items()]
    own = [text for text in job.arguments if text not in BOOKKEEPING_OVERRIDES]
    return shlex.join([*own, *sources])


def weights(job):
    """The checkpoints kept on disk that it loads."""
    return list(digests_of_checkpoints(COMPOSED[job])) if COMPOSED[job].experiment.loads_models else []


def contents(job):
    """SHA-256 of weights and prompts: new content is another measurement, a touched file is not."""
    composed = COMPOSED[job]
    if not composed.experiment.loads_models:
        return {}
    return {"prompts": prompt_digest(composed), **digests_of_checkpoints(composed)}


def sources(job):
    """The records it reads."""
    return [source.record for source in SOURCES[job].values()]


def threads_of(job):
    return COMPOSED[job].device.threads


def devices_of(job):
    """Nothing runs beside a timed job, not even what is computed from records."""
    return int(COMPOSED[job].device.exclusive)


def gpus_of(job):
    """GPUs to ask a cluster for."""
    composed = COMPOSED[job]
    return int(composed.experiment.loads_models and resolve_kind(composed.device.kind.value) == "cuda")


def minutes_of(job):
    """A time limit for a cluster: three times the estimate, and half an hour at least."""
    return max(30, round(estimate.seconds(job) / 20))


def site_resource(key):
    """What the site calls the job's device, for the cluster's executor; unset on a single machine."""

    def resolve(job):
        composed = COMPOSED[job]
        if key == "gpu_model" and not gpus_of(job):
            return None
        names = composed.site.devices.get(composed.device.name) or {}
        return "--exclusive" if key == "exclusive" and names.get(key) else names.get(key) or None

    return resolve


# Resource of the Slurm executor -> key of conf/site.
SITE_RESOURCES = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "constraint": "constraint",
    "gpu_model": "gpu_model",
    "slurm_extra": "exclusive",
}


SWEPT = MATRIX.of("width_sweep")
EXPECTED = shlex.join(
    [
        "--settings",
        *dict.fromkeys(job.setting for job in SWEPT),
        "--domains",
        *dict.fromkeys(job.domain for job in SWEPT),
    ]
)


def without_suffix(output_name):
    """The path an artefact's module adds its suffixes to."""
    return lambda wildcards, output: str(Path(output[output_name]).with_suffix(""))


# One command for every artefact: a shell directive is evaluated when its job runs, long after the loops over names.
RENDER = (
    f"{PYTHON} -m figures {{params.module}} --records {RESULTS} --cells {{input.cells}} --out {{params.out}} "
    f"{escape(EXPECTED)} > {{log}} 2>&1"
)


def any_of(names):
    return "|".join(re.escape(name) for name in sorted(set(names))) or "(?!)"


# Of what is measured in this run. A record of another device is a file that lies there: read, never made.
wildcard_constraints:
    setting=any_of(MEASURED_SETTINGS),
    domain=any_of(MEASURED_DOMAINS),


# The checks come before the first job and before anything is submitted. They are no rule: whatever depends on a rule
# that runs again is not looked at for changes of its own (seen with 9.27: a changed budget ran the checks and nothing
# else), and what depends on its missing output runs again unchanged.
onstart:
    for job in LEFT_OUT:
        print(f"{job.label}: left out, a record that it reads is of another device and not here", file=sys.stderr)
    if MEASURED_JOBS:
        print(estimate.tell(STUDY, estimate.to_measure(MEASURED_JOBS)), file=sys.stderr, flush=True)
        checks = [sys.executable, str(ROOT / "scripts/preflight.py"), *PREFLIGHT_ARGUMENTS]
        if subprocess.run([*checks, f"out={RESULTS}/preflight.json"], check=False).returncode:
            refuse("nothing was started: the checks of the study failed, see above")


# A failed job takes nothing from the others: what was measured is rendered.
onerror:
    if MEASURED_JOBS and record_paths():
        command = [sys.executable, "-m", "snakemake", "--snakefile", workflow.main_snakefile, "--nolock", "--quiet", "all"]
        subprocess.run([*command, "--config", *CHOICE, "gpus=[]"], check=False)
