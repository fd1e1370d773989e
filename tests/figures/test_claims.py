"""Claims of other experiments than the sweep and the replay: each bar from rows that just meet or miss it."""

import numpy as np
import pandas as pd
import pytest
from synthetic_records import decode_row, identity
from test_other_experiments import CHAIN_MS, S, cells, write

from cast.experiments.records import (
    EQUIVALENCE,
    HYBRID_LATENCY,
    LATENCY,
    REPLAY,
    SERVING,
    TOTAL_VARIATION,
    WIDTH_TAX,
    write_records,
)
from figures import data, scorecard
from figures.claims import NotMeasured, cost, drafters, exactness, finding, protocols, rounds, serving, width

T = "smollm2_bf16"


def stored(folder, experiment, rows, schema, domain="math", setting=S):
    """Rows as identity and changes; every other column of the schema stays empty."""
    frame = pd.DataFrame([identity(experiment, setting, domain) | row for row in rows])
    path = folder.root / experiment / setting / f"{domain}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(frame.reindex(columns=list(schema.columns)), path, schema)


def bars(study, function):
    found = function(study, [S])
    assert found.settings == (S,)
    assert "nan" not in found.ours
    return found.reproduced, found.direction


def latencies(by_place, **more):
    return [
        {"component": "target_forward", "prefix_tokens": prefix, "packed_tokens": n, "iteration": 0, "latency_ms": ms}
        | more
        for prefix, at in by_place.items()
        for n, ms in at.items()
    ]


def test_prefixes_and_sessions(folder):
    flat = {16: 20.0, 64: 20.5, 128: 21.0}
    stored(folder, "prefix_probe", latencies({1024: flat, 8192: {n: ms + 1.0 for n, ms in flat.items()}}), LATENCY)
    stored(folder, "latency_probe", latencies({1024: {16: 20.0, 128: 21.5}}), LATENCY, domain="random")
    study = data.load(folder.root)
    assert bars(study, cost.nearly_flat_behind_prefixes) == (True, True)
    assert bars(study, cost.probe_repeats) == (True, False)  # 0.009 and 0.013 ms per token: a third apart


def test_steep_behind_a_long_prefix(folder):
    stored(folder, "prefix_probe", latencies({1024: {16: 20.0, 128: 21.0}, 8192: {16: 20.0, 128: 40.0}}), LATENCY)
    study = data.load(folder.root)
    assert bars(study, cost.nearly_flat_behind_prefixes) == (False, False)


def test_hybrid_targets(folder):
    two = {1: 50.0, 2: 70.0, 16: 71.0, 64: 73.0, 128: 75.0}
    more = {"weights": "random", "fused_kernels": "none"}
    stored(folder, "hybrid_probe", latencies({1024: two, 8192: two | {1: 51.0}}, **more), HYBRID_LATENCY)
    study = data.load(folder.root)
    assert bars(study, cost.hybrid_entry_cost) == (True, True)
    assert bars(study, cost.hybrid_affine_after_entry) == (True, True)
    assert bars(study, cost.hybrid_flat_in_context)[1]
    # A setting that only this experiment measured has a scope of its own.
    tiny = latencies({1024: two}, **more, target="tiny_qwen3_5")
    stored(folder, "hybrid_probe", tiny, HYBRID_LATENCY, setting="tiny_hybrid")
    assert scorecard.scopes(data.load(folder.root)) == {scorecard.EMBEDDED: [S], scorecard.MACHINERY: ["tiny_hybrid"]}


def test_sampling(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({31: 0.3}, r=3.0))
    seeds = [
        row for seed in range(3) for row in cells({31: 0.25 + 0.02 * seed}, r=2.0, seed=seed, temperature=1.0)
    ]  # fmt: skip
    write(folder, "sampled_decoding", [row | {"sampler": "recursive"} for row in seeds])
    study = data.load(folder.root)
    assert bars(study, protocols.sampled_gain_range) == (True, True)
    assert bars(study, protocols.every_seed_gains) == (True, True)
    assert bars(study, protocols.seeds_take_the_same_time) == (True, True)
    assert bars(study, protocols.sampling_shortens_rounds)[1] is False  # the chain's R is the same in both


def test_repeats(folder):
    folder.width(S, 31)
    repeated = [row for n in range(3) for row in cells({31: 0.2 + 0.01 * n, 63: 0.1 + 0.03 * n}, repeat=n)]
    write(folder, "repeated_panel", repeated)
    study = data.load(folder.root)
    assert bars(study, protocols.prompt_gain_bound) == (True, True)
    assert bars(study, protocols.runs_agree) == (True, True)  # 2.0 points at N* = 31
    assert bars(study, protocols.panel_repeats) == (False, True)  # 6.0 points at 63
    folder.sweep(S, "math", cells({31: 0.2}))
    study = data.load(folder.root)
    assert bars(study, rounds.shared_baseline) == (True, True)


