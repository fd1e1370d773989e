"""Statistics of decode records: cells, settings, paired bootstrap intervals and the gap to the sweep oracle.

A *cell* is one setting, domain, method, budget and drafter: two heads of one kind may share a budget. Rows that
failed or were traced enter no number. Two runs are compared only when they belong to one prompt, repeat, seed
and session, so that a pair shares machine and moment; the repeats of a prompt are averaged before anything
else, and prompts are what is resampled. A gain is DFlash's ms per token over the method's, minus one, as a
fraction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import fmean

import numpy as np
import pandas as pd

from cast.errors import CastError
from cast.experiments.bootstrap import RESAMPLES, Stratum, bootstrap_interval, mean_of_ratios, ratio_of_means
from cast.width import gap_points, sweep_oracle

LOW_REPEAT_SHARE = 0.1  # prompts whose AR output repeats less than this are also reported alone

_KEY = ["method", "budget", "drafter"]
_CELL = ["setting", "domain", *_KEY]
_RUN = ["prompt_id", "repeat", "seed", "session"]
_READ = [*_CELL, *_RUN, *("ms_per_token", "decode_ms", "new_tokens", "committed_tokens", "rounds")]
_READ += ["repeat_share", "departure"]

# What must not vary, or rows of different protocols would silently be averaged.
_ONE_PER_DOMAIN = ["experiment", "target", "dtype", "engine", "temperature", "max_new_tokens"]
_ONE_PER_CELL = ["sampler", "top_k", "block_size"]
_ONE_HEAD = ["autoregressive", "dflash", "cast"]  # the baselines, and what the sweep oracle chooses among


def cell_summary(decode: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """One row per setting, domain, method, budget and drafter of DECODE records, sorted by these.

    Each of these columns comes again as ``<name>_low_repeat``, over the prompts whose AR output has a repeat
    share below 0.1:

    * ``prompts``: measured prompts; ``prompts_paired``: those also measured with the DFlash baseline in the
      same session; ``prompts_dropped``: measured for only one of the two, hence in no gain.
    * ``ms_per_token``: mean over prompts; ``ms_per_token_pooled``: all decode time over all new tokens.
    * ``r_prompt_mean``: mean over prompts of the prompt's committed tokens per round; ``r_pooled``: all
      committed tokens over all rounds.
    * ``speedup``: AR ms per token over the method's, on the prompts both have; ``gain`` over DFlash on the paired ones.
    * ``speedup_low``, ``speedup_high``, ``gain_low``, ``gain_high``: 95% intervals, see `bootstrap_interval`; NaN for
      fewer than `cast.experiments.bootstrap.MIN_PROMPTS` prompts in common and for the baselines themselves.
    * ``repeat_share``: mean over prompts; ``departures``: of the prompts compared with AR, those that depart.

    Then ``failed_rows`` and ``reason``, the first failure's reason or "". What was not measured is NaN. With
    several DFlash budgets in a domain the baseline is the largest one, the drafter's full block.

    Raises:
        CastError: when rows of different protocols would be averaged, e.g. two temperatures in one domain.
    """
    timed = _timed(decode)
    rows = []
    for (setting, domain), everything in decode.groupby(["setting", "domain"]):
        views = _views(timed, setting, domain)
        for key, cell in everything.groupby(_KEY):
            row = {"setting": setting, "domain": domain, **dict(zip(_KEY, key, strict=True))}
            for suffix, view in views.items():
                numbers = _cell_numbers(view, key, resamples, seed)
                row |= {f"{name}{suffix}": value for name, value in numbers.items()}
            reasons = cell.loc[cell["status"] == "failed", "reason"]
            rows.append(row | {"failed_rows": len(reasons), "reason": next(iter(reasons), "")})
    return pd.DataFrame(rows)


def setting_summary(
    cells: pd.DataFrame, decode: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per setting, method, budget and drafter: the mean over domains of the cells' speedup and gain, where they
    have one.

    ``speedup_low``, ``speedup_high``, ``gain_low``, ``gain_high``: 95% intervals of the means, prompts resampled within
    each domain.
    ``domains`` counts the domains with a gain, ``domains_missing`` those of the setting without one: such a
    mean is over fewer domains and not comparable with the others. Gain and interval come again as
    ``*_low_repeat``.

    Args:
        cells: `cell_summary` of ``decode``.
        decode: the DECODE records themselves, for the intervals.
    """
    timed = _timed(decode)
    rows = []
    for setting, of_setting in cells.groupby("setting"):
        domains = [_views(timed, setting, domain) for domain in sorted(of_setting["domain"].unique())]
        for key, group in of_setting.groupby(_KEY):
            row = {
                "setting": setting,
                **dict(zip(_KEY, key, strict=True)),
                "domains": int(group["gain"].notna().sum()),
                "domains_missing": len(domains) - int(group["gain"].notna().sum()),
                "speedup": group["speedup"].mean(),
            }
            against_ar = [view[""].against_ar(*key) for view in domains]
            row["speedup_low"], row["speedup_high"] = bootstrap_interval(
                [pair for pair in against_ar if pair.size], _first_speedup, resamples=resamples, seed=seed
            )
            for suffix in ("", "_low_repeat"):
                pairs = [view[suffix].against_dflash(*key) for view in domains]
                row[f"gain{suffix}"] = group[f"gain{suffix}"].mean()
                row[f"gain_low{suffix}"], row[f"gain_high{suffix}"] = bootstrap_interval(
                    [pair for pair in pairs if pair.size], _first_gain, resamples=resamples, seed=seed
                )
            rows.append(row)
    return pd.DataFrame(rows)


