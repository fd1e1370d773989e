"""The keys of ``snakemake --config`` and what they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from jobs.composition import ConfigurationError

KNOWN = ("study", "scale", "gpus", "overrides")


@dataclass(frozen=True)
class Options:
    """``study``: the matrix. ``gpus``: devices whose settings are measured (None: all; empty: none, only
    render). ``overrides``: Hydra overrides that every job gets as they are. ``scale``: how the study shrinks,
    a name of ``conf/scale``."""

    study: str = "embedded"
    gpus: tuple[str, ...] | None = None
    overrides: tuple[str, ...] = ()
    scale: str | None = None


def read(config: Mapping[str, Any]) -> Options:
    """Check what came with ``--config``.

    Raises:
        ConfigurationError: an unknown key, or a value of another kind.
    """
    unknown = sorted(set(config) - set(KNOWN))
    if unknown:
        raise ConfigurationError(
            f"unknown --config key '{unknown[0]}'; known: {', '.join(KNOWN)} "
            f"(a job's own values go into overrides, as in 'overrides=[\"{unknown[0]}=...\"]')"
        )
    gpus = config.get("gpus")
    return Options(
        study=str(config.get("study", "embedded")),
        scale=str(config["scale"]) if config.get("scale") else None,
        gpus=None if gpus is None else strings("gpus", gpus),
        overrides=strings("overrides", config.get("overrides", [])),
    )


def strings(key: str, value: Any) -> tuple[str, ...]:
    """Items of a list come as strings; a list with quotes inside, of either kind, may come as one string."""
    if isinstance(value, str):
        try:
            value = yaml.safe_load(value) if value.lstrip().startswith("[") else [value]
        except yaml.YAMLError:
            value = [value]
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f'--config {key} is {value!r}; it must be a list, as in \'{key}=["a","b"]\'')
    return tuple(str(item) for item in value)
