"""Table 4: another target, LLaMA in the paper: speedup over plain decoding of every drafter there is for it."""

from __future__ import annotations

from . import comparison, tables
from .data import Study

WHAT = comparison.Comparison(
    name="table4",
    title="Speedup over autoregressive decoding with the heads of one target.",
    experiments={0: comparison.GREEDY},
    notes=[comparison.DEPLOYED],
)


def build(study: Study) -> tables.Table:
    return comparison.build(study, WHAT)
