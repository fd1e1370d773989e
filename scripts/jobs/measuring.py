"""What measuring jobs share: the claim on device and output, checkpoints, identity columns, the record."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cast.errors import CastError
from cast.experiments import device
from cast.experiments.failures import failed_rows, may_pass
from cast.experiments.files import write_json
from cast.experiments.memory import shortage
from cast.experiments.partial import Partial
from cast.experiments.provenance import Provenance, code_version
from cast.experiments.records import read_records, write_records
from jobs import inputs, pairs
from jobs.composition import config_digest, options, plain, recorded
from jobs.pairs import Unavailable
from jobs.status import Status
from jobs.values import check_values

# Of a folder named by overrides, in bytes; file systems allow 255.
_LONGEST_NAME = 120

Spec = TypeVar("Spec")
Rows = list[dict[str, Any]]


def require(config: DictConfig, schema: type | tuple[type, ...], script: str) -> None:
    """Refuse another script's experiment.

    Raises:
        CastError: ``config`` was composed for an experiment of another kind.
    """
    if not issubclass(OmegaConf.get_type(config), schema):
        raise CastError(
            f"scripts/{script}.py does not measure {config.experiment.name}; "
            f"drop experiment={config.experiment.name} or call the script that does"
        )


def require_domain(config: DictConfig) -> None:
    """Refuse a job without prompts."""
    if config.domain is None:
        raise CastError(f"no domain given; add domain=<name>, one of {', '.join(options('domain'))}")


def check_source(key: str, path: str, found: pd.Series, wanted: str, what: str) -> None:
    """Refuse a record of another setting, drafter or domain as the input of a job that measures nothing itself.

    Raises:
        CastError: ``found``, that column of the record, holds other values than ``wanted``.
    """
    others = sorted(set(found) - {wanted})
    if others:
        raise CastError(
            f"inputs.{key}={path} was measured for {what} {', '.join(others)}, but this job is for {wanted}; "
            f"give the record of {what} {wanted}"
        )


def output_path(config: DictConfig, script: str, suffix: str = ".parquet") -> Path:
    """Where the record goes: ``out``, or a folder named by the overrides.

    Raises:
        CastError: ``out`` is a folder, no such file as the record is, or a file that the job reads.
    """
    if config.out:
        path = Path(config.out)
        if path.is_dir():
            raise CastError(f"out={path} is a folder; name a file, such as {config.out}/records{suffix}")
        if path.suffix != suffix:
            raise CastError(f"out={path} is no name for this record; give one that ends in {suffix}")
        for key, source in config.get("inputs", {}).items():
            if Path(source).resolve().with_suffix("") == path.resolve().with_suffix(""):
                raise CastError(
                    f"out={path} would overwrite inputs.{key}={source} or its provenance; name another file"
                )
        return path
    overrides = (HydraConfig.get().job.override_dirname or "default").replace("/", "_")
    named = os.fsencode(overrides)
    if len(named) > _LONGEST_NAME:
        overrides = f"{named[:_LONGEST_NAME].decode(errors='ignore')}-{hashlib.sha256(named).hexdigest()[:8]}"
    return Path("outputs") / script / overrides / f"records{suffix}"


def check_free(config: DictConfig, output: Path, *, computed: bool = False) -> None:
    """Refuse to write over a record, unless of this very job and with failed cells, which are then tried again.

    Args:
        computed: from records alone, in seconds: made anew for the same configuration.

    Raises:
        CastError: there is such a record.
    """
    if output.exists() and not (_of_this(config, output, computed) and (computed or _has_failed(output))):
        raise CastError(
            f"{output} is a record of another job, or of other weights or prompts; delete it, or name another file "
            "with out="
        )


def _of_this(config: DictConfig, record: Path, computed: bool = False) -> bool:
    """Whether a record is of this configuration, and measured with these weights and prompts."""
    told = recorded(record)
    if told.get("config_digest") != config_digest(config):
        return False
    contents = (inputs.checkpoint_digests(config), inputs.prompt_digest(config))
    return computed or (told.get("checkpoints"), told.get("prompts_sha256")) == contents


def _has_failed(record: Path) -> bool:
    try:
        return not failed_rows(pd.read_parquet(record)).empty
    except (OSError, ValueError):
        return True  # no record that anything reads


def spec_from(config: DictConfig, spec: type[Spec], **values: Any) -> Spec:
    """Fill a protocol's spec from the configuration's keys of the same names; ``values`` come first."""
    known = plain(config) | values
    names = [field.name for field in dataclasses.fields(spec) if field.name in known]
    return spec(**{name: tuple(known[name]) if isinstance(known[name], list) else known[name] for name in names})


def _lacking(partial: Partial) -> dict[str, Rows]:
    found = {}
    for unit in partial.units:
        rows = unit.content if isinstance(unit.content, list) else []
        failed = [row for row in rows if may_pass(row)]
        found |= {unit.key: failed} if failed else {}
    return found


class Measurement:
    """One job between its claim and its record; made by `measurement`.

    Attributes:
        lacking: earlier sessions' units with rows that failed, and those rows: to be tried again.
        done: keys of their other units.
        cut_short: whether a time limit left units for another run.
    """

    def __init__(self, config: DictConfig, output: Path, kind: str, partial: Partial, provenance: Provenance) -> None:
        self.config = config
        self.output = output
        self.kind = kind
        self.partial = partial
        self.lacking = _lacking(partial)
        self.done = partial.done - self.lacking.keys()
        self.cut_short = False
        self._provenance = provenance

    @property
    def label(self) -> str:
        return f"{self.config.experiment.name} {self.config.setting.name}/{self.domain}"

    @property
    def domain(self) -> str:
        return self.config.domain.name if self.config.domain is not None else "random"

    @property
    def time_left_s(self) -> float | None:
        """Of the job's time limit, after what earlier sessions used for what is done."""
        limit = self.config.get("time_limit_s")
        used = sum(unit.elapsed_s for unit in self.partial.units if unit.key in self.done)
        return None if limit is None else max(limit - used, 0.0)

    @property
    def identity(self) -> dict[str, Any]:
        """The columns every row has."""
        return {
            "experiment": self.config.experiment.name,
            "setting": self.config.setting.name,
            "device": device.describe(self.kind, self.config.device.threads)["name"],
            "target": self.config.target.name,
            "drafter": self.config.drafter.name,
            "domain": self.domain,
            "dtype": self.config.setting.dtype.value,
            "engine": self.config.engine.value,
            "threads": self.config.device.threads,
            "host": socket.gethostname(),
        }

    def collect(
        self, units: Iterable[tuple[str, Any]], total: int, size: Callable[[Any], int] = lambda content: 1
    ) -> None:
        """Take finished units from a protocol into the checkpoint, telling how far it is.

        Args:
            size: how much of the total a unit's content is.
        """
        done = sum(size(unit.content) for unit in self.partial.units if unit.key in self.done)
        with Status(self.label, total, self.time_left_s, begun=done) as status:
            start = time.monotonic()
            for key, content in units:
                now = time.monotonic()
                self.partial.append(key, content, now - start)
                start = now
                done += size(content)
                status.advance(done)
        self.cut_short = self.config.get("time_limit_s") is not None and done < total

    def rows(self) -> Rows:
        """All rows of the checkpoint, of every session, with their identity."""
        identity = {**self.identity, "status": "measured", "reason": ""}
        return [{**identity, **row, "session": unit.session} for unit in self.partial.units for row in unit.content]

    def failed(self, rows: Rows, reason: str) -> Rows:
        """Rows that say why this cell has no numbers; their device is the setting's, which may not be here."""
        identity = {**self.identity, "device": self.config.device.name, "session": self.partial.session}
        return [{**identity, **row, "status": "failed", "reason": reason} for row in rows]

    def provenance(self, records: int, **extra: Any) -> dict[str, Any]:
        earlier = sum(u.elapsed_s for u in self.partial.units if u.session != self.partial.session)
        return self._provenance.close(
            records=records,
            sessions=self.partial.sessions,
            earlier_s=earlier,
            code_version=code_version(),
            checkpoints=inputs.checkpoint_digests(self.config),
            prompts_sha256=inputs.prompt_digest(self.config),
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            slurm_job_id=os.environ.get("SLURM_JOB_ID", ""),
            **extra,
        )


