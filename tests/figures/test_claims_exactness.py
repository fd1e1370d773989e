"""Claims about equal outputs and the samplers' law: each bar from rows that just meet or miss it."""

import numpy as np
import pytest
from claim_rows import bars, stored
from test_other_experiments import S

from cast.experiments.records import EQUIVALENCE, TOTAL_VARIATION
from figures import data
from figures.claims import NotMeasured, exactness


def outputs(gaps, method, budget, fp32_agrees=True):
    for prompt, gap in enumerate(gaps):
        departs = not np.isnan(gap)
        yield {
            "method": method, "budget": budget, "prompt_id": f"p{prompt}", "prompt_index": prompt, "top_k": 8,
            "block_size": 16, "max_new_tokens": 64, "gap_from": 0.0, "gap_to": np.inf, "positions": 64,
            "departures": int(departs), "verdict": "departure" if departs else "same",
            "departure": 3 if departs else None, "departure_gap": gap, "fp32_agrees": fp32_agrees,
            "dtype": "bfloat16",
        }  # fmt: skip


@pytest.mark.parametrize(("gap", "expected"), [(0.2, (True, True)), (0.3, (False, False))])
def test_equivalence(folder, gap, expected):
    rows = [*outputs([gap, np.nan], "cast", 31), *outputs([np.nan, np.nan], "dflash", 15)]
    stored(folder, "greedy_equivalence", rows, EQUIVALENCE)
    study = data.load(folder.root)
    assert bars(study, exactness.near_ties_in_bf16) == expected
    assert bars(study, exactness.rounding_alone_departs) == (True, True)
    assert bars(study, exactness.the_chain_departs_too) == (False, False)
    with pytest.raises(NotMeasured, match="float32"):
        exactness.exact_in_fp32(data.load(folder.root), [S])


def laws(distance, floor, **place):
    return {
        "level": "first", "prompt_id": "p", "prompt_index": 0, "depth": 0, "budget": 63, "top_k": 8,
        "temperature": 1.0, "seed": 0, "prefix_tokens": 9, "draws": place.get("walks"), "total_variation": distance,
        "floor_mean": 0.8 * floor, "floor_q999": floor, "chi_square": 1.0, "degrees_of_freedom": 3, "p_value": 0.5,
    } | place  # fmt: skip


@pytest.mark.parametrize(("distance", "expected"), [(0.009, True), (0.02, False)])
def test_laws(folder, distance, expected):
    rows = [
        laws(value, 0.01 * 2 ** (15 - power) ** 0.5, dtype=dtype, sampler=sampler, walks=2**power)
        for dtype in ("float64", "bfloat16")
        for sampler in ("walk", "recursive")
        for power, value in ((13, 2 * distance), (15, distance))
    ]
    stored(folder, "total_variation", rows, TOTAL_VARIATION)
    stored(folder, "sampling_under_load", rows, TOTAL_VARIATION)
    study = data.load(folder.root)
    assert bars(study, exactness.sampled_law_in_fp64) == (expected, expected)
    assert bars(study, exactness.sampled_law_in_bf16)[0] is expected
    assert bars(study, exactness.walk_and_recursion_agree) == (True, True)
    assert bars(study, exactness.served_law) == (expected, expected)
    assert bars(study, exactness.served_law_decays) == (True, True)  # half at four times the draws


def test_laws_are_judged_setting_by_setting(folder):
    """The setting of fewer draws counts too, against its own floor, and needs not both samplers."""
    at = {"dtype": "bfloat16", "sampler": "recursive"}
    stored(folder, "total_variation", [laws(0.009, 0.01, walks=8000, **at)], TOTAL_VARIATION)
    few = [laws(0.03, 0.02, walks=500, **at), laws(0.5, 0.6, walks=9000, level="sequence", **at)]
    stored(folder, "total_variation", few, TOTAL_VARIATION, setting="smollm2_bf16")
    study = data.load(folder.root)
    found = exactness.sampled_law_in_bf16(study, [S, "smollm2_bf16"])
    assert (found.reproduced, found.direction) == (False, True)
    assert "0.0090 (floor 0.0080)" in found.ours and "0.0300 (floor 0.0160)" in found.ours
    with pytest.raises(NotMeasured):
        exactness.walk_and_recursion_agree(study, [S])


NONE = [np.nan, np.nan]


@pytest.mark.parametrize(
    ("of_trees", "of_chain", "expected"),
    [
        ([0.2, np.nan], [np.nan, 0.2], (True, True)),
        (NONE, [np.nan, 0.2], (False, True)),
        ([0.2, np.nan], NONE, (False, False)),
        (NONE, NONE, (False, False)),
    ],
)
def test_both_depart_where_both_do(folder, of_trees, of_chain, expected):
    rows = [*outputs(of_trees, "cast", 31), *outputs(of_chain, "dflash", 15)]
    stored(folder, "greedy_equivalence", rows, EQUIVALENCE)
    assert bars(data.load(folder.root), exactness.the_chain_departs_too) == expected