def test_lengths_prefixes_and_neighbours(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({31: 0.2}))
    write(folder, "generation_length", cells({31: 0.20}) + cells({31: 0.10}, max_new_tokens=192))
    # 18 points from 7 to 31 say nothing of the widths from 47.
    write(folder, "long_prefix", cells({7: 0.07, 31: 0.25, 63: 0.27, 95: 0.26}))
    write(folder, "shared_device", cells({31: 0.3}))
    study = data.load(folder.root)
    assert bars(study, protocols.longer_generations) == (False, True)  # ten points lost
    assert bars(study, protocols.long_prefix_gain) == (False, True)
    assert bars(study, protocols.long_prefix_gap) == (True, True)
    assert bars(study, protocols.long_prefix_is_flat) == (True, True)
    assert bars(study, protocols.shared_device_inflates) == (True, True)


def test_a_neighbour_is_compared_on_the_prompts_that_the_idle_sweep_has_too(folder):
    """+30% against +10% on five prompts; the sweep's sixth alone would turn the comparison."""
    folder.sweep(S, "math", list(uncertain(31, (0.1, 0.1, 0.1, 0.1, 0.1, 9.0))))
    write(folder, "shared_device", [row for row in cells({31: 0.3}) if row["prompt_index"] < 5])
    found = protocols.shared_device_inflates(data.load(folder.root), [S])
    assert found.reproduced
    assert "+20.0" in found.ours


def test_blocks(folder):
    narrow = [row for row in cells({7: 0.3}) if row["method"] != "autoregressive"]
    short = [row | {"block_size": 8} for row in cells({7: 0.1}) if row["method"] == "cast"]
    chain = [row | {"block_size": 8, "budget": 7} for row in cells({}) if row["method"] == "dflash"]
    write(folder, "block_length", narrow + short + chain)
    study = data.load(folder.root)
    assert bars(study, rounds.shrink_the_tree) == (True, True)
    assert bars(study, rounds.narrow_tree_is_fastest) == (True, True)


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


def test_width_tax(folder):
    rows = [
        {
            "component": component,
            "batch": batch,
            "packed_tokens": n,
            "prefix_tokens": 256,
            "iteration": 0,
            "latency_ms": ms,
        }
        for component, batch, at in (
            ("verify_dense", 1, {1: 10.0, 64: 11.0}),
            ("verify_dense", 8, {1: 10.0, 64: 17.9}),
            ("draft", 1, {16: 3.0}),
            ("draft", 8, {16: 12.0}),
        )
        for n, ms in at.items()
    ]
    stored(folder, "width_tax", rows, WIDTH_TAX)
    study = data.load(folder.root)
    assert bars(study, serving.tax_grows_with_batch) == (True, True)
    assert bars(study, serving.drafting_grows_slowly) == (False, True)  # 4x over 8 requests, the paper 2.9x


def served(variant, active, goodput, r, repeat=0, **changes):
    verifier, policy = variant.split("/")
    tokens = int(10 * goodput)
    return {
        "active": active, "verifier": verifier, "policy": policy, "repeat": repeat, "order": 0, "traced": False,
        "max_new_tokens": 64, "temperature": 0.0, "top_k": 8, "seed": 0, "requests": 8, "rounds": 20,
        "committed_tokens": tokens, "new_tokens": tokens, "full_rounds": 10, "full_committed_tokens": tokens,
        "full_ms": 1e3 * tokens / goodput, "goodput_tokens_per_s": goodput, "elapsed_s": 20.0,
        "tokens_per_s": tokens / 20.0, "r_pooled": r, "nodes_per_request": 8.0, "padded_share": 0.0,
        "mean_active": active, "wait_s": 0.0, "latency_s": 1.0, "departures": 1, "largest_gap": 0.2,
    } | changes  # fmt: skip


def test_serving(folder):
    at = {
        "dense/chain": (50.0, 90.0, 2.0), "dense/fixed_wide": (60.0, 70.0, 3.0), "dense/uniform": (58.0, 88.0, 2.5),
        "dense/best_first": (57.0, 80.0, 2.7), "ragged/best_first": (64.0, 100.0, 2.7),
        "ragged/uniform": (58.0, 88.0, 2.5), "bucketed_2/best_first": (58.0, 60.0, 2.7),
    }  # fmt: skip
    # One request alone has the same tree under every split: neither R nor padding nor buckets say anything there.
    rows = [
        served(variant, active, goodput[place] + repeat / 10, goodput[2] if active > 1 else 2.5, repeat)
        for variant, goodput in at.items()
        for place, active in enumerate((1, 8))
        for repeat in range(3)
    ]
    traced = [
        served(f"{verifier}/best_first", at, 50.0, 2.7, 9, traced=True, verify_ms_per_round=ms, draft_ms_per_round=1.0)
        for verifier, at, ms in (("dense", 8, 11.2), ("ragged", 8, 10.0), ("dense", 1, 9.0), ("ragged", 1, 9.1))
    ]
    stored(folder, "serving_goodput", rows + traced, SERVING)
    stored(folder, "continuous_batching", [row for row in rows if row["verifier"] == "ragged"], SERVING)
    study = data.load(folder.root)
    assert bars(study, serving.best_static_shrinks) == (True, True)
    assert bars(study, serving.requests_lift_rounds) == (True, True)  # 8%
    assert bars(study, serving.dense_allocation_is_no_gain) == (True, True)
    assert bars(study, serving.bucketing_loses) == (True, True)
    assert bars(study, serving.padding_costs) == (True, True)  # 1.2 of 11.2 ms
    assert bars(study, serving.ragged_over_uniform) == (True, True)
    assert bars(study, serving.ragged_over_static) == (False, True)  # 6.7% at one request
    assert bars(study, serving.ragged_adds_acceptance) == (False, True)
    assert bars(study, serving.continuous_batching_gains) == (False, True)
    assert bars(study, serving.served_near_ties) == (True, True)
    assert bars(study, serving.continuous_near_ties) == (True, True)
    assert bars(study, serving.served_chain_departs) == (True, True)


