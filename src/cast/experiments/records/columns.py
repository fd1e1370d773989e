"""What the schemas are made of: identity columns, column types, and the checks that they share.

A row whose ``status`` is ``"failed"`` gives the reason and leaves every measured column empty; a ``"measured"`` row
fills them all, except those that a schema names as optional. Units are in the column names.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pandera.pandas as pa

METHODS = ("autoregressive", "dflash", "cast", "eagle3", "dart", "ngram")
ENGINES = ("eager", "graph")
STATUSES = ("measured", "failed")
SAMPLERS = ("greedy", "walk", "recursive")

# "Int64" and "boolean" hold missing values and refuse to round 1.5 or to read None as True.
INT, FLOAT, BOOL, TEXT = "Int64", "float64", "boolean", "string"

not_blank = pa.Check.str_length(min_value=1)
at_least_0 = pa.Check.ge(0)
at_least_1 = pa.Check.ge(1)
above_0 = pa.Check.gt(0)
is_share = pa.Check.in_range(0, 1)


def given(dtype: str, *checks: pa.Check, nullable: bool = False) -> pa.Column:
    """A column that the configuration fills, in failed rows too."""
    return pa.Column(dtype, list(checks), nullable=nullable)


def measured(dtype: str, *checks: pa.Check) -> pa.Column:
    """A column that is empty in failed rows; `follows_status` sees to it."""
    return given(dtype, *checks, nullable=True)


def row_check(column: str, holds, message: str) -> pa.Check:
    """A check over whole rows; ``holds(frame)`` is a boolean Series, ``column`` is the one to blame."""
    return pa.Check(holds, name=column, error=message, ignore_na=False)


def where_known(condition: pd.Series) -> pd.Series:
    """A comparison with an empty operand is not a violation: `follows_status` looks after emptiness."""
    return condition.fillna(True).astype(bool)


def follows_status(measured: Iterable[str], optional: Iterable[str] = ()) -> list[pa.Check]:
    """The rule that every schema has: measured rows fill these columns, failed rows leave them empty and say why."""
    checks = [
        row_check(
            column,
            lambda frame, column=column: frame[column].notna() == (frame["status"] == "measured"),
            "must be filled in measured rows and empty in failed rows",
        )
        for column in measured
    ]
    checks += [
        row_check(
            column,
            lambda frame, column=column: frame[column].isna() | (frame["status"] == "measured"),
            "must be empty in failed rows",
        )
        for column in optional
    ]
    checks.append(
        row_check(
            "reason",
            lambda frame: (frame["reason"] != "") == (frame["status"] == "failed"),
            "must say why in failed rows and be empty in measured rows",
        )
    )
    return checks


def filled_where_measured(column: str) -> pa.Check:
    """For a number that may be known before the job failed: no row is measured without it."""
    return row_check(
        column,
        lambda frame: frame[column].notna() | (frame["status"] == "failed"),
        "must be filled in measured rows",
    )


def only_where_traced(*columns: str) -> list[pa.Check]:
    """For the times of a round's parts, which only a traced row has."""
    return [
        row_check(
            column,
            lambda frame, column=column: frame[column].isna() | frame["traced"],
            "must be empty unless the row is traced",
        )
        for column in columns
    ]


def schema(name: str, columns: dict[str, pa.Column], unique: list[str], checks: list[pa.Check]) -> pa.DataFrameSchema:
    """The columns every record has, then these; no two rows agree in all of ``unique``."""
    return pa.DataFrameSchema(_IDENTITY | columns, name=name, strict=True, coerce=True, unique=unique, checks=checks)


_IDENTITY = {
    "experiment": given(TEXT, not_blank),
    "setting": given(TEXT, not_blank),
    "device": given(TEXT),
    "target": given(TEXT),
    "drafter": given(TEXT),
    "domain": given(TEXT),
    "dtype": given(TEXT),
    "engine": given(TEXT, pa.Check.isin(ENGINES)),
    "threads": given(INT, at_least_1),
    "host": given(TEXT),
    "session": given(TEXT),
    "status": given(TEXT, pa.Check.isin(STATUSES)),
    "reason": given(TEXT),
}
