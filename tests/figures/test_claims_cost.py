"""Claims about latency curves and hybrid targets: each bar from rows that just meet or miss it."""

import pytest
from claim_rows import bars, stored
from test_other_experiments import S

from cast.experiments.records import HYBRID_LATENCY, LATENCY
from figures import data, scorecard
from figures.claims import cost


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