def test_a_lift_of_two_repeats_has_no_interval_that_could_lie_above_zero(folder):
    at = {"dense/uniform": 50.0, "ragged/best_first": 60.0}
    rows = [served(variant, 8, goodput, 2.5, repeat) for variant, goodput in at.items() for repeat in range(2)]
    stored(folder, "serving_goodput", rows, SERVING)
    study = data.load(folder.root)
    assert bars(study, serving.ragged_over_uniform) == (False, True)


def test_padding_is_a_share_of_the_dense_pass(folder):
    for ms, expected in ((11.7, True), (11.9, False)):  # 1.7 of 11.7 is 15%, 1.9 of 11.9 is 16%
        traced = [
            served(f"{verifier}/best_first", 8, 50.0, 2.7, traced=True, verify_ms_per_round=at, draft_ms_per_round=1.0)
            for verifier, at in (("dense", ms), ("ragged", 10.0))
        ]
        stored(folder, "serving_goodput", traced, SERVING)
        assert bars(data.load(folder.root), serving.padding_costs) == (expected, True)


def test_uniform_is_a_static_width_too(folder):
    at = {"chain": (50.0, 90.0), "fixed_wide": (60.0, 70.0), "uniform": (65.0, 95.0)}
    rows = [served(f"dense/{policy}", (1, 8)[n], at[policy][n], 2.0) for policy in at for n in range(2)]
    stored(folder, "serving_goodput", rows, SERVING)
    study = data.load(folder.root)
    assert bars(study, serving.best_static_shrinks) == (False, True)
    stored(folder, "serving_goodput", rows[::2], SERVING)
    with pytest.raises(NotMeasured, match="one number of active requests"):
        serving.best_static_shrinks(data.load(folder.root), [S])


def test_what_cannot_fail_is_not_measured(folder):
    at = {"component": "verify_dense", "batch": 8, "prefix_tokens": 256, "iteration": 0}
    rows = [at | {"packed_tokens": n, "latency_ms": ms} for n, ms in {1: 10.0, 64: 17.9}.items()]
    stored(folder, "width_tax", rows, WIDTH_TAX)
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: 0.3, 31: 0.2}))
    write(folder, "long_prefix", cells({15: 0.25, 63: 0.27}))
    trees = [row for row in cells({15: 0.5}) if row["method"] == "cast"]
    dart = [row | {"method": "dart", "budget": n} for n in (8, 16) for row in trees]
    write(folder, "drafter_comparison", cells({15: 0.5}) + dart)
    study = data.load(folder.root)
    reasons = {
        serving.tax_grows_with_batch: "one batch",
        width.peaks_near_largest: "three swept widths",
        protocols.long_prefix_gap: "at the predicted width",
        protocols.long_prefix_is_flat: "two widths from 47",
        drafters.dart_tree_faster_when_wide: "8, 60 nodes",
        drafters.dart_tree_rounds_rise: "8, 16, 32, 60 nodes",
    }
    for function, reason in reasons.items():
        with pytest.raises(NotMeasured, match=reason):
            function(study, [S])


def test_another_width_does_not_pose_as_the_predicted_one(folder):
    folder.width(S, 31)
    write(folder, "long_prefix", cells({31: 0.3, 63: 0.3}))
    assert "(not N*)" not in protocols.long_prefix_gain(data.load(folder.root), [S]).ours
    folder.width(S, 23)
    assert "math, N = 63 (not N*): +30.0%" in protocols.long_prefix_gain(data.load(folder.root), [S]).ours


def test_one_seed_agrees_with_itself_and_measures_nothing(folder):
    write(folder, "sampled_decoding", cells({31: 0.3}, temperature=1.0, sampler="recursive"))
    for function in (protocols.seeds_take_the_same_time, protocols.every_seed_gains):
        with pytest.raises(NotMeasured, match="one seed"):
            function(data.load(folder.root), [S])


def slower(row, factor):
    return row | {name: factor * row[name] for name in ("ms_per_token", "decode_ms")}


def uncertain(budget, gains, **changes):
    """Cells whose tree gains that much on each prompt."""
    for row in cells({budget: 0.0}, **changes):
        yield slower(row, 1 / (1 + gains[row["prompt_index"]])) if row["method"] == "cast" else row


# 12.5% by the mean over prompts, with an interval from far below 0.
UNSURE = (-0.5, 3.0, -0.5, 3.0, 0.2, 2.0)


def each(gain):
    return (gain,) * len(CHAIN_MS)


def drafted(method, budget, gains, **changes):
    """The rows of one method alone, which gains that much over the chain on each prompt."""
    rows = (row for row in uncertain(budget, gains) if row["method"] == "cast")
    return [row | {"method": method, "budget": budget} | changes for row in rows]


