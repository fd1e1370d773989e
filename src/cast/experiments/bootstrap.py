"""Paired bootstrap over prompts (paper, appendix D.2).

What is resampled is the prompt: one drawn prompt brings all its series along (the chain's time and the tree's,
the committed tokens and the rounds of every budget), so that a statistic of several series keeps their pairing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
MIN_PROMPTS = 5  # the tail that `expanded_confidence` asks of four is rarer than four equal draws: no interval then
RESAMPLES = 10_000

Method = Literal["BCa", "percentile"]

# [series, prompts]: what one resampled prompt index selects together.
Stratum = np.ndarray

_VALUES_AT_ONCE = 2_000_000  # resampled values held in memory at a time


def bootstrap_interval(
    strata: Sequence[Stratum],
    statistic: Callable[[list[Stratum]], np.ndarray],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    method: Method = "BCa",
) -> tuple[float, float] | tuple[np.ndarray, np.ndarray]:
    """95% interval of a statistic of paired series when prompts are drawn anew within each stratum.

    Its tails are read at `expanded_confidence`, without which the intervals of few prompts are too narrow.

    Args:
        strata: per domain a ``[series, prompts]`` array; one drawn prompt brings all its series along.
        statistic: maps the resampled strata, each ``[series, ..., prompts]``, to ``[...]``, or to
            ``[values, ...]`` for several values at once.
        method: of `scipy.stats.bootstrap`; percentile is used where BCa is degenerate (e.g. all prompts alike).

    Returns:
        ``(low, high)``, a function of the arguments alone: two floats, or two arrays ``[values]``. NaN when a
        stratum has fewer than `MIN_PROMPTS` prompts.
    """
    if not strata or min(stratum.shape[-1] for stratum in strata) < MIN_PROMPTS:
        return math.nan, math.nan
    prompts = [np.arange(stratum.shape[-1]) for stratum in strata]
    confidence = expanded_confidence(min(map(len, prompts)))

    def of_drawn_prompts(*drawn: np.ndarray, axis: int) -> np.ndarray:  # prompts lie on the last axis
        return statistic([stratum[:, index] for stratum, index in zip(strata, drawn, strict=True)])

    def bootstrap(method: str, **options):
        return stats.bootstrap(
            prompts,
            of_drawn_prompts,
            axis=-1,
            vectorized=True,
            method=method,
            confidence_level=confidence,
            **options,
        )

    batch = max(1, min(resamples, _VALUES_AT_ONCE // sum(stratum.size for stratum in strata)))
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = bootstrap(method, n_resamples=resamples, batch=batch, rng=np.random.default_rng(seed))
        bounds = np.array(result.confidence_interval)
        if not np.isfinite(bounds).all():
            plain = bootstrap("percentile", n_resamples=0, bootstrap_result=result)
            bounds = np.where(np.isfinite(bounds).all(axis=0), bounds, np.array(plain.confidence_interval))
    low, high = bounds
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def reach(prompts: int) -> float:
    """How many deviations of resampled means a 95% interval of a mean of so many prompts reaches (Hesterberg 2015).

    The spread of resampled means has n, not n - 1, in its denominator, and the studentised mean's tails are Student's:
    3.10 for 5 prompts, 2.30 for 12, 1.99 for 100.
    """
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, prompts - 1) * math.sqrt(prompts / (prompts - 1)))


def expanded_confidence(prompts: int) -> float:
    """The level at which the percentiles of resamples have `reach`; near 95% for many prompts.

    Hesterberg's adjustment is for the percentiles of one sample. Here it serves BCa as well, and several strata with
    the prompts of the smallest: then the interval is rather too wide, for their freedom is at least that one's.
    """
    return float(2 * stats.norm.cdf(reach(prompts)) - 1)


def student_interval(value: float, redrawn: Sequence[float], prompts: int) -> tuple[float, float]:
    """``value`` and `reach` of the deviation that it has over draws of the prompts, where these are too few for tails.

    NaN for fewer than `MIN_PROMPTS` prompts, or where a draw has no value.
    """
    if prompts < MIN_PROMPTS:
        return math.nan, math.nan
    around = reach(prompts) * np.std(redrawn, ddof=1)
    return float(value - around), float(value + around)


def ratio_of_means(strata: list[Stratum]) -> np.ndarray:
    """First series over each other one, minus one, averaged over strata: ``[series - 1, ...]``.

    With rows of ms per token these are the gains of cells: ratios of means, the paper's tables 7 to 12.
    """
    means = [stratum.mean(axis=-1) for stratum in strata]
    return sum(mean[0] / mean[1:] - 1.0 for mean in means) / len(means)


def mean_of_ratios(strata: list[Stratum]) -> np.ndarray:
    """As `ratio_of_means`, but the mean over prompts of each prompt's own ratio: the gains of the paper's table 3."""
    return sum((stratum[0] / stratum[1:] - 1.0).mean(axis=-1) for stratum in strata) / len(strata)
