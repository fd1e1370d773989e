"""Claims about candidate scores, from replays of the score log: no model, no clock."""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import REPLAY, SCORE_LOG

from ..data import CHAIN, TREE, Study
from ..tables import percent
from .finding import (
    Finding,
    Measurement,
    NotMeasured,
    all_above,
    as_gain,
    as_points,
    judged,
    measured_rows,
    needs_interval,
    printed,
    within,
)

EXPERIMENT = "replay"


def adaptive_beats_fixed_shapes(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "fixed_shapes", roots="own", quantity="r_gain_over_chain")
    rows = rows[rows["method"] != CHAIN]
    tree, shapes = rows[rows["method"] == TREE], rows[rows["method"] != TREE]
    places = ["setting", "domain"]
    above = tree.set_index(places)["value"] - shapes.groupby(places)["value"].max()
    return judged(
        _measured(rows, "method"),
        as_gain,
        reproduced=(tree["low"] > 0).all() and not (shapes["low"] > 0).any(),
        direction=(above > 0).all(),
    )


def rejections_near_the_top(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rejection_ranks", quantity="share")
    near = rows[rows["bin"] == "2-4"]
    largest = rows.groupby(["setting", "domain"])["value"].transform("max")
    return _shares(near, printed("rejection_rank_2_4"), (near["value"] >= largest[near.index]).all())


def rejections_further_down(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rejection_ranks", quantity="share")
    shares = rows.pivot_table(index=["setting", "domain"], columns="bin", values="value")
    return _shares(rows[rows["bin"] == "5-8"], printed("rejection_rank_5_8"), (shares["5-8"] < shares["2-4"]).all())


def rejections_out_of_reach(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rejection_ranks", quantity="share", bin="beyond 32")
    return _shares(rows, printed("rejection_beyond_32"), (rows["value"] <= 0.2).all())


def calibrated_at_depth_one(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "reliability", quantity="hit_rate")
    rows = rows[rows["top_k"] > 1]
    sure, middle = rows[rows["bin"] == "0.9-1.0"], rows[rows["bin"] == "0.6-0.7"]
    if not len(sure) or not len(middle):
        raise NotMeasured("no candidate of such confidence was replayed")
    needs_interval(pd.concat([sure, middle])["low"])
    bars = {name: printed("calibration", name) for name in ("0.9-1.0", "0.6-0.7")}
    in_band, meets = [], []
    for name, part, (least, most) in (("0.9-1.0", sure, (0.9, 1.0)), ("0.6-0.7", middle, (0.5, 0.8))):
        in_band.append(part["value"].between(least, most))
        meeting = (part["high"] >= bars[name].min()) & (part["low"] <= bars[name].max())
        # A wider interval would meet the paper's range whatever the drafter.
        meets.append(in_band[-1] & meeting & (part["high"] - part["low"] <= most - least))
    return judged(
        _measured(pd.concat([sure, middle]), "bin"),
        lambda m: f"{m.value:.2f} [{m.low:.2f}, {m.high:.2f}]",
        reproduced=all(part.all() for part in meets),
        direction=all(part.all() for part in in_band),
    )


def masses_fall(study: Study, settings: list[str]) -> Finding:
    """The sorted masses at the 1st, 48th and 64th place over the paper's."""
    rows = _replayed(study, settings, "mass_curve", quantity="mass")
    rows = rows[rows["budget"].isin([1, 48, 64])]
    bars = {
        place: printed("sorted_mass", f"{name} ").iloc[0] for place, name in ((1, "1st"), (48, "48th"), (64, "64th"))
    }
    if not len(rows):
        raise NotMeasured("no mass curve reaches these places")
    ratio = rows["value"] / rows["budget"].map(bars).astype(float)
    return judged(
        _measured(rows, "budget"),
        lambda m: f"{m.value:.3f}",
        reproduced=ratio.between(0.75, 1.25).all(),
        direction=ratio.between(0.5, 2.0).all(),
    )


def rank_cap_is_free(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "rank_cap", roots="chain", quantity="r_capped_over_full")
    rows = rows[rows["budget"].isin([32, 63])]
    if not len(rows):
        raise NotMeasured("the rank cap was replayed at neither 32 nor 63 nodes")
    bar = rows["budget"].map({budget: printed(f"rank_cap_{budget}").max() / 100 for budget in (32, 63)})
    return judged(
        _measured(rows, "budget"),
        as_gain,
        reproduced=(rows["value"] >= -bar.astype(float) - 5e-4).all(),
        direction=(rows["value"] >= -0.03).all(),
    )


def beyond_the_cap(study: Study, settings: list[str]) -> Finding:
    """The paper does not say over which depths: its range is met when one of three shares meets it."""
    rows = _replayed(study, settings, "rank_cap", quantity="share_beyond_cap")
    bars = printed("beyond_rank_8") / 100
    by_kind = [of["value"] for _, of in rows.groupby("bin")]
    return judged(
        _measured(rows, "bin"),
        lambda m: f"{100 * m.value:.1f}%",
        reproduced=any(within(values, bars, 3) for values in by_kind),
        direction=any((values <= bars.max() + 5e-4).all() for values in by_kind),
    )


def regret_within_bound(study: Study, settings: list[str]) -> Finding:
    rows = _replayed(study, settings, "plug_in_regret")
    broken, regret = (rows[rows["quantity"] == name] for name in ("rounds_above_bound", "regret"))
    return Finding(
        f"{int(broken['value'].sum())} of {int(broken['n'].sum())} rounds above the bound; regret "
        + "; ".join(f"{row.domain}, N = {row.budget}: {row.value:.2f}" for row in regret.itertuples()),
        bool((broken["value"] == 0).all()),
        bool((broken["value"] <= 0.001 * broken["n"]).all()),
        tuple(dict.fromkeys(rows["setting"])),
    )


def allocation_adds_acceptance(study: Study, settings: list[str]) -> Finding:
    rows = _allocated(study, settings, "best_first", scarce=True)
    bars, found = printed("allocation_oracle") / 100, _measured(rows)
    return judged(
        found,
        as_gain,
        reproduced=within(rows["value"], bars, 3) and all_above(found),
        direction=all_above(found),
        printed=bars,
    )


def abundance_needs_no_allocation(study: Study, settings: list[str]) -> Finding:
    rows, scarce = (_allocated(study, settings, "best_first", scarce=flag) for flag in (False, True))
    bars = printed("allocation_abundant") / 100
    places = ["setting", "domain"]
    less = rows.set_index(places)["value"] < scarce.set_index(places)["value"]
    return judged(
        _measured(rows, "budget"),
        as_gain,
        reproduced=within(rows["value"], bars, 2),
        direction=less.all(),
        printed=bars,
    )


def hindsight_is_near(study: Study, settings: list[str]) -> Finding:
    """Gain of the split in hindsight over uniform minus that of best-first, at a scarce budget."""
    rows = _allocated(study, settings, "hindsight", scarce=True, quantity="ahead_of_best_first")
    shown = rows.assign(**{name: 100 * rows[name] for name in ("value", "low", "high")})
    return judged(
        _measured(shown),
        as_points,
        reproduced=(rows["value"] <= 0.05).all(),
        direction=(rows["value"] <= 0.15).all(),
    )


def replay_is_the_live_tree(study: Study, settings: list[str]) -> Finding:
    """Pooled R of the replayed tree over that of the sweep's tree of as many nodes, minus one."""
    rows = _replayed(study, settings, "budget_sweep", roots="own", quantity="r_pooled", method=TREE)
    rows = rows[rows["top_k"] == rows["top_k"].min()]
    found = []
    for row in rows.itertuples():
        live = study.cell(row.setting, row.domain, TREE, int(row.budget))
        if live is not None:
            found.append(Measurement(row.setting, f"{row.domain}, N = {row.budget}", row.value / live["r_pooled"] - 1))
    if not found:
        raise NotMeasured("no width was both replayed and swept")
    return judged(
        found,
        lambda m: percent(m.value),
        reproduced=all(abs(m.value) <= 0.05 for m in found),
        direction=all(abs(m.value) <= 0.15 for m in found),
    )


def rounds_account_for_tokens(study: Study, settings: list[str]) -> Finding:
    """Replayed rounds of the chain times their R, over the tokens that were emitted, minus one."""
    rows = _replayed(study, settings, "fixed_shapes", roots="own", quantity="r_pooled", method=CHAIN)
    logged = measured_rows(study, settings, "score_log", SCORE_LOG)
    tokens = logged.groupby(["setting", "domain"])["new_tokens"].sum()
    found = [
        Measurement(row.setting, row.domain, float(row.n * row.value / tokens[row.setting, row.domain] - 1))
        for row in rows.itertuples()
        if (row.setting, row.domain) in tokens.index
    ]
    if not found:
        raise NotMeasured("no score log lies beside the replay")
    return judged(
        found,
        lambda m: percent(m.value),
        reproduced=all(abs(m.value) <= 0.05 for m in found),
        direction=all(m.value <= 0.05 for m in found),
    )


def _replayed(study: Study, settings: list[str], analysis: str, **keys: str) -> pd.DataFrame:
    return measured_rows(study, settings, EXPERIMENT, REPLAY, analysis=analysis, **keys)


def _allocated(
    study: Study, settings: list[str], policy: str, scarce: bool, quantity: str = "accepted_over_uniform"
) -> pd.DataFrame:
    """A policy's gain over a uniform split, at four nodes a request or at the most that were replayed."""
    rows = _replayed(study, settings, "shared_budget", method=policy, quantity=quantity)
    budget = 4 if scarce else rows["budget"].max()
    rows = rows[rows["budget"] == budget]
    if not len(rows) or (not scarce and budget <= 4):
        raise NotMeasured(
            f"no {'shared budget of four' if scarce else 'larger budget of'} nodes a request was replayed"
        )
    return rows.reset_index(drop=True)


def _shares(rows: pd.DataFrame, percents: pd.Series, direction: bool) -> Finding:
    bars = percents / 100
    return judged(
        _measured(rows),
        lambda m: f"{100 * m.value:.0f}%",
        reproduced=within(rows["value"], bars, 2),
        direction=direction,
        printed=bars,
    )


def _measured(rows: pd.DataFrame, *columns: str) -> list[Measurement]:
    found = []
    for row in rows.to_dict("records"):
        parts = [f"N = {row[name]}" if name == "budget" else str(row[name]) for name in columns]
        low, high = (float("nan") if pd.isna(row[end]) else row[end] for end in ("low", "high"))
        found.append(Measurement(row["setting"], ", ".join([row["domain"], *parts]), row["value"], low, high))
    return found