def test_a_gain_of_the_papers_size_that_may_be_none_is_not_reproduced(folder):
    """+22.4% by the mean, with an interval from below 0."""
    gains = (-0.4, 1.5, -0.3, 1.5, 0.4, 0.9)
    folder.width(S, 15)
    swept = [slower(row, 2 if row["method"] == "autoregressive" else 1) for row in uncertain(15, gains)]
    folder.sweep(S, "math", [row | {"target": "llama31_8b"} for row in swept])
    write(folder, "sampled_decoding", uncertain(15, gains, temperature=1.0, sampler="recursive"))
    write(folder, "shared_device", cells({15: 0.3}))
    lift = {"analysis": "budget_sweep", "roots": "every", "method": "cast", "top_k": 8, "bin": "", "n": 9, "prompts": 9}
    lift |= {"budget": 8, "quantity": "r_gain_over_chain", "value": 0.16, "low": -0.01, "high": 0.3}
    stored(folder, "dart_replay", [lift | {"low": None, "high": None}], REPLAY)
    with pytest.raises(NotMeasured, match="no interval"):
        drafters.dart_lift_at_eight(data.load(folder.root), [S])
    stored(folder, "dart_replay", [lift], REPLAY)
    study = data.load(folder.root)
    for function in (
        width.average_gain_range, width.second_family, rounds.shape_gain_range, protocols.sampled_gain_range,
        drafters.dart_lift_at_eight,
    ):  # fmt: skip
        assert bars(study, function) == (False, False), function
    # The idle gain is as uncertain: +30% beside a neighbour is no larger for certain.
    assert bars(study, protocols.shared_device_inflates) == (False, True)


def test_a_loss_of_the_papers_size_that_may_be_none_is_not_reproduced(folder):
    folder.width(S, 15)
    wide = [row for row in uncertain(127, (-0.5, 2, -0.5, 2, -0.3, 1)) if row["method"] == "cast"]
    folder.sweep(S, "math", cells({15: 0.25}) + wide)
    study = data.load(folder.root)
    assert bars(study, width.too_wide_costs) == (False, False)


LUCK = (0.1, 3.0, 0.2, 2.0, 1.0, 0.5)


def lucky(*trees):
    """A chain of 10 ms that some prompts gain much over and others little; of each tree, ms per token by prompt."""
    rows = []
    for prompt in range(len(LUCK)):
        rows.append(decode_row(S, "math", "dflash", 15, prompt, 10.0, 1.9))
        rows += [decode_row(S, "math", "cast", n, prompt, ms[prompt], 2.5) for n, ms in trees]
    return rows


@pytest.mark.parametrize(("slower", "expected"), [(1.125, (True, True)), (1.02, (False, True))])
def test_the_loss_of_the_widest_tree_is_paired_by_prompt(folder, slower, expected):
    """What every prompt loses is certain, though the gains themselves differ so much that their intervals overlap."""
    at_predicted = [10 / (1 + luck) for luck in LUCK]
    folder.width(S, 31)
    folder.sweep(S, "math", lucky((31, at_predicted), (127, [slower * ms for ms in at_predicted])))
    study = data.load(folder.root)
    wide, narrow = (study.average(S, "cast", n) for n in (127, 31))
    assert wide["gain_high"] > narrow["gain"]  # what the verdict rested on before
    found = width.too_wide_costs(study, [S])
    assert (found.reproduced, found.direction) == expected
    loss = 100 * (10 / np.mean(at_predicted)) * (1 - 1 / slower)
    assert f"{S}, N = 127 against 31: {loss:+.1f} [" in found.ours


def test_a_width_of_some_domains_only_is_not_the_widest(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({31: 0.25, 63: 0.05, 127: 0.0}))
    folder.sweep(S, "code", cells({31: 0.25, 63: 0.05}, domain="code"))
    assert "N = 63 against 31: +20.0 [20.0, 20.0] points lost" in width.too_wide_costs(data.load(folder.root), [S]).ours


def test_a_second_peak_counts_where_it_is_certain_by_prompt(folder):
    """Width 31 dips by 3% on every prompt, much less than the gains differ over the prompts."""
    ms = np.array([10 / (1 + luck) for luck in LUCK])
    folder.width(S, 63)
    folder.sweep(S, "math", lucky((15, ms), (31, 1.03 * ms), (63, 0.9 * ms)))
    found = width.throughput_is_unimodal(data.load(folder.root), [S])
    assert found.ours.startswith("1 of 2 steps") and "N = 31 against 15" in found.ours
    assert (found.reproduced, found.direction) == (False, False)


@pytest.mark.parametrize(("spread", "expected"), [(0.05, True), (0.6, False)])
def test_a_gap_that_may_be_none_must_be_known_well(folder, spread, expected):
    """31 is a little ahead of N* = 15: by prompts that nearly agree, and by prompts of which three would say 15."""
    ms = np.array(CHAIN_MS) / 1.3
    signs = np.array([-1, 1, -1, 1, -1, 1])
    rows = cells({63: 0.1})
    for n, times in ((15, ms), (31, ms * (0.999 - spread * signs * 0.5))):
        rows += [decode_row(S, "math", "cast", n, prompt, time, 2.5) for prompt, time in enumerate(times)]
    folder.width(S, 15)
    folder.sweep(S, "math", rows)
    study = data.load(folder.root)
    assert study.gap(S)["oracle_width"] == 31 and study.gap(S)["gap_high"] == 0
    found = width.matches_oracle(study, [S])
    assert (found.reproduced, found.direction) == (False, expected)


