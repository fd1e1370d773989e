"""Paired goodput ratios of serving runs.

Requests of one run share their rounds, so a run is the unit that is independent, not a request. The runs of one repeat
serve the same requests by every variant, in turns: the logarithm of their goodput ratio is one paired observation.
Repeats are few, too few to resample (the paper has four); the ratio of two variants is the geometric mean over
repeats with a 95% Student interval of the mean log ratio. The paper's own statistic, the median, stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from cast.experiments.bootstrap import CONFIDENCE

MIN_REPEATS = 3  # with fewer the interval says nothing; there is none then
STATIC = ("chain", "fixed_wide", "uniform")
"""Policies that give every request the same number of nodes, whatever its scores."""

Variant = tuple[str, str]  # verifier, policy


@dataclass(frozen=True)
class PairedRatio:
    """One quantity of a variant over another's, on the same requests; as a gain, 0.1 where it is 10% more.

    Attributes:
        gain: geometric mean of the ratios, minus one; NaN where no repeat has both.
        low, high: 95% interval; NaN below `MIN_REPEATS` repeats.
        median, least, most: of the repeats' own gains.
        repeats: paired ones.
    """

    gain: float
    low: float
    high: float
    median: float
    least: float
    most: float
    repeats: int


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> PairedRatio:
    """The ratio of paired positive numbers, one of each repeat in both."""
    logs = np.log(np.asarray(numerators, float) / np.asarray(denominators, float))
    if not len(logs):
        return PairedRatio(*[math.nan] * 6, repeats=0)
    gains, mean, low, high = np.expm1(logs), float(logs.mean()), math.nan, math.nan
    if len(logs) >= MIN_REPEATS:
        reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
        low, high = math.expm1(mean - reach), math.expm1(mean + reach)
    return PairedRatio(
        math.expm1(mean), low, high, float(np.median(gains)), float(gains.min()), float(gains.max()), len(logs)
    )


def compare(
    runs: pd.DataFrame, variant: Variant, other: Variant, quantity: str = "goodput_tokens_per_s"
) -> PairedRatio:
    """The paired ratio of two variants' runs.

    Args:
        runs: measured, untraced SERVING rows of one setting, domain and number of active requests.
        quantity: a positive column.
    """
    both = pd.concat([_by_repeat(runs, *one)[quantity] for one in (variant, other)], axis=1, join="inner").dropna()
    return paired_ratio(both.iloc[:, 0], both.iloc[:, 1])


def best_static(runs: pd.DataFrame, verifiers: Sequence[str] = ("dense", "ragged")) -> Variant | None:
    """The static policy of the largest geometric mean goodput, by any of the verifiers; None where none was measured.

    Chosen on the runs that it is then compared on, so the comparison favours it. Where variants have unlike
    repeats, only those with the most count.
    """
    rows = runs[runs["policy"].isin(STATIC) & runs["verifier"].isin(verifiers)]
    if not len(rows):
        return None
    logs = np.log(rows["goodput_tokens_per_s"].astype(float)).groupby([rows["verifier"], rows["policy"]])
    means = logs.mean()[logs.size() == logs.size().max()]
    return means.idxmax()


def spread(runs: pd.DataFrame, variant: Variant, quantity: str = "goodput_tokens_per_s") -> dict[str, float]:
    """Median of a variant's runs, their geometric mean with its 95% interval, and how many there are."""
    values = _by_repeat(runs, *variant)[quantity].astype(float)
    over_one = paired_ratio(values, np.ones(len(values)))
    return {
        "median": over_one.median + 1,
        "mean": over_one.gain + 1,
        "low": over_one.low + 1,
        "high": over_one.high + 1,
        "repeats": over_one.repeats,
    }


def _by_repeat(runs: pd.DataFrame, verifier: str, policy: str) -> pd.DataFrame:
    return runs[(runs["verifier"] == verifier) & (runs["policy"] == policy)].set_index("repeat")
