"""Table 17: the width sweep of the mixture of experts in the paper, here of every setting: speedup and R."""

from __future__ import annotations

from . import comparison, tables
from .data import CHAIN, PLAIN, SWEEP, TREE, Study

WHAT = comparison.Comparison(
    name="table17",
    title="Width sweep: speedup over autoregressive decoding and R of the chain and of each tree.",
    experiments={0: (SWEEP, comparison.COMPARISON)},
    methods=(PLAIN, CHAIN, TREE),
    widths="all",
    notes=[comparison.SWEEP_FIRST],
)


def build(study: Study) -> tables.Table:
    return comparison.build(study, WHAT)