def test_one_width_is_no_oracle_and_two_are_no_curve(folder):
    folder.width(S, 15)
    folder.sweep(S, "math", cells({15: 0.3, 31: 0.2}))
    write(folder, "long_prefix", cells({15: 0.3}))
    study = data.load(folder.root)
    for function in (width.matches_oracle, width.gap_to_oracle, width.crossing_near_optimum):
        with pytest.raises(NotMeasured, match="three widths"):
            function(study, [S])
    with pytest.raises(NotMeasured, match="and another"):
        protocols.long_prefix_gap(study, [S])


def test_a_noisy_gain_that_stretches_to_the_papers_is_the_direction_only(folder):
    """+23.7% with an interval from 3 to 71%: wider than the 27, 35.6 and 43.3% that it contains."""
    gains = (0.03, 1.5, 0.02, 0.03, 0.05, 0.7)
    folder.width(S, 15)
    folder.sweep(S, "math", [row | {"target": "qwen3_coder"} for row in uncertain(15, gains)])
    write(folder, "long_prefix", uncertain(15, gains))
    study = data.load(folder.root)
    cell = study.average(S, "cast", 15)
    assert 0 < cell["gain_low"] < 0.27 and cell["gain_high"] > 0.433
    for function in (width.mixture_of_experts, width.best_domain_gain, protocols.long_prefix_gain):
        found = function(study, [S])
        assert (found.reproduced, found.direction) == (False, True), function


def test_rounds_are_compared_where_chain_and_tree_both_are(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: 0.3}, r=3.0))
    sampled = [row | {"sampler": "recursive"} for row in cells({31: 0.25}, r=2.0, temperature=1.0)]
    write(folder, "sampled_decoding", sampled)
    with pytest.raises(NotMeasured, match="no width was decoded both"):  # the chain was, the tree of 31 was not
        protocols.sampling_shortens_rounds(data.load(folder.root), [S])


@pytest.mark.parametrize(
    ("step", "expected"), [(0.74, (True, True)), (-0.8, (False, True)), (3.1, (False, False)), (-3.1, (False, False))]
)
def test_a_plateau_neither_falls_nor_rises(monkeypatch, step, expected):
    monkeypatch.setattr(width, "_flat", lambda study, settings: settings)
    monkeypatch.setattr(width, "_last_steps", lambda study, settings: [finding.Measurement(S, "", step)])
    assert bars(None, width.last_step_is_a_plateau) == expected


def test_a_difference_of_two_gains_has_the_uncertainty_of_both():
    one, other = (
        {"gain": g, "gain_low": low, "gain_high": high} for g, low, high in ((0.3, 0.26, 0.36), (0.2, 0.12, 0.23))
    )
    assert finding.difference(one, other) == pytest.approx((0.1, 0.1 - 0.05, 0.1 + 0.1))


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


def test_eagle3(folder):
    folder.width(S, 31)
    eagle = [
        row | {"method": "eagle3", "budget": 59, "drafter_passes": 8 * row["rounds"]}
        for row in cells({31: -0.05}, r=2.5)
        if row["method"] == "cast"
    ]
    write(folder, "drafter_comparison", cells({31: 0.4}) + eagle)
    study = data.load(folder.root)
    assert bars(study, drafters.faster_than_eagle3) == (True, True)  # 1.4 / 0.95
    assert bars(study, drafters.chain_trails_eagle3) == (False, True)
    assert bars(study, drafters.eagle3_commits_as_much) == (True, True)
    assert bars(study, drafters.eagle3_drafts_many_times) == (True, True)
    with pytest.raises(NotMeasured, match="no DART head"):
        drafters.dart_tree_faster_when_wide(data.load(folder.root), [S])


def test_dart(folder):
    empty = {
        "analysis": "budget_sweep",
        "roots": "every",
        "method": "cast",
        "top_k": 8,
        "bin": "",
        "n": 9,
        "prompts": 9,
    }
    rows = [
        empty | {"budget": n, "quantity": quantity, "value": value, "low": value - 0.01, "high": value + 0.01}
        for quantity, at in (
            ("r_pooled", {1: 1.6, 8: 2.2, 63: 2.8}),
            ("r_gain_over_chain", {1: -0.2, 8: 0.16, 63: 0.5}),
        )
        for n, value in at.items()
    ]
    stored(folder, "dart_replay", rows, REPLAY)
    study = data.load(folder.root)
    assert bars(study, drafters.dart_grows_with_budget) == (True, True)
    assert bars(study, drafters.dart_lift_at_eight) == (True, True)
    assert bars(study, drafters.dart_lift_at_63) == (False, True)
    trees = [
        row | {"method": "dart", "budget": n, "committed_tokens": row["committed_tokens"] + n}
        for n in (8, 16, 32, 60)
        for row in cells({15: 0.5 + n / 100})
        if row["method"] == "cast"
    ]
    write(folder, "drafter_comparison", cells({15: 0.5}) + trees)
    study = data.load(folder.root)
    assert bars(study, drafters.dart_tree_faster_when_wide) == (True, True)
    assert bars(study, drafters.dart_tree_rounds_rise) == (True, True)


