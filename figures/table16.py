"""Table 16: the full width sweep of LLaMA in the paper, here of every setting: speedup and R at each width."""

from __future__ import annotations

from . import comparison, tables
from .data import SWEEP, Study

WHAT = comparison.Comparison(
    name="table16",
    title="Width sweep against every baseline: speedup over autoregressive decoding and R.",
    experiments={0: (SWEEP, comparison.COMPARISON)},
    widths="all",
    notes=[comparison.SWEEP_FIRST],
)


def build(study: Study) -> tables.Table:
    return comparison.build(study, WHAT)
