"""Records on disk: Parquet files, checked where they are written and where they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from cast.errors import CastError
from cast.experiments.files import atomic_write
from cast.experiments.records.checking import checked


def write_records(frame: pd.DataFrame, path: str | os.PathLike[str], schema: pa.DataFrameSchema) -> None:
    """Check rows against ``schema`` and write them as Parquet, atomically, columns in the schema's order.

    Raises:
        CastError: naming column and row (counted from 0) of the first violation; nothing is written then.
            Also as `cast.experiments.files.atomic_write`.
    """
    rows = checked(frame, schema, source=str(path))
    with atomic_write(path) as temporary:
        rows.to_parquet(temporary, index=False)


def read_records(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], schema: pa.DataFrameSchema
) -> pd.DataFrame:
    """Read one or several Parquet files of records, each checked against ``schema``, into one frame.

    Raises:
        CastError: when no path is given, or a file is missing, damaged, empty or violates the schema.
    """
    files = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not files:
        raise CastError(f"no {schema.name} records to read; give at least one file")
    frames = [_read_parquet(file, schema.name) for file in files]
    if all(len(frame) and frame.dtypes.equals(frames[0].dtypes) for frame in frames):
        # A check takes its time by the column, whatever the rows. It knows no file, so a violation is looked for below.
        with contextlib.suppress(CastError):
            return checked(pd.concat(frames, ignore_index=True), schema, source=str(files[0].parent))
    return pd.concat(
        [checked(frame, schema, source=str(file)) for file, frame in zip(files, frames, strict=True)],
        ignore_index=True,
    )


def _read_parquet(path: Path, kind: str) -> pd.DataFrame:
    if not path.is_file():
        raise CastError(f"{path}: no such record file; run the job that writes it, or correct the path")
    try:
        return pd.read_parquet(path)
    except PermissionError as error:
        raise CastError(f"{path}: cannot be read ({error.strerror}); change its permissions") from error
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise CastError(
            f"{path}: not a readable Parquet file ({cause}); give another {kind} record, or run the job that writes "
            "this one again (in a study: make retry)"
        ) from error