def test_widths_of_a_sweep(folder):
    folder.width(S, 127)
    folder.sweep(S, "math", cells({15: 0.1, 31: 0.2, 63: 0.25, 95: 0.26, 127: 0.262}))
    study = data.load(folder.root)
    for function in (width.throughput_is_unimodal, width.every_width_beats_chain, width.wide_plateau):
        assert bars(study, function) == (True, True), function
    assert bars(study, width.last_step_is_a_plateau) == (True, True)
    assert bars(study, width.last_step_not_rewarded) == (False, False)
    folder.width(S, 31)
    study = data.load(folder.root)
    with pytest.raises(NotMeasured, match="no flat cost curve"):
        width.wide_plateau(study, [S])
    with pytest.raises(NotMeasured, match="the paper's target"):
        width.second_family(study, [S])


def test_many_cells_are_shown_as_a_range():
    cells = [finding.Measurement("s", f"d{n}", n / 100) for n in range(20)]
    assert finding.listed(cells, finding.as_number) == "0.00 (s, d0) to 0.19 (s, d19) over 20 cells"


def of(setting, rows):
    return [row | {"setting": setting} for row in rows]


def over_both(study, function):
    found = function(study, [S, T])
    return found.reproduced, found.direction


@pytest.mark.parametrize(("at_64", "expected"), [(22.4, (True, True)), (23.0, (False, True)), (41.0, (False, False))])
def test_growth(folder, at_64, expected):
    stored(folder, "latency_probe", latencies({1024: {16: 20.0, 64: at_64}}), LATENCY, domain="random")
    assert bars(data.load(folder.root), cost.growth_16_to_64) == expected


@pytest.mark.parametrize(
    ("off", "expected"),
    [(2.0, (True, True)), (4.0, (False, True)), (20.0, (False, False)), (-20.0, (False, False))],
)
def test_slope_estimators_differ_where_a_point_is_off_the_line(folder, off, expected):
    curve = {16: 20.0, 96: 28.0 + off, 128: 31.2}
    stored(folder, "latency_probe", latencies({1024: curve}), LATENCY, domain="random")
    assert bars(data.load(folder.root), cost.slope_estimators) == expected


@pytest.mark.parametrize(
    ("function", "near", "far", "expected"),
    [
        (cost.hybrid_entry_cost, {2: 60.0}, {}, (False, True)),
        (cost.hybrid_entry_cost, {}, {2: 60.0}, (False, True)),
        (cost.hybrid_entry_cost, {2: 52.0}, {}, (False, False)),
        (cost.hybrid_affine_after_entry, {64: 90.0}, {}, (False, True)),
        (cost.hybrid_affine_after_entry, {64: 60.0}, {}, (False, True)),
        (cost.hybrid_affine_after_entry, {64: 150.0}, {}, (False, False)),
        (cost.hybrid_affine_after_entry, {}, {64: 150.0}, (True, True)),
        (cost.hybrid_flat_in_context, {}, {1: 50.4}, (True, True)),
        (cost.hybrid_flat_in_context, {}, {1: 51.0}, (False, True)),
        (cost.hybrid_flat_in_context, {}, {1: 65.0}, (False, False)),
        (cost.hybrid_flat_in_context, {}, {1: 38.0}, (False, False)),
    ],
)
def test_hybrid_targets_that_miss_a_bar(folder, function, near, far, expected):
    curve = {1: 50.0, 2: 70.0, 16: 71.0, 64: 73.0, 128: 75.0}
    rows = latencies({1024: curve | near, 8192: curve | far}, weights="random", fused_kernels="none")
    stored(folder, "hybrid_probe", rows, HYBRID_LATENCY)
    assert bars(data.load(folder.root), function) == expected


@pytest.mark.parametrize(
    ("least", "step", "gains", "times"),
    [
        (0.10, 0.02, (False, True), (True, True)),
        (-0.05, 0.02, (False, False), (True, True)),
        (0.25, 0.10, (True, True), (False, True)),
        (0.25, 0.30, (True, True), (False, False)),
    ],
)
def test_seeds(folder, least, step, gains, times):
    folder.width(S, 31)
    seeds = [row for n in range(3) for row in cells({31: least + step * n}, seed=n, temperature=1.0)]
    write(folder, "sampled_decoding", [row | {"sampler": "recursive"} for row in seeds])
    study = data.load(folder.root)
    assert bars(study, protocols.every_seed_gains) == gains
    assert bars(study, protocols.seeds_take_the_same_time) == times


@pytest.mark.parametrize(
    ("extra", "expected"),
    [((1, 1, 1, 1, 1, 1), (True, True)), ((2, 0, 0, 0, 0, 0), (False, True)), ((2, 2, 2, 2, 2, 2), (False, False))],
)
def test_a_draft_pass_more_than_the_first_is_one_too_many(folder, extra, expected):
    rows = [row | {"drafter_passes": row["rounds"] + extra[row["prompt_index"]]} for row in cells({31: 0.2})]
    folder.sweep(S, "math", rows)
    assert bars(data.load(folder.root), rounds.one_draft_pass_a_round) == expected


