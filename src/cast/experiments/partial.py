"""What a job has measured so far, kept beside its output so that a second run continues.

``<output>.partial`` is a text file. Its first line holds the digest of what is measured (configuration and
code) and the claim of the process that measures; each further line is one finished unit (a prompt, a packed
count) with its rows; of one that was measured again the last line counts. Killing the process at any moment
loses at most the unit in progress.

* Another digest: the rows belong to another measurement and are discarded, with a note.
* A time limit is no part of the digest: under another limit the rows count. What it left stays beside the finished
  record, so that a higher one goes on; the same limit once more means to measure anew.
* A living claimant: the second process is refused by name, so two never write one record. A lock tells, and on a
  network disk, which a lock may not cross, a heartbeat.
* A torn last line, from a kill or a full disk, is cut off.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cast.errors import CastError

# A claim from another host counts as alive while its heartbeat is younger than this.
STALE_AFTER_S = 600.0
# Rare, and one small write: hardly anything runs beside a timed pass.
BEAT_EVERY_S = STALE_AFTER_S / 5
_HEADER_BYTES = 512  # fixed, so that the heartbeat is rewritten in place


@dataclass(frozen=True)
class Unit:
    """One finished unit: its ``key``, its content, the session that measured it and the seconds it took."""

    key: str
    content: Any
    session: str
    elapsed_s: float


@dataclass
class Claim:
    """Who measures: host, process and its job on a cluster; ``heartbeat`` in seconds since the epoch, 0 once ended."""

    host: str
    pid: int
    slurm_job_id: str
    heartbeat: float

    def __str__(self) -> str:
        job = f", Slurm job {self.slurm_job_id}" if self.slurm_job_id else ""
        return f"process {self.pid} on {self.host}{job}"


class Header(NamedTuple):
    """The first line: whose rows follow, who measures them, and the time limit at which a record was made of them."""

    digest: str | None
    claim: Claim | None
    finished_at: float | None


NEW = Header(None, None, None)


class Partial:
    """The checkpoint of one job. Use as a context manager; ``discard()`` it once the record is written.

    Attributes:
        session: id of this process's part of the measurement, for the rows it adds.
        units: what earlier sessions finished, in the order in which they did.

    Args:
        output: the job's record; the checkpoint lies beside it.
        digest: of whatever must stay the same for earlier units to count.
        note: told, in one line, what happened to an earlier checkpoint.
        limit_s: the time limit of this run; None for none.

    Raises:
        CastError: another living process holds the checkpoint, or the disk refuses it.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        digest: str,
        note: Callable[[str], None] = print,
        limit_s: float | None = None,
    ) -> None:
        self.path = Path(f"{os.fspath(output)}.partial")
        self.session = secrets.token_hex(4)
        self.units: list[Unit] = []
        self._digest = digest
        self._limit_s = limit_s
        self._finished_at: float | None = None  # the limit at which a record was written from this checkpoint
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Held open as long as the job lives: the lock goes with it.
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        except OSError as error:
            raise _told(error, self.path) from error
        try:
            self._take(note)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Partial:
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file.closed or self._holds_a_unit():
            self._close()
        else:
            self.discard()  # nothing to continue from

    @property
    def done(self) -> set[str]:
        """Keys of the finished units."""
        return {unit.key for unit in self.units}

    @property
    def sessions(self) -> list[str]:
        """The sessions that finished units, this one last."""
        return list(dict.fromkeys([*(unit.session for unit in self.units), self.session]))

    def append(self, key: str, content: Any, elapsed_s: float) -> None:
        """Add a finished unit: JSON values, and numpy arrays as values of a dict or by themselves."""
        unit = Unit(key, content, self.session, elapsed_s)
        line = json.dumps(asdict(unit), default=_encode) + "\n"
        try:
            self._file.seek(0, io.SEEK_END)
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _told(error, self.path) from error
        self.units = _last_of_each([*self.units, unit])

    def restart(self) -> None:
        """Forget what earlier sessions finished."""
        self.units.clear()
        self._file.truncate(_HEADER_BYTES)

    def finish(self) -> None:
        """Keep the checkpoint beside its record for a run under another time limit."""
        self._finished_at = self._limit_s

    def discard(self) -> None:
        """Remove the checkpoint: its rows are in the record now."""
        self.path.unlink(missing_ok=True)
        self._close()

    def _holds_a_unit(self) -> bool:
        """Whether there is something to continue from: also a unit written whole, but interrupted before it counted."""
        with contextlib.suppress(OSError):  # a disk that refused a unit holds no whole one
            return bool(self.units or self._read()[1])
        return False

    def _beat(self) -> None:
        """Keep the claim alive, however long a unit takes."""
        while not self._ended.wait(BEAT_EVERY_S):
            with contextlib.suppress(OSError):  # the next unit's write tells
                self._write_header(time.time())

    def _close(self) -> None:
        if self._file.closed:
            return
        self._ended.set()
        if self._heart.is_alive():
            self._heart.join()  # before its file is another's
        with contextlib.suppress(OSError):
            self._write_header(heartbeat=0.0)  # another host need not wait
        # A write that the disk refused has been reported with its path; closing would try it once more.
        with contextlib.suppress(OSError):
            self._file.close()

    def _take(self, note: Callable[[str], None]) -> None:
        (earlier_digest, claim, finished_at), units, end = self._read()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CastError(
                f"{self.path} is being written by {claim or 'another process'}; wait for it or end it"
            ) from None
        if claim is not None and _alive_elsewhere(claim):
            raise CastError(f"{self.path} is being written by {claim}; wait for it or end it")
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise CastError(f"{self.path} was finished by another process just now; run again to see its record")
        if earlier_digest == self._digest and finished_at is not None and finished_at == self._limit_s:
            self._file.truncate(0)  # its record was deleted in order to measure again
        elif earlier_digest == self._digest:
            self.units = units
            self._file.truncate(end)
            if units:
                note(f"continuing {self.path}: {len(units)} done before")
        else:
            self._file.truncate(0)
            if earlier_digest is not None and units:
                note(f"discarding {self.path}: {len(units)} done under another configuration, code, input or machine")
        try:
            self._write_header(time.time())
        except OSError as error:
            raise _told(error, self.path) from error

    def _read(self) -> tuple[Header, list[Unit], int]:
        """Its first line, finished units, and the length of the intact part; (`NEW`, [], 0) if new."""
        self._file.seek(0)
        header = _header(self._file.read(_HEADER_BYTES))
        if header.claim is None:
            return NEW, [], 0
        units, end = [], _HEADER_BYTES
        for line in self._file:
            try:
                unit = Unit(**json.loads(line, object_hook=_decode))
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            units.append(unit)
            end += len(line)
        return header, _last_of_each(units), end

    def _write_header(self, heartbeat: float) -> None:
        claim = Claim(socket.gethostname(), os.getpid(), os.environ.get("SLURM_JOB_ID", ""), heartbeat)
        text = json.dumps({"digest": self._digest, "claim": asdict(claim), "finished_at": self._finished_at})
        # Past the buffered file and its position, where a unit may be written just now.
        os.pwrite(self._file.fileno(), text.encode().ljust(_HEADER_BYTES - 1) + b"\n", 0)


