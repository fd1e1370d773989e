"""Names and order of what draws of the samplers are told apart by (appendices C, D.2 and F)."""

from __future__ import annotations

import pandas as pd

from .data import PLAIN

SAMPLERS = {PLAIN: "AR (control)", "walk": "direct walk", "recursive": "recursive"}
LEVELS = {
    "first": "first token",
    "deeper": "token after the likeliest child",
    "sequence": "joint law of {depth} tokens",
}
DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def drawn(rows: pd.DataFrame) -> str:
    """What the rows of one level, precision and temperature drew; temperature 1, the paper's, is not named."""
    level, dtype, temperature = rows[["level", "dtype", "temperature"]].iloc[0]
    name = f"{LEVELS[level].format(depth=int(rows['depth'].max()))}, {DTYPES.get(dtype, dtype)}"
    return name if temperature == 1 else f"{name}, T = {temperature:g}"


def in_order(group: tuple[tuple[str, str], pd.DataFrame]) -> tuple[int, int]:
    """The place of a (level, precision) group of rows."""
    level, dtype = group[0]
    return list(LEVELS).index(level), list(DTYPES).index(dtype)
