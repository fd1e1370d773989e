"""A study as a list of jobs: which experiment runs on which setting and domain, with which values.

The matrix exists once, in ``conf/study/<name>.yaml``. The pipeline's rules and the checks before a study
both read it here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs import composition, schema, study_schema
from jobs.composition import CONF, NAME, ConfigurationError
from jobs.machine import bf16_is_emulated
from jobs.messages import one_line


@dataclass(frozen=True)
class StudyJob:
    """One measuring job of a study."""

    study: str
    experiment: str
    setting: str
    domain: str
    overrides: tuple[str, ...]
    estimate_s: float

    @property
    def record(self) -> str:
        """Its record file, relative to the repository."""
        if self.experiment == "width":
            return f"results/{self.study}/width/{self.setting}.json"
        return f"results/{self.study}/{self.experiment}/{self.setting}/{self.domain}.parquet"

    def compose(self, conf: Path = CONF) -> DictConfig:
        """Its configuration: one object for all who ask, so read only."""
        return _composed(self, conf)

    @property
    def arguments(self) -> list[str]:
        """The Hydra command line of this job, without its output."""
        return composition.job_arguments(self.experiment, self.setting, self.composed_domain, self.overrides)

    @property
    def composed_domain(self) -> str | None:
        """The probe packs random tokens: it has a place in the results but no prompt set."""
        return None if self.domain == "random" else self.domain

    @property
    def label(self) -> str:
        return f"{self.experiment} {self.setting}/{self.domain}"


@functools.cache
def _composed(job: StudyJob, conf: Path) -> DictConfig:
    config = composition.compose_job(job.experiment, job.setting, job.composed_domain, job.overrides, conf)
    OmegaConf.set_readonly(config, True)
    return config


@dataclass(frozen=True)
class StudyMatrix:
    """All jobs of one study on this machine. ``artefacts``: the figures and tables to render, None for all."""

    name: str
    about: str
    jobs: tuple[StudyJob, ...]
    user_overrides: tuple[str, ...]
    artefacts: tuple[str, ...] | None = None

    def of(self, experiment: str) -> list[StudyJob]:
        return [job for job in self.jobs if job.experiment == experiment]

    def job(self, experiment: str, setting: str, domain: str | None = None) -> StudyJob:
        for job in self.of(experiment):
            if job.setting == setting and domain in (None, job.domain):
                return job
        raise ConfigurationError(f"study {self.name} has no job {experiment} {setting}/{domain}")

    def sources(self, job: StudyJob, composed: DictConfig | None = None) -> dict[str, StudyJob]:
        """``inputs.<key>`` of a job -> the job of this study whose record it reads."""
        reads = (composed or job.compose()).experiment.reads
        return {key: self.job(source.experiment, source.setting, source.domain) for key, source in reads.items()}

    @property
    def experiments(self) -> list[str]:
        return list(dict.fromkeys(job.experiment for job in self.jobs))

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(job.setting for job in self.jobs))

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(job.domain for job in self.jobs))


def load_study(name: str, conf: Path = CONF) -> study_schema.Study:
    """Read and check ``conf/study/<name>.yaml``."""
    return _load("study", name, study_schema.Study, conf)


def load_scale(name: str, conf: Path = CONF) -> study_schema.Scale:
    """Read and check ``conf/scale/<name>.yaml``."""
    return _load("scale", name, study_schema.Scale, conf)


def _load(group: str, name: str, node: type, conf: Path) -> DictConfig:
    path = conf / group / f"{name}.yaml"
    if not NAME.fullmatch(name) or not path.is_file():
        raise ConfigurationError(f"unknown {group} '{name}'; known: {', '.join(composition.options(group, conf))}")
    place = f"conf/{group}/{path.name}"
    try:
        content = OmegaConf.merge(OmegaConf.structured(node), composition.read_yaml(path))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{place}: {one_line(error)}") from None
    if missing := OmegaConf.missing_keys(content):
        raise ConfigurationError(f"{place}: no value for {min(missing)}")
    if content.name != name:
        raise ConfigurationError(f"{place} calls itself {content.name}; its name must be that of the file, {name}")
    return content


def expand(name: str, overrides: Sequence[str] = (), conf: Path = CONF, scale: str | None = None) -> StudyMatrix:
    """The jobs of a study on this machine; ``overrides`` go to every job that knows their key.

    ``scale``: a name of ``conf/scale``; the shrunken study has a name and results of its own.

    Raises:
        ConfigurationError: a file of the study is wrong, or an override is of what a study gives its jobs.
    """
    study = load_study(name, conf)
    composition.check_study_overrides(overrides)
    jobs = list(_jobs(study, tuple(overrides), conf))
    if not jobs:
        raise ConfigurationError(f"study {name} has no jobs; give it experiments, and each some settings and domains")
    for job in {job.setting: job for job in jobs}.values():
        composition.check_names(composition.choices(job.experiment, job.setting, job.composed_domain, conf), conf)
    for job in jobs:
        composition.check_names({"experiment": job.experiment, "domain": job.composed_domain}, conf)
    if scale:
        shrunk = load_scale(scale, conf)
        if f"{name}-{scale}" in composition.options("study", conf):
            raise ConfigurationError(
                f"study {name} with scale={scale} would share its results with study {name}-{scale}"
            )
        jobs = [_scaled(job, shrunk, tuple(overrides), conf) for job in jobs]
    return StudyMatrix(
        name=f"{name}-{scale}" if scale else name,
        about=study.about,
        jobs=tuple(jobs),
        user_overrides=tuple(overrides),
        artefacts=None if study.artefacts is None else tuple(study.artefacts),
    )


def _jobs(study: DictConfig, overrides: tuple[str, ...], conf: Path) -> Iterator[StudyJob]:
    replaced = dict(study.where_bf16_is_emulated) if bf16_is_emulated() else {}
    known = [name for name in composition.options("experiment", conf) if name in schema.JOB_SCHEMAS]
    for experiment, entry in study.experiments.items():
        _check_name("experiment", experiment, known, study.name)
        extra = tuple(composition.applicable(overrides, experiment))
        settings = [replaced.get(setting, setting) for setting in entry.settings]
        for setting in entry.by_setting:
            _check_name("setting", setting, [*entry.settings, *settings], f"{study.name}, {experiment}.by_setting")
        domains = [*entry.domains, *(domain for own in entry.by_setting.values() for domain in own.domains or ())]
        for domain in entry.by_domain:
            _check_name("domain", domain, domains, f"{study.name}, {experiment}.by_domain")
        for setting in settings:
            _check_name("setting", setting, composition.options("setting", conf), study.name)
            apart = entry.by_setting.get(setting) or study_schema.SettingEntry()
            for domain in apart.domains or entry.domains:
                _check_name("domain", domain, [*composition.options("domain", conf), "random"], study.name)
                given = (entry.overrides, entry.by_domain.get(domain, {}), apart.overrides)
                values = {key: value for part in given for key, value in _flat(part, replaced)}
                estimate_s = float(apart.estimate_s or entry.estimate_s)
                if not 0 <= estimate_s < math.inf:
                    raise ConfigurationError(f"study {study.name}: estimate_s of {experiment} is {estimate_s}, no time")
                yield StudyJob(
                    study=study.name,
                    experiment=experiment,
                    setting=setting,
                    domain=domain,
                    overrides=(*_strings(values), *extra),
                    estimate_s=estimate_s,
                )


def _scaled(job: StudyJob, scale: DictConfig, overrides: tuple[str, ...], conf: Path) -> StudyJob:
    """The same job with other checkpoints, prompts and counts; the user's own overrides stay last."""
    values = {
        **_replaced_sources(composition.plain(job.compose(conf)), scale.sources),
        **{f"domain.{key}": value for key, value in scale.domains.get(job.domain, {}).items()},
    }
    shared = composition.applicable(_strings(scale.overrides), job.experiment)
    own = scale.experiments.get(job.experiment, {})
    extra = composition.applicable(overrides, job.experiment)
    return dataclasses.replace(
        job,
        study=f"{job.study}-{scale.name}",
        overrides=(*job.overrides, *_strings(values), *shared, *_strings(own), *extra),
        estimate_s=float(scale.estimate_s),
    )


def _replaced_sources(config: Mapping[str, Any], sources: Mapping[str, str], path: str = "") -> dict[str, Any]:
    """Overrides for every ``source`` of a configuration, at any depth, that has a replacement."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _replaced_sources(value, sources, f"{path}{key}.")
        elif key == "source" and value in sources:
            found |= {f"{path}source": sources[value], f"{path}revision": None}
    return found


def _strings(values: Mapping[str, Any]) -> list[str]:
    plain = OmegaConf.to_container(OmegaConf.create(dict(values)))
    return [composition.as_override(key, value) for key, value in plain.items()]


def _flat(overrides: Mapping[str, Any], replaced: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for key, value in OmegaConf.to_container(OmegaConf.create(overrides)).items():
        is_setting = key.split(".")[-1] == "setting"
        yield key, replaced.get(value, value) if is_setting else value


def _check_name(group: str, name: str, known: list[str], study: str) -> None:
    if name not in known:
        raise ConfigurationError(f"study {study}: unknown {group} '{name}'; known: {', '.join(known)}")