def traced(method, budget, draft_ms=9.0, overhead_ms=3.0, setting=S):
    parts = {"draft_ms_per_round": draft_ms, "verify_ms_per_round": 50.0, "overhead_ms_per_round": overhead_ms}
    return decode_row(setting, "math", method, budget, 0, 10.0, 2.5, traced=True, repeat=1, **parts)


@pytest.mark.parametrize(
    ("widest", "expected"),
    [
        (9.8, (True, True)),
        (7.5, (False, True)),
        (10.8, (False, True)),
        (6.0, (False, False)),
        (12.0, (False, False)),
    ],
)
def test_drafting_of_the_widest_tree_takes_the_chains_time(folder, widest, expected):
    parts = [traced("dflash", 15, 9.0), traced("cast", 31, 20.0), traced("cast", 63, widest)]
    folder.sweep(S, "math", cells({31: 0.2, 63: 0.2}) + parts)
    assert bars(data.load(folder.root), rounds.drafting_ignores_width) == expected


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [((0.02, 0.01), (True, True)), ((0.02, -0.01), (False, True)), ((-0.02, -0.01), (False, False))],
)
def test_overhead_by_width(folder, slopes, expected):
    for setting, slope in zip((S, T), slopes, strict=True):
        parts = [traced("cast", n, overhead_ms=3.0 + slope * n, setting=setting) for n in (31, 63)]
        folder.sweep(setting, "math", of(setting, cells({31: 0.2, 63: 0.2})) + parts)
    assert over_both(data.load(folder.root), rounds.overhead_grows_with_width) == expected


@pytest.mark.parametrize(
    ("of_odd_prompts", "expected"), [(50, (True, True)), (57, (False, True)), (76, (False, False))]
)
def test_round_lengths_of_unlike_prompts(folder, of_odd_prompts, expected):
    """Half of the tree's outputs take 38 rounds, the others so many: by 1.9, 4.2 and 12.5% the averages differ."""
    rows = cells({31: 0.2})
    for row in rows:
        if row["method"] == "cast" and row["prompt_index"] % 2:
            row["rounds"] = of_odd_prompts
    folder.sweep(S, "math", rows)
    assert bars(data.load(folder.root), rounds.round_length_statistics) == expected


@pytest.mark.parametrize(
    ("oracles", "expected"),
    [((31, 15), (True, True)), ((31, 63), (False, True)), ((63, 63), (False, False))],
)
def test_a_crossing_lies_between_two_swept_widths(folder, oracles, expected):
    """N* = 31 is predicted from a crossing at 29."""
    for setting, oracle in zip((S, T), oracles, strict=True):
        folder.width(setting, 31)
        gains = {n: 0.3 if n == oracle else 0.1 for n in (15, 31, 63)}
        folder.sweep(setting, "math", of(setting, cells(gains)))
    assert over_both(data.load(folder.root), width.crossing_near_optimum) == expected


@pytest.mark.parametrize(
    ("at_chains_width", "gains", "expected"),
    [
        (0.10, each(0.19), (True, True)),
        (0.04, UNSURE, (False, True)),  # 8.5 points more
        (0.10, each(0.13), (False, True)),
        (0.20, each(0.10), (False, False)),
    ],
)
def test_width_adds_to_the_shape_where_it_does_by_prompt(folder, at_chains_width, gains, expected):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: at_chains_width}) + drafted("cast", 31, gains))
    assert bars(data.load(folder.root), rounds.width_beyond_shape) == expected


@pytest.mark.parametrize(("plain", "expected"), [(2.5, (True, True)), (1.0, (False, True)), (0.4, (False, False))])
def test_speedup(folder, plain, expected):
    """Plain decoding takes twice the chain's time, times so much."""
    rows = [slower(row, plain) if row["method"] == "autoregressive" else row for row in cells({31: 0.2})]
    folder.width(S, 31)
    folder.sweep(S, "math", rows)
    assert bars(data.load(folder.root), width.speedup_over_ar) == expected


def test_a_speedup_of_four_prompts_is_none(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", [row for row in cells({31: 0.2}) if row["prompt_index"] < 4])
    with pytest.raises(NotMeasured, match="no interval"):
        width.speedup_over_ar(data.load(folder.root), [S])


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [
        (0.26, each(0.25), (True, True)),
        (0.26, each(0.27), (False, False)),
        (0.15, UNSURE, (False, True)),  # 2.5 points lost, or many won
        (0.11, UNSURE, (False, False)),
    ],
)
def test_a_last_step_is_no_reward_where_a_gain_is_ruled_out(folder, before, last, expected):
    folder.width(S, 127)
    folder.sweep(S, "math", cells({63: 0.1, 95: before}) + drafted("cast", 127, last))
    assert bars(data.load(folder.root), width.last_step_not_rewarded) == expected