def resume_digest(config: DictConfig, kind: str) -> str:
    """What must stay for a job to continue: configuration but for the time limit, code, weights, prompts, machine."""
    what = {
        "config": config_digest(config, leaving_out=("time_limit_s",)),
        "code": code_version(),
        "checkpoints": inputs.checkpoint_digests(config),
        "prompts": inputs.prompt_digest(config),
        "kind": kind,
        "device": device.describe(kind, config.device.threads)["name"],
        "host": socket.gethostname(),
        "threads": config.device.threads,
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def measurement(config: DictConfig, output: Path, *, resumable: bool = True) -> Iterator[Measurement]:
    """Claim a free output and the device, set threads, and hand out the job's `Measurement`.

    Args:
        resumable: False for a measurement that means one moment of the machine, as a latency curve does;
            what an earlier session left is then thrown away.
    """
    check_values(config)
    kind = device.resolve_kind(config.device.kind.value)
    device.check_threads(config.device.threads)
    digest = config_digest(config)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with Partial(output, resume_digest(config, kind), note, config.get("time_limit_s")) as partial:
        check_free(config, output)  # under the claim: of two jobs that start together the second finds a record
        if not resumable:
            partial.restart()
        with (
            device.exclusive(kind, note, config.device.gpu_name)
            if config.device.exclusive
            else contextlib.nullcontext()
        ):
            pairs.set_threads(config.device.threads)
            provenance = Provenance(plain(config), digest, kind, config.device.threads, config.seed)
            job = Measurement(config, output, kind, partial, provenance)
            note(f"{job.label}: starts")
            yield job


def record(
    config: DictConfig,
    output: Path,
    schema: Any,
    work: Callable[[Measurement], None],
    cells: Callable[[set[str]], Rows],
    *,
    rows: Callable[[Measurement], Rows] | None = None,
    told: Callable[[pd.DataFrame], dict[str, Any]] | None = None,
    resumable: bool = True,
) -> pd.DataFrame:
    """One job from its claim to its record, which it returns; the record of the same job that lies there finished.

    Args:
        work: measures what is missing into the job's checkpoint.
        cells: given the keys of the finished units, what the configuration alone knows of the other rows; they stand
            in the record as failed when the job cannot be measured here.
        rows: the record's rows once everything is measured, where they are not those of the checkpoint.
        told: further entries of the provenance, from the record.
        resumable: as of `measurement`. Such a job that fails, or has failed rows, keeps its finished units, so that a
            retry continues; the record shows them beside the failed rows unless its rows need all of them. One that
            its time limit cut short keeps them for a run under a higher one.
    """
    if _of_this(config, output) and not _has_failed(output):
        print(f"records: {output}, measured before; delete it to measure again", flush=True)
        return read_records(output, schema)
    with measurement(config, output, resumable=resumable) as job:
        reason = guarded(lambda: work(job))
        if reason:
            kept = job.rows() if resumable and rows is None else []
            found = kept + job.failed(cells(job.partial.done), reason)
            print(f"failed: {reason}")
        else:
            found = (rows or Measurement.rows)(job)
        frame = framed(found, schema)
        write(output, frame, schema, job.provenance(len(frame), **(told(frame) if told else {})))
        if not resumable or not (reason or len(failed_rows(frame))):
            if job.cut_short:
                job.partial.finish()
            else:
                job.partial.discard()
    return frame


def guarded(work: Callable[[], None]) -> str:
    """Do the work; the reason when this cell cannot be measured here, else an empty string.

    Expected: memory that does not suffice, a checkpoint that the hub does not serve, another GPU than the
    setting's. Everything else is an error.
    """
    try:
        work()
    except Unavailable as error:
        return str(error)
    except (MemoryError, RuntimeError) as error:
        reason = shortage(error)
        if not reason:
            raise
        return reason
    return ""


def framed(rows: Rows, schema: Any) -> pd.DataFrame:
    """Rows as a frame with every column of ``schema``; one that it does not know stays, to be refused."""
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*frame.columns, *(name for name in schema.columns if name not in frame)])


def write(output: Path, frame: pd.DataFrame, schema: Any, provenance: dict[str, Any]) -> None:
    """Provenance first, record last: where there is a record, it is complete."""
    write_json(output.with_suffix(".json"), provenance)
    write_records(frame, output, schema)
    print(f"records: {output}", flush=True)
