"""Files that are either complete or absent: atomic writes, JSON beside records, checksums."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cast.errors import CastError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file so that ``path`` is only ever the old file or the complete new one.

    Yields a temporary path in the folder of ``path`` (created when missing) with the same suffix; write the
    content there. When the block ends normally the content is flushed to disk and renamed to ``path``; on any
    exception, Ctrl-C included, the temporary file is removed and ``path`` stays as it was.

    Raises:
        CastError: when the disk is full, the folder cannot be written, or ``path`` is one.
    """
    path = Path(path)
    if path.is_dir():
        raise CastError(f"{path} is a folder; name a file")
    # Same folder: a rename is atomic only within a file system. Same suffix: numpy appends a missing ".npz".
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, path) from error
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # not every file system can flush a folder
            _flush_to_disk(path.parent)
    except OSError as error:
        if error.errno in _DISK_FULL or error.filename == str(temporary):
            raise _explain(error, path) from error
        raise  # the block's own trouble with another file
    finally:
        temporary.unlink(missing_ok=True)  # already gone after the rename


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content`` as indented strict JSON, atomically; numpy values and paths are converted.

    Raises:
        CastError: when something in it has no JSON form (NaN and infinity have none), or as `atomic_write`.
    """
    try:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise CastError(f"{path}: content has no JSON form ({error}); write numbers, text, lists, dicts") from error
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        CastError: when the file is missing, unreadable or not JSON (the message names the line).
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CastError(
            f"{path}: line {error.lineno} is not JSON ({error.msg}); mend it, or run the job that writes it again"
        ) from error
    except UnicodeDecodeError as error:
        raise CastError(f"{path}: not a text file; give another, or run the job that writes it again") from error
    except OSError as error:
        raise CastError(f"{path}: cannot be read ({error.strerror}); run the job that writes it") from error


def sha256_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits.

    Raises:
        CastError: when the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CastError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: OSError, path: Path) -> CastError:
    if error.errno in _DISK_FULL:
        return CastError(f"disk full while writing {path}; free space and run again, finished files are kept")
    return CastError(f"{path}: cannot be written ({error.strerror or error}); choose a writable place")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} object")
