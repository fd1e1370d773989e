"""Claims about outputs: greedy decoding token for token, and the law of sampled tokens."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from cast.experiments.records import EQUIVALENCE, TOTAL_VARIATION

from ..data import CHAIN, SWEEP, TREE, Study
from .finding import Finding, Measurement, NotMeasured, judged, measured_rows, printed

EQUIVALENT, LAW, SERVED = "greedy_equivalence", "total_variation", "sampling_under_load"


def exact_in_fp32(study: Study, settings: list[str]) -> Finding:
    return _departures(study, settings, "float32", tie=1e-3, share=1.0, exact=True)


def near_ties_in_bf16(study: Study, settings: list[str]) -> Finding:
    tie = printed("bf16_near_tie").iloc[0]
    return _departures(study, settings, "bfloat16", tie=tie, share=0.95, exact=False)


def rounding_alone_departs(study: Study, settings: list[str]) -> Finding:
    """Of the bf16 outputs that depart, those whose fp32 rerun departs nowhere."""
    rows = measured_rows(study, settings, EQUIVALENT, EQUIVALENCE, dtype="bfloat16")
    rows = rows[(rows["departures"] == 1) & rows["fp32_agrees"].notna()]
    if not len(rows):
        raise NotMeasured("no bf16 output departs and was decoded again in fp32")
    agree = rows["fp32_agrees"].astype(bool)
    return Finding(
        f"{int(agree.sum())} of {len(rows)} agree with plain decoding in fp32",
        bool(agree.all()),
        bool(agree.mean() >= 0.95),
        tuple(sorted(set(rows["setting"]))),
    )


def the_chain_departs_too(study: Study, settings: list[str]) -> Finding:
    """Share of bf16 outputs that depart, of the chain and of the trees."""
    outputs = _outputs(study, settings, "bfloat16")
    departs = outputs["gap"].notna()
    shares = {method: departs[outputs["method"] == method] for method in (CHAIN, TREE)}
    if any(not len(share) for share in shares.values()):
        raise NotMeasured("chain and tree were not both measured in bf16")
    return Finding(
        "; ".join(f"{method}: {int(share.sum())} of {len(share)}" for method, share in shares.items()),
        bool(shares[CHAIN].any() and shares[TREE].any()),
        bool(shares[CHAIN].any()),
        tuple(sorted(set(outputs["setting"]))),
    )


def sampled_law_in_fp64(study: Study, settings: list[str]) -> Finding:
    return _below_floor(_laws(study, settings, LAW, "float64", "recursive"), "total_variation", "fp64")


def sampled_law_in_bf16(study: Study, settings: list[str]) -> Finding:
    rows = _laws(study, settings, LAW, "bfloat16", "recursive")
    found = _means(rows)
    bar = printed("total_variation", within="bf16").iloc[0]
    floors = rows.groupby("setting")["floor_mean"].mean()
    return judged(
        found,
        lambda m: f"mean total variation {m.value:.4f} (floor {floors[m.setting]:.4f})",
        reproduced=all(m.value <= floors[m.setting] + bar for m in found),
        direction=bool((rows["total_variation"] <= 2 * rows["floor_q999"]).all()),
    )


def walk_and_recursion_agree(study: Study, settings: list[str]) -> Finding:
    means = {
        sampler: {m.setting: m.value for m in _means(_laws(study, settings, LAW, "bfloat16", sampler))}
        for sampler in ("walk", "recursive")
    }
    both = [name for name in means["walk"] if name in means["recursive"]]
    if not both:
        raise NotMeasured("walk and recursion were not both drawn from in bf16")
    found = [Measurement(name, "", means["walk"][name] - means["recursive"][name]) for name in both]
    return judged(
        found,
        lambda m: f"mean total variation of the walk {m.value:+.4f} from the recursion's",
        reproduced=all(abs(m.value) <= 1e-3 for m in found),
        direction=all(abs(m.value) <= 5e-3 for m in found),
    )


def served_law(study: Study, settings: list[str]) -> Finding:
    return _below_floor(_laws(study, settings, SERVED, "float64", "recursive"), "served_total_variation", "fp64")


def served_law_decays(study: Study, settings: list[str]) -> Finding:
    """Exponent of the largest total variation over the draws: -0.5 for drawing alone, once no token is rare."""
    rows = measured_rows(study, settings, SERVED, TOTAL_VARIATION, dtype="float64", sampler="recursive", level="first")
    found = []
    for name, of_setting in rows.groupby("setting"):
        largest = of_setting.groupby("walks")["total_variation"].max()
        if len(largest) > 1 and (largest > 0).all():
            slope = np.polyfit(np.log(largest.index.to_numpy(float)), np.log(largest.to_numpy(float)), 1)[0]
            found.append(Measurement(name, "", float(slope)))
    if not found:
        raise NotMeasured("the distance was taken at one number of draws only")
    return judged(
        found,
        lambda m: f"exponent {m.value:.2f}",
        reproduced=all(-0.65 <= m.value <= -0.35 for m in found),
        direction=all(m.value <= -0.25 for m in found),
    )


def _departures(study: Study, settings: list[str], dtype: str, tie: float, share: float, exact: bool) -> Finding:
    outputs = _outputs(study, settings, dtype)
    gaps = outputs["gap"].dropna()
    ties = int((gaps <= tie).sum())
    return Finding(
        f"{len(gaps)} of {len(outputs)} outputs depart"
        + (f", {ties} at a gap of at most {tie:g} (largest {gaps.max():.3f})" if len(gaps) else ""),
        len(gaps) == 0 if exact else ties == len(gaps),
        ties >= share * len(gaps),
        tuple(sorted(set(outputs["setting"]))),
    )


def _outputs(study: Study, settings: list[str], dtype: str) -> pd.DataFrame:
    """One row for each output of chain and trees: setting, method, and its gap where it departs, else NaN."""
    found = []
    rows = study.decode
    if len(rows):
        # A traced row repeats an output that is counted already; sampled outputs are compared with none.
        rows = rows[rows["setting"].isin(settings) & (rows["status"] == "measured") & ~rows["traced"].astype(bool)]
        rows = rows[(rows["dtype"] == dtype) & rows["method"].isin([CHAIN, TREE]) & rows["departure"].notna()]
        gap = rows["departure_gap"].fillna(math.inf).where(rows["departure"] >= 0)
        found.append(rows[["setting", "method"]].assign(gap=gap))
    try:
        rows = measured_rows(study, settings, EQUIVALENT, EQUIVALENCE, dtype=dtype)
    except NotMeasured:
        pass
    else:
        rows = rows[rows["method"].isin([CHAIN, TREE])]
        output = ["setting", "method", "domain", "budget", "block_size", "prompt_id"]
        found.append(
            rows.groupby(output)["departure_gap"].max().rename("gap").reset_index()[["setting", "method", "gap"]]
        )
    outputs = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if not len(outputs):
        raise NotMeasured(f"no {SWEEP} or {EQUIVALENT} record in {dtype}")
    return outputs


def _laws(study: Study, settings: list[str], experiment: str, dtype: str, sampler: str) -> pd.DataFrame:
    """The rows of the most draws of each setting, domain and level of tree, one for each prefix."""
    rows = measured_rows(study, settings, experiment, TOTAL_VARIATION, dtype=dtype, sampler=sampler)
    rows = rows[rows["level"] != "sequence"]
    if not len(rows):
        raise NotMeasured("only whole sequences were drawn")
    return rows[rows["walks"] == rows.groupby(["setting", "domain", "level"])["walks"].transform("max")]


def _means(rows: pd.DataFrame) -> list[Measurement]:
    return [Measurement(name, "", value) for name, value in rows.groupby("setting")["total_variation"].mean().items()]


def _below_floor(rows: pd.DataFrame, identifier: str, within: str) -> Finding:
    """Against the Monte-Carlo floor: the 99.9% quantile of as many draws from the autoregressive law itself."""
    below = rows["total_variation"] <= rows["floor_q999"]
    return Finding(
        f"{int(below.sum())} of {len(rows)} distances below the floor; mean {rows['total_variation'].mean():.4f}, "
        f"floor {rows['floor_q999'].mean():.4f} (the paper: {printed(identifier, within=within).iloc[0]:g} below "
        f"{printed(identifier, within='floor').iloc[0]:g})",
        bool(below.all()),
        bool(below.mean() >= 0.95),
        tuple(sorted(set(rows["setting"]))),
    )
