"""Compose a job's configuration without starting Hydra's application: the pipeline needs hundreds of them.

`compose_job` gives what ``hydra.compose`` gives for the same overrides (a test holds this for every job of
the shipped studies) but reads each file once and keeps what jobs share, some ten times faster. Whatever it
cannot do falls back to Hydra, so the words of an error are Hydra's, folded to one line.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs import schema
from jobs.messages import one_line

CONF = Path(__file__).resolve().parents[2] / "conf"

NAME = re.compile(r"[a-z][a-z0-9_.-]*")
"""Of everything that paths and records are named by."""

# Groups whose files say their own name.
_NAMED = ("experiment", "setting", "target", "drafter", "domain", "device", "site", "study", "scale")
# What a study gives each of its jobs.
_GIVEN = ("experiment", "setting", "domain", "out")
_GLOBAL = re.compile(r"^#\s*@package:?\s+_global_\s*$", re.MULTILINE)

# What cannot change a measurement: left out of digests and of Snakemake's params.
NOT_MEASURED = ("out", "site", "tracking")
_DESCRIPTIVE = {"experiment": ("about", "yields", "script"), "domain": ("license",)}


class ConfigurationError(Exception):
    """A wrong configuration, told in one line."""


def compose_with_hydra(config_name: str, overrides: Sequence[str], conf: Path = CONF) -> DictConfig:
    """``hydra.compose`` with errors folded to one line; also inside a running Hydra application."""
    schema.register()
    application = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            return compose(config_name, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(one_line(error)) from None
    finally:
        GlobalHydra.instance().hydra = application


def compose_job(
    experiment: str,
    setting: str,
    domain: str | None = None,
    overrides: Sequence[str] = (),
    conf: Path = CONF,
) -> DictConfig:
    """The configuration of one measuring job; ``overrides`` are Hydra's command-line strings."""
    try:
        return _merge(experiment, setting, domain, tuple(overrides), conf)
    except Exception:
        return compose_with_hydra("config", job_arguments(experiment, setting, domain, overrides), conf)


def job_arguments(experiment: str, setting: str, domain: str | None, overrides: Sequence[str] = ()) -> list[str]:
    """The command line that composes the same configuration by hand."""
    chosen = [f"experiment={experiment}", f"setting={setting}"]
    if domain is not None:
        chosen.append(f"domain={domain}")
    return [*chosen, *overrides]


def as_override(key: str, value: Any) -> str:
    """One value as a Hydra override."""
    return f"{key}={json.dumps(value, separators=(',', ':'))}"


def override_list(overrides: Sequence[str]) -> str:
    """Overrides as one value that Hydra reads as a list of strings."""
    return json.dumps(list(overrides), separators=(",", ":"))


