"""From a configuration to a target and its drafter, where the setting has one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from cast.errors import CastError, HubUnavailable
from cast.experiments.device import check_gpu
from jobs import schema
from jobs.values import drafts

if TYPE_CHECKING:
    from cast.models.head import DraftHead
    from cast.models.hybrid import HybridTarget
    from cast.models.pair import Pair

KINDS = {"dflash": "DFlash", "eagle3": "EAGLE-3", "dart": "DART"}
"""Method -> the kind of head it drafts with, in the words of `cast.models`."""


class Unavailable(Exception):
    """The cell cannot be measured here, through no mistake of the configuration; the record says why."""


def is_hub_id(source: str) -> bool:
    """True for ``owner/name`` where no such folder exists."""
    return source.count("/") == 1 and not Path(source).is_dir() and not source.startswith((".", "/"))


def load(config: DictConfig, kind: str) -> Pair:
    """Load the pair of a job on ``cpu`` or ``cuda``.

    Raises:
        Unavailable: the GPU is not the setting's, or the hub does not serve a checkpoint.
        CastError: a checkpoint is misnamed, missing, broken or does not fit.
    """
    with _on_the_settings_gpu(config, kind):
        if config.engine == schema.Engine.graph and kind != "cuda":
            raise CastError(f"engine=graph needs a CUDA device, and this job runs on the {kind}; use engine=eager")
        from cast.models import with_engine
        from cast.models.embedded import embedded_target
        from cast.models.loading import load_pair

        target, drafter = config.target.source, config.drafter.source
        pair = load_pair(
            embedded_target() if target == "embedded" else target,
            None if drafter == "none" else drafter,
            device=kind,
            dtype=config.setting.dtype.value,
            revision=config.target.revision,
            drafter_revision=config.drafter.revision,
        )
        if config.get("methods") is None or drafts(config):
            _check_kind(pair.drafter, "dflash", f"drafter={config.drafter.name}")
        return with_engine(pair, config.engine.value)


def load_baselines(config: DictConfig, kind: str, pair: Pair) -> dict[str, dict[str, Pair]]:
    """The target with each other head of the setting that the job's methods use: method to name to pair.

    Raises as `load` does.
    """
    with _on_the_settings_gpu(config, kind):
        from cast.models.loading import load_drafter

        found: dict[str, dict[str, Pair]] = {}
        for method, heads in baseline_heads(config).items():
            found[method] = {}
            for head in heads:
                options = {"device": pair.device, "dtype": pair.dtype, "revision": head.revision}
                loaded = load_drafter(head.source, **options, target=pair.target.config)
                _check_kind(loaded, method, f"baselines.{method}, {head.name},")
                found[method][head.name] = pair.with_drafter(loaded)
        return found


def _check_kind(head: DraftHead | None, method: str, place: str) -> None:
    if head is not None and head.kind != KINDS.get(method, head.kind):
        raise CastError(
            f"{place} is a head of kind {head.kind}, and {method} needs one of kind {KINDS[method]}; name one"
        )


def baseline_heads(config: DictConfig) -> dict[str, list[DictConfig]]:
    """The setting's other heads, by method, for those methods that the job runs."""
    methods = config.get("methods") or ()
    typed = OmegaConf.structured(schema.Drafter)  # Hydra leaves what a defaults list puts this deep untyped
    return {
        method: [OmegaConf.merge(typed, head) for head in heads.values()]
        for method, heads in config.baselines.items()
        if method in methods
    }


def one_pass_head(config: DictConfig) -> DictConfig:
    """The head whose marginals a score log holds: the setting's drafter for dflash, its first other one for dart.

    Raises:
        CastError: the job names several methods, or one that drafts in more than one pass.
    """
    if list(config.methods) not in (["dflash"], ["dart"]):
        raise CastError(f"methods is {list(config.methods)}; a score log is of one method, [dflash] or [dart]")
    return config.drafter if config.methods[0] == "dflash" else baseline_heads(config)["dart"][0]


def load_hybrid(config: DictConfig, kind: str) -> HybridTarget:
    """Load a target that is probed only, on ``cpu`` or ``cuda``; raises as `load` does."""
    with _on_the_settings_gpu(config, kind):
        from cast.models import hybrid

        return hybrid.load_hybrid(
            config.target.source, device=kind, dtype=config.setting.dtype.value, revision=config.target.revision
        )


@contextlib.contextmanager
def _on_the_settings_gpu(config: DictConfig, kind: str) -> Iterator[None]:
    try:
        check_gpu(kind, config.device.gpu_name)
    except CastError as error:
        raise Unavailable(str(error)) from error
    quiet_transformers()
    try:
        yield
    except HubUnavailable as error:
        raise Unavailable(str(error)) from error


def quiet_transformers() -> None:
    """No progress bars and no advice from transformers: a log holds what a job says itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def set_threads(threads: int) -> None:
    """The CPU threads of everything torch computes; call before anything else imports torch."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)