@pytest.mark.parametrize(
    ("gains", "chain", "narrowest", "shrunk"),
    [
        (each(0.3), 1.0, (True, True), (True, True)),
        (each(0.3), 0.7, (False, False), (True, True)),  # the chain of a block of eight is faster
        (UNSURE, 1.0, (False, True), (False, True)),
        (each(-0.1), 1.0, (False, False), (False, False)),
    ],
)
def test_blocks_are_compared_by_prompt(folder, gains, chain, narrowest, shrunk):
    chains = [row for row in cells({}) if row["method"] == "dflash"]
    short = [slower(row, chain) | {"block_size": 8, "budget": 7} for row in chains]
    trees = drafted("cast", 7, gains) + drafted("cast", 7, each(0.0), block_size=8)
    write(folder, "block_length", chains + short + trees)
    study = data.load(folder.root)
    assert bars(study, rounds.narrow_tree_is_fastest) == narrowest
    assert bars(study, rounds.shrink_the_tree) == shrunk


@pytest.mark.parametrize(
    ("gains", "eagle", "faster", "trails"),
    [
        (each(0.4), 0.05, (True, True), (True, True)),
        (UNSURE, -1 / 6, (False, True), (False, True)),  # +35%, in the paper's range
        (UNSURE, 0.05, (False, True), (False, True)),  # the chain trails for certain, CAST may too
        (each(0.0), 0.05, (False, False), (False, False)),
    ],
)
def test_eagle3_is_compared_by_prompt(folder, gains, eagle, faster, trails):
    folder.width(S, 31)
    trees = drafted("cast", 31, gains) + drafted("eagle3", 59, each(eagle))
    write(folder, "drafter_comparison", cells({}) + trees)
    study = data.load(folder.root)
    assert bars(study, drafters.faster_than_eagle3) == faster
    assert bars(study, drafters.chain_trails_eagle3) == trails


@pytest.mark.parametrize(
    ("gains", "rounds_of_larger", "expected"),
    [
        (each(0.2), 30, (True, True)),
        (UNSURE, 30, (False, True)),
        (each(0.2), 45, (False, True)),  # the smaller tree takes 38
        (each(-0.1), 30, (False, False)),
    ],
)
def test_eagle3s_larger_tree(folder, gains, rounds_of_larger, expected):
    trees = drafted("eagle3", 15, each(0.0)) + drafted("eagle3", 59, gains, rounds=rounds_of_larger)
    write(folder, "drafter_comparison", cells({}) + trees)
    assert bars(data.load(folder.root), drafters.eagle3_larger_tree_is_faster) == expected


def test_one_tree_of_eagle3_is_not_the_larger(folder):
    write(folder, "drafter_comparison", cells({}) + drafted("eagle3", 59, each(0.2)))
    with pytest.raises(NotMeasured, match="16 and of 60"):
        drafters.eagle3_larger_tree_is_faster(data.load(folder.root), [S])


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        (0.0, each(0.6), (True, True)),
        (0.0, UNSURE, (False, True)),
        (-0.3, each(-0.1), (False, True)),  # a speedup of 1.8
        (0.0, each(-0.1), (False, False)),
    ],
)
def test_darts_trees_are_compared_by_prompt(folder, narrow, wide, expected):
    trees = drafted("dart", 8, each(narrow)) + drafted("dart", 60, wide)
    write(folder, "drafter_comparison", cells({}) + trees)
    assert bars(data.load(folder.root), drafters.dart_tree_faster_when_wide) == expected


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


ALLOCATED = (serving.dense_allocation_is_no_gain, "serving_goodput", "dense/best_first", "dense/uniform")
BUCKETED = (serving.bucketing_loses, "serving_goodput", "bucketed_2/best_first", "dense/best_first")
ARRIVING = (serving.continuous_batching_gains, "continuous_batching", "ragged/best_first", "ragged/uniform")


@pytest.mark.parametrize(
    ("claim", "goodput", "expected"),
    [
        (ALLOCATED, (49.0, 49.2, 48.8), (True, True)),
        (ALLOCATED, (51.0, 49.5, 50.2), (False, False)),  # +0.5%, or none
        (ALLOCATED, (40.0, 52.0, 46.0), (False, True)),  # a loss that may be a gain of 26%
        (ALLOCATED, (49.0, 49.2), (False, True)),  # no interval
        (ALLOCATED, (60.0, 45.0, 52.0), (False, False)),
        (ALLOCATED, (55.0, 55.5, 54.5), (False, False)),
        (BUCKETED, (40.0, 40.5, 39.5), (True, True)),
        (BUCKETED, (40.0, 52.0, 46.0), (False, True)),
        (BUCKETED, (40.0, 40.5), (False, True)),
        (BUCKETED, (55.0, 55.5, 54.5), (False, False)),
        (ARRIVING, (51.0, 51.2, 50.9), (True, True)),
        (ARRIVING, (51.0, 55.0, 47.5), (False, True)),  # +2.1%, in the paper's range
        (ARRIVING, (49.0, 49.2, 48.8), (False, False)),
    ],
)
def test_goodput_is_judged_by_its_interval_over_repeats(folder, claim, goodput, expected):
    """Over 50 tokens per second in every repeat."""
    function, experiment, variant, base = claim
    rows = [
        served(name, 8, value, 2.5, repeat)
        for repeat, ours in enumerate(goodput)
        for name, value in ((variant, ours), (base, 50.0))
    ]
    stored(folder, experiment, rows, SERVING)
    assert bars(data.load(folder.root), function) == expected
