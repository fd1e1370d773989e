"""Table 1: every method's speedup over plain decoding and R, greedy and at temperature 1."""

from __future__ import annotations

from . import comparison, tables
from .data import Study

WHAT = comparison.Comparison(
    name="table1",
    title="Speedup over autoregressive decoding and R, greedy and sampled.",
    experiments={0: comparison.GREEDY, 1: comparison.DRAWN},
    notes=[comparison.DEPLOYED],
)


def build(study: Study) -> tables.Table:
    return comparison.build(study, WHAT)