def width_gap(
    decode: pd.DataFrame, widths: Mapping[str, int], *, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per setting of ``widths`` (setting -> predicted width): its gain against the sweep oracle's.

    Columns: ``setting``, ``width``, ``gain``, ``oracle_width``, ``oracle_gain`` (fractions, mean over
    domains, on the prompts that DFlash and every compared width have), ``gap_points``, ``gap_low``,
    ``gap_high`` (percentage points, at most 0), ``widths_compared`` (swept in every domain), ``reason``. The
    interval is a percentile bootstrap, prompts resampled within each domain and the oracle chosen anew in
    every resample: it says how far behind the best width the prediction may be. When the width was not swept
    in every domain, the numbers are NaN and ``reason`` says so.
    """
    timed = _timed(decode)
    rows = []
    for setting, width in widths.items():
        domains = timed.loc[timed["setting"] == setting, "domain"].unique()
        views = [_views(timed, setting, domain)[""] for domain in sorted(domains)]
        swept = sorted(set.intersection(*(view.cast_budgets for view in views))) if views else []
        row = {"setting": setting, "width": width, "widths_compared": len(swept)}
        strata = [view.aligned(view.dflash, *(view.cell("cast", n) for n in swept)) for view in views]
        if width not in swept or not all(stratum.size for stratum in strata):
            nothing = dict.fromkeys(["gain", "oracle_gain", "gap_points", "gap_low", "gap_high"], math.nan)
            reason = f"width {width} and the chain were not both measured on common prompts of every domain"
            rows.append(row | nothing | {"oracle_width": None, "reason": reason})
            continue
        gains = dict(zip(swept, ratio_of_means(strata).tolist(), strict=True))
        oracle = sweep_oracle(gains)
        place = swept.index(width)

        def gap(resampled: list[Stratum], place: int = place) -> np.ndarray:
            gain = ratio_of_means(resampled)
            return 100.0 * (gain[place] - gain.max(axis=0))

        low, high = bootstrap_interval(strata, gap, resamples=resamples, seed=seed, method="percentile")
        rows.append(
            row
            | {"gain": gains[width], "oracle_width": oracle, "oracle_gain": gains[oracle]}
            | {"gap_points": gap_points(gains, width), "gap_low": low, "gap_high": high, "reason": ""}
        )
    return pd.DataFrame(rows).astype({"oracle_width": "Int64"})


def repeat_summary(decode: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """One row per setting, domain, method, budget and drafter: the gains of prompts (paper, table 3) and of repeats.

    * ``prompts`` that the method and the DFlash baseline both have with every repeat, and how many ``repeats``.
    * ``prompt_gain``: mean over prompts of each prompt's gain, its repeats averaged first; with its 95%
      intervals ``prompt_gain_low``, ``prompt_gain_high`` (BCa) and ``prompt_gain_percentile_low``, ``.._high``.
    * ``gain``, ``gain_low``, ``gain_high``: the ratio of the cells, as in `cell_summary`, over these prompts.
    * ``repeat_gain_low``, ``repeat_gain_high``: smallest and largest cell gain of one repeat, and
      ``repeat_change_points`` between them in percentage points: the run-to-run spread of appendices D.2 and E.
    * `median_runs`.
    """
    rows = []
    for where, runs, key in _compared_cells(decode):
        runs = runs.complete("repeat", key)  # or repeats would differ in their prompts
        pair = runs.against_dflash(*key)
        if not pair.size:
            continue
        intervals = {
            "prompt_gain": (mean_of_ratios, "BCa"),
            "prompt_gain_percentile": (mean_of_ratios, "percentile"),
            "gain": (ratio_of_means, "BCa"),
        }
        row = where | {
            "prompts": pair.shape[1],
            "repeats": runs.cell(*key)["repeat"].nunique(),
            "prompt_gain": float(mean_of_ratios([pair])[0]),
            "gain": float(_first_gain([pair])),
        }
        for name, (statistic, kind) in intervals.items():
            row[f"{name}_low"], row[f"{name}_high"] = bootstrap_interval(
                [pair], lambda strata, of=statistic: of(strata)[0], resamples=resamples, seed=seed, method=kind
            )
        gains = _gains_by("repeat", runs, key).values()
        row |= {"repeat_gain_low": min(gains), "repeat_gain_high": max(gains)}
        row |= {"repeat_change_points": 100.0 * (max(gains) - min(gains))}
        rows.append(row | _median_run(runs, key, resamples, seed))
    return pd.DataFrame(rows)


def median_runs(decode: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """One row per setting, domain, method, budget and drafter: the cell in its repeat of the median gain.

    It is what the paper prints for Blackwell (tables 7 to 9, appendix D); of an even number of repeats the two middle
    ones, averaged prompt by prompt, as for its one cell of two runs. Prompts are those with every repeat.

    * ``median_run``: that repeat, or "1, 2"; ``median_run_of``: how many there are.
    * ``median_run_gain``, ``.._low``, ``.._high``: with its 95% interval over prompts.
    * ``median_run_ms_per_token``, ``.._r_prompt_mean``, ``.._r_pooled`` of the cell, and the same of the baseline and
      of plain decoding in that repeat, as ``median_run_dflash_..`` and ``median_run_ar_..``.
    """
    rows = []
    for where, runs, key in _compared_cells(decode):
        runs = runs.complete("repeat", key)
        if runs.against_dflash(*key).size:
            rows.append(where | _median_run(runs, key, resamples, seed))
    return pd.DataFrame(rows)


def seed_summary(decode: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """One row per setting, domain, method, budget and drafter of sampled decoding (paper, table 10).

    * ``prompts``: those that both methods have with every seed; ``seeds``.
    * ``gain``: mean over seeds of the cells' gains; ``seed_gain_low``, ``seed_gain_high``: its range over the
      seeds; ``gain_low``, ``gain_high``: 95% interval when prompts are drawn anew, all their seeds together.
    * ``ms_per_token``, ``r_prompt_mean``, ``r_pooled`` over all seeds, the same with ``dflash_`` in front for
      the baseline; ``seed_ms_deviation``: largest departure of a seed's mean time from the mean of seeds, as
      a fraction.
    """
    rows = []
    for where, runs, key in _compared_cells(decode):
        seeds = sorted(runs.cell(*key)["seed"].unique())
        runs = runs.complete("seed", key)
        cell = runs.cell(*key)
        if cell.empty:
            continue
        pairs = [runs.of("seed", value).against_dflash(*key) for value in seeds]
        gains = list(_gains_by("seed", runs, key).values())
        together = np.concatenate(pairs)  # series: chain and method of each seed in turn
        by_seed = np.array([pair[1].mean() for pair in pairs])
        row = where | {
            "prompts": together.shape[1],
            "seeds": len(seeds),
            "gain": float(np.mean(gains)),
            "seed_gain_low": min(gains),
            "seed_gain_high": max(gains),
            "seed_ms_deviation": float(np.abs(by_seed / by_seed.mean() - 1.0).max()),
        }
        row["gain_low"], row["gain_high"] = bootstrap_interval(
            [together], _gain_over_pairs, resamples=resamples, seed=seed
        )
        rows.append(row | _round_numbers(cell) | {f"dflash_{k}": v for k, v in _round_numbers(runs.dflash).items()})
    return pd.DataFrame(rows)


_Key = tuple[str, int, str]
"""Method, budget and drafter of a cell."""


class _Runs:
    """The timed rows of one setting and domain, and what they are compared with."""

    def __init__(self, rows: pd.DataFrame):
        self.rows = rows
        self._places = rows.groupby(["method", "budget"]).indices
        chains = rows.loc[rows["method"] == "dflash", "budget"]
        self.dflash_budget = None if chains.empty else int(chains.max())
        self.dflash = self.cell("dflash", self.dflash_budget) if len(chains) else rows.iloc[:0]
        self.autoregressive = self.cell("autoregressive", 0)
        self.cast_budgets = {int(n) for n in rows.loc[rows["method"] == "cast", "budget"].unique()}

    def cell(self, method: str, budget: int, drafter: str | None = None) -> pd.DataFrame:
        """The rows of a cell; of every drafter where none is named."""
        rows = self.rows.take(self._places.get((method, budget), []))
        return rows if drafter is None else rows[rows["drafter"] == drafter]

    def of(self, column: str, value: int) -> _Runs:
        """The runs of one seed or repeat."""
        return _Runs(self.rows[self.rows[column] == value])

    def complete(self, column: str, key: _Key) -> _Runs:
        """The prompts that DFlash and the method have with every seed or repeat of the method."""
        cells = self.dflash, self.cell(*key)
        wanted = set(cells[1][column])
        have = [cell.groupby("prompt_id")[column].agg(set) for cell in cells]
        whole = [set(values.index[values.map(lambda found: wanted <= found)]) for values in have]
        return _Runs(self.rows[self.rows["prompt_id"].isin(set.intersection(*whole))])

    def is_baseline(self, method: str, budget: int) -> bool:
        return method == "dflash" and budget == self.dflash_budget

    @staticmethod
    def aligned(*cells: pd.DataFrame) -> Stratum:
        """ms per token ``[cells, prompts]``, prompt by prompt over the runs that all cells have."""
        # Not by pandas, whose indexes of four columns cost more than all that is computed from them.
        times = [dict(zip(cell["run"], cell["ms_per_token"], strict=True)) for cell in cells]
        runs: dict[str, list[int]] = defaultdict(list)
        for run, prompt in zip(cells[0]["run"], cells[0]["prompt_id"], strict=True):
            if all(run in of_cell for of_cell in times):
                runs[prompt].append(run)
        return np.array([[fmean(of_cell[run] for run in runs[prompt]) for prompt in sorted(runs)] for of_cell in times])

    def against_dflash(self, method: str, budget: int, drafter: str | None = None) -> Stratum:
        """DFlash and the method aligned; empty for the baseline itself, whose gain has no spread."""
        if self.is_baseline(method, budget):
            return np.empty((2, 0))
        return self.aligned(self.dflash, self.cell(method, budget, drafter))

    def against_ar(self, method: str, budget: int, drafter: str | None = None) -> Stratum:
        """Plain decoding and the method aligned; empty for plain decoding itself."""
        if method == "autoregressive":
            return np.empty((2, 0))
        return self.aligned(self.autoregressive, self.cell(method, budget, drafter))

    def low_repeat(self) -> _Runs:
        share = self.autoregressive.groupby("prompt_id")["repeat_share"].mean()
        return _Runs(self.rows[self.rows["prompt_id"].isin(share.index[share < LOW_REPEAT_SHARE])])


def _views(timed: pd.DataFrame, setting: str, domain: str) -> dict[str, _Runs]:
    """Column suffix -> the runs it reports on."""
    runs = _Runs(timed[(timed["setting"] == setting) & (timed["domain"] == domain)])
    return {"": runs, "_low_repeat": runs.low_repeat()}


def _cell_numbers(runs: _Runs, key: _Key, resamples: int, seed: int) -> dict[str, float]:
    cell = runs.cell(*key)
    pair = runs.against_dflash(*key)
    with_ar = runs.against_ar(*key)
    low, high = bootstrap_interval([pair], _first_gain, resamples=resamples, seed=seed)
    speedup_low, speedup_high = bootstrap_interval([with_ar], _first_speedup, resamples=resamples, seed=seed)
    prompts = cell["prompt_id"].nunique()
    baseline, plain = runs.is_baseline(*key[:2]), key[0] == "autoregressive"
    paired = prompts if baseline else pair.shape[1]
    either = len(set(cell["prompt_id"]) | set(runs.dflash["prompt_id"]))
    by_prompt = cell.groupby("prompt_id")
    compared = by_prompt["departure"].max().dropna()
    return {
        "prompts": prompts,
        "prompts_paired": paired,
        "prompts_dropped": either - paired,
        "ms_per_token_pooled": _ratio(cell["decode_ms"].sum(), cell["new_tokens"].sum()),
        **_round_numbers(cell),
        "speedup": 1.0 if plain and prompts else float(_first_speedup([with_ar])) if with_ar.size else math.nan,
        "speedup_low": speedup_low,
        "speedup_high": speedup_high,
        "gain": 0.0 if baseline and prompts else float(_first_gain([pair])) if pair.size else math.nan,
        "gain_low": low,
        "gain_high": high,
        "repeat_share": by_prompt["repeat_share"].mean().mean(),
        "departures": int((compared >= 0).sum()) if len(compared) else math.nan,
    }


def _round_numbers(cell: pd.DataFrame) -> dict[str, float]:
    """Time per token and both statistics of the round length."""
    by_prompt = cell.groupby("prompt_id")
    totals = by_prompt[["committed_tokens", "rounds"]].sum().astype(float)
    return {
        "ms_per_token": by_prompt["ms_per_token"].mean().mean(),
        "r_prompt_mean": (totals["committed_tokens"] / totals["rounds"]).mean(),
        "r_pooled": _ratio(totals["committed_tokens"].sum(), totals["rounds"].sum()),
    }


def _compared_cells(decode: pd.DataFrame) -> Iterator[tuple[dict[str, object], _Runs, _Key]]:
    """Every cell that has prompts in common with the DFlash baseline of its setting and domain."""
    timed = _timed(decode)
    for (setting, domain), everything in timed.groupby(["setting", "domain"]):
        runs = _Runs(everything)
        for key in everything.groupby(_KEY).groups:
            if runs.against_dflash(*key).size:
                yield {"setting": setting, "domain": domain, **dict(zip(_KEY, key, strict=True))}, runs, key


def _gains_by(column: str, runs: _Runs, key: _Key) -> dict[int, float]:
    """Repeat or seed -> the cell's gain within it, of those that have one."""
    pairs = {int(value): runs.of(column, value).against_dflash(*key) for value in sorted(runs.rows[column].unique())}
    return {value: float(_first_gain([pair])) for value, pair in pairs.items() if pair.size}


def _median_run(runs: _Runs, key: _Key, resamples: int, seed: int) -> dict[str, object]:
    gains = _gains_by("repeat", runs, key)
    ranked = sorted(gains, key=gains.__getitem__)
    middle = sorted(ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1])
    run = _Runs(runs.rows[runs.rows["repeat"].isin(middle)])
    pair = run.against_dflash(*key)
    low, high = bootstrap_interval([pair], _first_gain, resamples=resamples, seed=seed)
    numbers = {"gain": float(_first_gain([pair])), "gain_low": low, "gain_high": high}
    for name, cell in (("", run.cell(*key)), ("dflash_", run.dflash), ("ar_", run.autoregressive)):
        numbers |= {f"{name}{quantity}": value for quantity, value in _round_numbers(cell).items()}
    told = {"median_run": ", ".join(map(str, middle)), "median_run_of": len(gains)}
    return told | {f"median_run_{name}": value for name, value in numbers.items()}


