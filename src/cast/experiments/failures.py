"""Rows without numbers, and which of them fail their cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

ENDED_AT_ONCE = "the output ended at its first token: nothing to time"
"""The reason of a prompt that gave nothing to time; its cell is measured by the other prompts."""


def may_pass(row: Mapping[str, Any]) -> bool:
    """Whether a row failed for what may be gone another time, as a shortage of memory."""
    return row.get("status") == "failed" and row["reason"] != ENDED_AT_ONCE


def failed_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Those of a record, without prompts that ended at once beside others that were measured."""
    failed = frame[frame["status"] == "failed"]
    if "method" not in frame:
        return failed
    cells = ["method", "budget"]
    measured = pd.MultiIndex.from_frame(frame.loc[frame["status"] == "measured", cells])
    has_numbers = pd.MultiIndex.from_frame(failed[cells]).isin(measured)
    return failed[~((failed["reason"] == ENDED_AT_ONCE) & has_numbers)]
