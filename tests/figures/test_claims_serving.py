"""Claims about serving: each bar from rows that just meet or miss it."""

import pytest
from claim_rows import bars, stored
from test_other_experiments import S

from cast.experiments.records import SERVING, WIDTH_TAX
from figures import data
from figures.claims import NotMeasured, serving


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