def _gain_over_pairs(strata: list[Stratum]) -> np.ndarray:
    """Mean gain of series that are chain and method in turn."""
    (means,) = [stratum.mean(axis=-1) for stratum in strata]
    return (means[0::2] / means[1::2] - 1.0).mean(axis=0)


def _first_gain(strata: list[Stratum]) -> np.ndarray:
    return ratio_of_means(strata)[0]


def _first_speedup(strata: list[Stratum]) -> np.ndarray:
    return _first_gain(strata) + 1.0


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator) / float(denominator) if denominator else math.nan


def _timed(decode: pd.DataFrame) -> pd.DataFrame:
    """The rows that enter statistics, after checking that they may be averaged; ``run`` numbers what `_RUN` names."""
    timed = decode[(decode["status"] == "measured") & ~decode["traced"].astype(bool)]
    of_one_head = timed[timed["method"].isin(_ONE_HEAD)]
    for rows, columns, group in (
        (timed, _ONE_PER_DOMAIN, ["setting", "domain"]),
        (timed, _ONE_PER_CELL, _CELL),
        (of_one_head, ["drafter"], ["setting", "domain", "method", "budget"]),
    ):
        kinds = rows.groupby(group)[columns].nunique()
        for column in columns:
            mixed = kinds.index[kinds[column] > 1]
            if len(mixed):
                where = " ".join(map(str, mixed[0]))
                raise CastError(f"{where}: rows with different {column}; summarise one protocol at a time")
    repeated = timed[timed.duplicated(_CELL + _RUN)]
    if len(repeated):
        where = ", ".join(f"{column}={repeated[column].iloc[0]}" for column in _CELL + _RUN)
        raise CastError(f"the run {where} occurs twice; read each record file once")
    return timed[_READ].assign(run=timed.groupby(_RUN, sort=False).ngroup())
