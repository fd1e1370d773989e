"""A frame against its schema: the first violation, in one line that names column and row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pandera.pandas as pa

from cast.errors import CastError


def checked(frame: pd.DataFrame, schema: pa.DataFrameSchema, source: str) -> pd.DataFrame:
    """The rows in the types and the column order of ``schema``.

    Raises:
        CastError: naming ``source``, and column and row (counted from 0) of the first violation.
    """
    if frame.empty:
        raise CastError(f"{source}: no rows; {schema.name} records need at least one, failed or measured")
    frame = frame.reset_index(drop=True)
    try:
        valid = schema.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as errors:
        raise CastError(f"{source}: {_first_violation(errors.schema_errors, frame, schema)}") from errors
    return valid[list(schema.columns)]


def _first_violation(errors: list[pa.errors.SchemaError], frame: pd.DataFrame, schema: pa.DataFrameSchema) -> str:
    """The most basic problem in one line: columns, then types, then values."""
    reason = pa.errors.SchemaErrorReason
    basic_first = [reason.COLUMN_NOT_IN_SCHEMA, reason.COLUMN_NOT_IN_DATAFRAME, reason.DATATYPE_COERCION]
    error = min(
        errors,
        key=lambda e: basic_first.index(e.reason_code) if e.reason_code in basic_first else len(basic_first),
    )
    if error.reason_code is reason.COLUMN_NOT_IN_SCHEMA:
        return f"column {error.failure_cases} is unknown; {schema.name} records have no such column"
    if error.reason_code is reason.COLUMN_NOT_IN_DATAFRAME:
        return f"column {error.failure_cases} is missing; {schema.name} records need it in every row"
    if error.reason_code is reason.DATATYPE_COERCION:
        column = error.schema.name
        dtype = schema.columns[column].dtype
        row = next((i for i, value in enumerate(frame[column]) if not _fits(value, dtype)), 0)
        return f"column {column}, row {row}: {_shown(frame[column].iloc[row])} is not of type {dtype}"
    row = int(min(error.failure_cases["index"]))
    if error.reason_code is reason.DUPLICATES:
        row = int(np.flatnonzero(frame.duplicated(schema.unique))[0])
        where = ", ".join(f"{column}={frame[column].iloc[row]}" for column in schema.unique)
        return f"column {schema.unique[-1]}, row {row}: repeats an earlier row ({where})"
    column = (
        error.schema.name if error.schema is not schema and error.schema.name in schema.columns else error.check.name
    )
    if error.reason_code is reason.SERIES_CONTAINS_NULLS:
        return f"column {column}, row {row}: is empty; a value is needed"
    return f"column {column}, row {row}: {_shown(frame[column].iloc[row])} {_requirement(error.check)}"


def _requirement(check: pa.Check) -> str:
    return check.error if check.error.startswith("must") else f"violates {check.error}"


def _shown(value: object) -> str:
    if pd.isna(value):
        return "an empty value"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _fits(value: object, dtype: object) -> bool:
    try:
        pd.Series([value]).astype(str(dtype))
    except (TypeError, ValueError):
        return False
    return True
