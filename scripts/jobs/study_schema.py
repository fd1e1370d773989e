"""The types of a study, ``conf/study/<name>.yaml``, and of how it shrinks, ``conf/scale/<name>.yaml``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from jobs.schema import Tracking


@dataclass
class SettingEntry:
    """What one setting of a study has to itself: its domains (null: the entry's), values and estimate."""

    domains: list[str] | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    estimate_s: float | None = None


@dataclass
class StudyEntry:
    """One experiment of a study: its settings and domains, values that differ from the experiment file, and
    the expected length of one job in seconds (for jobs with a time limit: on top of that limit). A setting's
    values come before a domain's, and those before the entry's."""

    settings: list[str] = MISSING
    domains: list[str] = MISSING
    overrides: dict[str, Any] = field(default_factory=dict)
    by_domain: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_setting: dict[str, SettingEntry] = field(default_factory=dict)
    estimate_s: float = MISSING


@dataclass
class Study:
    """A matrix of experiments x settings x domains.

    ``where_bf16_is_emulated`` replaces settings there. ``inventory``: the paper's measurements (E01-E48) and, by
    experiment, the ``settings`` and ``domains`` that yield each (all, where not given); ``not_here``: those without
    jobs, and why. ``weights_gb``: size of each target's download. ``artefacts``: the figures and tables to render, by
    the names of their modules in ``figures/``; null for all of them.
    """

    name: str = MISSING
    about: str = MISSING
    experiments: dict[str, StudyEntry] = MISSING
    artefacts: list[str] | None = None
    where_bf16_is_emulated: dict[str, str] = field(default_factory=dict)
    inventory: dict[str, dict[str, dict[str, list[str]]]] = field(default_factory=dict)
    not_here: dict[str, str] = field(default_factory=dict)
    weights_gb: dict[str, float] = field(default_factory=dict)


@dataclass
class Scale:
    """How a study shrinks, ``conf/scale/<name>.yaml``.

    ``sources``: checkpoint -> what takes its place. ``domains``: values that replace a domain's. ``overrides``:
    values of every job that knows their key; ``experiments``: further ones of single experiments.
    """

    name: str = MISSING
    about: str = MISSING
    sources: dict[str, str] = field(default_factory=dict)
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    estimate_s: float = MISSING


@dataclass
class WholeStudy:
    """What concerns a study as a whole. ``scale`` and ``overrides`` are those of every measuring job."""

    study: Study = MISSING
    scale: Scale | None = None
    tracking: Tracking = MISSING
    overrides: list[str] = field(default_factory=list)
    out: str | None = None