def plain(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration as dicts, lists, numbers and strings."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False, enum_to_str=True)


def measured_part(config: DictConfig) -> dict[str, Any]:
    """What a measurement depends on: the resolved configuration without bookkeeping and descriptions."""
    measured = {key: value for key, value in plain(config).items() if key not in NOT_MEASURED}
    heads = measured.pop("baselines", {})
    used = {method: heads[method] for method in measured.get("methods") or () if method in heads}
    measured |= {"baselines": used} if used else {}
    for group, keys in _DESCRIPTIVE.items():
        for key in keys if measured.get(group) else ():
            measured[group].pop(key, None)
    return measured


def config_digest(config: DictConfig, leaving_out: Iterable[str] = ()) -> str:
    """SHA-256 of the measured part, 16 hexadecimal digits."""
    measured = {key: value for key, value in measured_part(config).items() if key not in leaving_out}
    text = json.dumps(measured, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recorded(record: Path) -> dict[str, Any]:
    """The provenance of a record; empty where there is no record, or none that can be read."""
    try:
        told = json.loads(record.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if record.exists() and isinstance(told, dict) else {}


def options(group: str, conf: Path = CONF) -> list[str]:
    """The names a group offers."""
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def applicable(overrides: Sequence[str], experiment: str) -> list[str]:
    """Those overrides that this experiment knows.

    A study passes the same overrides to every job; ``budgets=[15,31]`` concerns sweeps and predictions, not
    the probe. An override that no experiment knows is kept everywhere, so that it fails by name.
    """
    known = schema.JOB_SCHEMAS[experiment].__dataclass_fields__
    anywhere = set().union(*(job.__dataclass_fields__ for job in schema.JOB_SCHEMAS.values()))
    return [text for text, key in _root_keys(overrides) if key in known or key not in anywhere]


def bookkeeping(overrides: Sequence[str]) -> list[str]:
    """Those overrides that cannot change a measurement."""
    return [text for text, key in _root_keys(overrides) if key in NOT_MEASURED]


def choices(experiment: str, setting: str, domain: str | None, conf: Path = CONF) -> dict[str, str | None]:
    """Group -> the file that a job takes of it, as far as this is known without Hydra."""
    try:
        return _choices(experiment, setting, domain, conf)
    except Exception:
        return {"experiment": experiment, "setting": setting, "domain": domain}


def check_names(chosen: Mapping[str, str | None], conf: Path = CONF) -> None:
    """Refuse a file that calls itself by another name: a record would lie under the one and speak of the other.

    Args:
        chosen: group to the name of its file, as `choices` or Hydra gives them.

    Raises:
        ConfigurationError: naming the file.
    """
    for group, name in chosen.items():
        folder = group.partition("@")[0].removeprefix("/")
        path = conf / folder / f"{name}.yaml"
        if folder not in _NAMED or not path.is_file():
            continue
        place = f"conf/{folder}/{name}.yaml"
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"{place}: a name is of a-z, 0-9, '_', '.' and '-', a letter first; rename the file"
            )
        content = _load(path)
        own = OmegaConf.select(content, "name" if folder not in ("experiment", "setting") else f"{folder}.name")
        if own != name:
            raise ConfigurationError(f"{place} calls itself {own}; its name must be that of the file, {name}")
        if folder == "setting" and not _GLOBAL.search(path.read_text(encoding="utf-8")):
            raise ConfigurationError(f"{place} lacks its first line; it must be '# @package _global_'")


def check_study_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides of what a study itself gives each job.

    Raises:
        ConfigurationError: naming the override.
    """
    for text, override in zip(overrides, _parse(tuple(overrides)), strict=True):
        if override.key_or_group in _GIVEN:
            raise ConfigurationError(
                f"override {text}: a study gives each job its own {override.key_or_group}; write a study "
                "(conf/study), or run the script by hand"
            )


def _root_keys(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Each override with the group or first key it changes."""
    parsed = _parse(tuple(overrides))
    return [
        (text, re.split(r"[./@]", override.key_or_group)[0]) for text, override in zip(overrides, parsed, strict=True)
    ]


@functools.cache
def _parse(overrides: tuple[str, ...]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigurationError(one_line(error)) from None


def read_yaml(path: Path) -> DictConfig:
    """A configuration file as it stands.

    Raises:
        ConfigurationError: it cannot be read, or holds no keys and values.
    """
    try:
        content = OmegaConf.load(path)
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {one_line(error)}") from None
    if not isinstance(content, DictConfig):
        raise ConfigurationError(f"{path}: holds no keys and values")
    return content


_load = functools.cache(read_yaml)


@functools.cache
def _body(path: Path) -> DictConfig:
    return OmegaConf.masked_copy(_load(path), [key for key in _load(path) if key not in ("defaults", "hydra")])


def _lineage(path: Path) -> list[Path]:
    """An experiment's file after those it is a variation of."""
    parents = [
        entry for entry in _load(path).defaults if isinstance(entry, str) and entry != "_self_" and entry[0] != "/"
    ]
    return [*(file for name in parents for file in _lineage(path.with_name(f"{name}.yaml"))), path]


def _choices(experiment: str, setting: str, domain: str | None, conf: Path) -> dict[str, str | None]:
    """Group -> chosen name, in the order of the root's defaults list, the setting's replacements applied."""
    chosen: dict[str, str | None] = {}
    for entry in _load(conf / "config.yaml").defaults:
        if isinstance(entry, DictConfig):
            ((group, name),) = entry.items()
            if not group.startswith("override "):
                chosen[group] = name
    chosen.update(experiment=experiment, setting=setting, domain=domain or chosen["domain"])
    for entry in _load(conf / "setting" / f"{setting}.yaml").defaults:
        ((group, name),) = entry.items()
        chosen[group.removeprefix("override /")] = name
    return chosen


# Jobs share what follows as bytes: reading a pickle is several times faster than OmegaConf's copy.
@functools.cache
def _experiment(experiment: str, conf: Path) -> bytes:
    config = OmegaConf.structured(schema.JOB_SCHEMAS[experiment])
    for path in _lineage(conf / "experiment" / f"{experiment}.yaml"):
        config.merge_with(_body(path))
    return pickle.dumps(config)


@functools.cache
def _base(experiment: str, chosen: tuple[tuple[str, str | None], ...], conf: Path) -> bytes:
    """Everything but the value overrides, in the order in which Hydra merges it."""
    config = pickle.loads(_experiment(experiment, conf))
    for group, name in chosen:
        if group == "experiment" or name is None:
            continue
        folder, _, package = group.partition("@")  # a setting's further heads: /drafter@baselines.<method>.<name>
        body = _body(conf / folder.removeprefix("/") / f"{name}.yaml")
        for key in reversed((package or folder).split(".")) if group != "setting" else ():
            body = {key: body}
        config.merge_with(body)
    config.merge_with(_body(conf / "config.yaml"))
    return pickle.dumps(config)


def _merge(experiment: str, setting: str, domain: str | None, overrides: tuple[str, ...], conf: Path) -> DictConfig:
    parsed = _parse(overrides)
    chosen = _choices(experiment, setting, domain, conf)
    values = []
    for override in parsed:
        if override.type != OverrideType.CHANGE or override.package is not None:
            raise ConfigurationError(f"{override.input_line}: left to Hydra")
        if override.key_or_group in chosen:
            chosen[override.key_or_group] = override.value()
        else:
            values.append(override)
    config = pickle.loads(_base(experiment, tuple(chosen.items()), conf))
    OmegaConf.set_struct(config, True)
    for override in values:
        OmegaConf.update(config, override.key_or_group, override.value())
    return config