def _last_of_each(units: list[Unit]) -> list[Unit]:
    """One for each key, in the place of the first."""
    return list({unit.key: unit for unit in units}.values())


def claimant(path: str | os.PathLike[str]) -> str:
    """The living process that writes this checkpoint, in words; empty when there is none.

    Raises:
        CastError: the file cannot be opened.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            claim = _header(file.read(_HEADER_BYTES)).claim
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return str(claim or "another process")
    except OSError as error:
        raise CastError(f"cannot read {path} ({error.strerror}); check the folder's permissions") from error
    return str(claim) if claim and _alive_elsewhere(claim) else ""


def _header(line: bytes) -> Header:
    """A checkpoint's first line; `NEW` when it has no such line."""
    try:
        first = json.loads(line)
        return Header(first["digest"], Claim(**first["claim"]), first.get("finished_at"))
    except (ValueError, KeyError, TypeError):
        return NEW


def _alive_elsewhere(claim: Claim) -> bool:
    """A lock may not reach another host's process on a network disk; its heartbeat does.

    A claim by this very Slurm job is not: its node failed, Slurm put it back in the queue, and here it runs again.
    """
    requeued = claim.slurm_job_id and claim.slurm_job_id == os.environ.get("SLURM_JOB_ID")
    return claim.host != socket.gethostname() and not requeued and 0 <= time.time() - claim.heartbeat < STALE_AFTER_S


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {
            "__array__": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode(),
            "dtype": value.dtype.str,
            "shape": value.shape,
        }
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")


def _decode(value: dict[str, Any]) -> Any:
    if "__array__" not in value:
        return value
    raw = base64.b64decode(value["__array__"])
    return np.frombuffer(raw, dtype=value["dtype"]).reshape(value["shape"]).copy()


def _told(error: OSError, path: Path) -> CastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CastError(f"disk full while writing {path}; free some space and run again, what is done is kept")
    return CastError(f"cannot write {path} ({error.strerror}); choose a place that can be written")
