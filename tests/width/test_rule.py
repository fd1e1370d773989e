"""The stopping rule against brute force, on random concave g and affine l (Theorem 2, Proposition 3)."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cast.errors import CastError
from cast.width import LatencyCurve, MassCurve, predict_width

PROBED = [1, 16, 24, 32, 48, 64, 96, 128]


def affine(intercept, per_token, packed=PROBED):
    return LatencyCurve(packed, [intercept + per_token * n for n in packed])


def geometric(count=512, first=0.86, ratio=0.97):
    return MassCurve(first * ratio ** np.arange(count))


def brute_force(masses, round_ms, roots=1):
    """Throughput of N = 0..M nodes, straight from the definition."""
    return [(roots + sum(masses[:n])) / round_ms(n) for n in range(len(masses) + 1)]


falling_masses = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(lambda m: sorted(m, reverse=True))
milliseconds = st.floats(0.1, 100)


@settings(max_examples=300, deadline=None)
@given(falling_masses, milliseconds, st.floats(0, 5), st.floats(0, 20), st.floats(0, 5), st.integers(1, 8))
def test_first_failure_is_the_maximum(masses, intercept, per_token, draft_ms, overhead_ms, roots):
    prediction = predict_width(
        MassCurve(masses),
        affine(intercept, per_token),
        draft_ms=draft_ms,
        overhead_ms=overhead_ms,
        roots=roots,
    )
    throughput = brute_force(masses, lambda n: draft_ms + overhead_ms + intercept + per_token * (roots + n), roots)
    crossing, noise = prediction.crossing, 1 + 1e-9
    assert throughput[crossing] * noise >= max(throughput)
    for before, after in pairwise(throughput[: crossing + 1]):
        assert after * noise >= before
    for before, after in pairwise(throughput[crossing:]):
        assert after <= before * noise
    if crossing < len(masses):
        assert masses[crossing] < prediction.threshold * noise
    assert prediction.threshold == pytest.approx(throughput[crossing] * per_token, rel=1e-6, abs=1e-9)
    assert prediction.width == max(1, crossing)  # every width is allowed, so only N = 0 moves
    for width, value in prediction.throughput.items():
        assert value == pytest.approx(throughput[width], rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(falling_masses, min_size=1, max_size=5), st.floats(1, 50), st.floats(0.01, 3))
def test_a_shared_budget_follows_the_merged_forest(requests, intercept, per_token):
    """Proposition 3: the merged forest and one root per request, against all splits of the budget."""
    roots = len(requests)
    merged = list(heapq.merge(*requests, reverse=True))
    prediction = predict_width(
        MassCurve(merged), affine(intercept, per_token), draft_ms=2.0, roots=roots, rounding="best"
    )
    best = [0.0]  # largest accepted mass at each shared budget, by dynamic programming over the requests
    for masses in requests:
        sums = np.concatenate([[0.0], np.cumsum(masses)])
        best = [
            max(best[m - k] + sums[k] for k in range(len(sums)) if 0 <= m - k < len(best))
            for m in range(len(best) + len(masses))
        ]
    throughput = [(g + roots) / (2.0 + intercept + per_token * (roots + m)) for m, g in enumerate(best)]
    assert throughput[prediction.crossing] * (1 + 1e-9) >= max(throughput)


@settings(max_examples=100, deadline=None)
@given(falling_masses, st.lists(st.floats(1, 100), min_size=8, max_size=8), st.data())
def test_measured_cost_is_brute_force_over_the_allowed_widths(masses, latency, data):
    grid = data.draw(st.sets(st.integers(1, len(masses)), min_size=1))
    curve = LatencyCurve(PROBED, latency)
    prediction = predict_width(MassCurve(masses), curve, draft_ms=3.0, grid=grid, cost="measured")
    expected = {n: (1 + sum(masses[:n])) / (3.0 + curve.at(1 + n)) for n in sorted(grid)}
    assert prediction.throughput == pytest.approx(expected)
    assert expected[prediction.width] == pytest.approx(max(expected.values()))
    assert prediction.crossing is None and prediction.threshold is None
    assert prediction.slope_ms_per_token is None and prediction.intercept_ms is None


def test_rounding_up_and_best():
    masses, latency = geometric(), affine(20.0, 0.5)
    crossing = predict_width(masses, latency, draft_ms=2.0).crossing
    grid = [7, 15, 31, 63, 127]
    up = predict_width(masses, latency, draft_ms=2.0, grid=grid)
    best = predict_width(masses, latency, draft_ms=2.0, grid=grid, rounding="best")
    assert up.crossing == best.crossing == crossing
    assert up.width == min(width for width in grid if width >= crossing)
    assert best.width == max(best.throughput, key=best.throughput.get)
    assert list(up.throughput) == grid
    exactly = predict_width(masses, latency, draft_ms=2.0, grid=[crossing - 1, crossing, crossing + 1])
    assert exactly.width == crossing


def test_up_and_best_can_differ():
    masses = MassCurve([0.9] * 8 + [0.01] * 200)
    latency = affine(20.0, 1.0)
    modes = {r: predict_width(masses, latency, draft_ms=0, grid=[7, 127], rounding=r) for r in ("up", "best")}
    assert modes["up"].crossing == 8
    assert (modes["up"].width, modes["best"].width) == (127, 7)


def test_beyond_the_largest_allowed_width():
    assert predict_width(geometric(), affine(100.0, 0.001), draft_ms=5, grid=[15, 31]).width == 31


def test_a_cost_that_forbids_any_node_leaves_the_smallest_allowed_width():
    prediction = predict_width(MassCurve([0.1] * 40), affine(0.1, 5.0), draft_ms=0.0, grid=[31, 15])
    assert (prediction.crossing, prediction.width) == (0, 15)


@pytest.mark.parametrize("estimator", ["least_squares", "endpoints"])
def test_a_falling_cost_never_caps_the_width(estimator):
    latency = affine(30.0, -0.016)
    prediction = predict_width(geometric(), latency, draft_ms=2.0, grid=[63, 127], slope=estimator)
    assert prediction.slope_ms_per_token == 0.0
    assert prediction.intercept_ms == pytest.approx(latency.latency_ms[1:].mean())
    assert (prediction.crossing, prediction.threshold, prediction.width) == (512, 0.0, 127)


def test_a_condition_that_never_fails_gives_the_number_of_masses():
    prediction = predict_width(MassCurve([0.9, 0.8, 0.7]), affine(50.0, 0.1), draft_ms=0.0)
    assert (prediction.crossing, prediction.width) == (3, 3)


def test_the_slope_estimators_lead_to_different_crossings():
    blackwell_8b = LatencyCurve(PROBED, [17.2, 21.9, 23.3, 23.6, 24.1, 24.6, 24.4, 30.3])
    by_fit, by_ends = (
        predict_width(geometric(), blackwell_8b, draft_ms=2.0, slope=s) for s in ("least_squares", "endpoints")
    )
    assert by_fit.slope_ms_per_token == pytest.approx(0.0576, abs=0.5e-4)
    assert by_ends.slope_ms_per_token == pytest.approx(0.0750, abs=0.5e-4)
    assert by_ends.crossing < by_fit.crossing


def test_a_transient_in_the_probe_does_not_stop_the_measured_rule():
    bumpy = LatencyCurve(PROBED, [20, 21, 40, 21, 21, 21, 21, 21])
    flat = predict_width(geometric(), bumpy, draft_ms=2.0, grid=[15, 23, 31, 63, 127], cost="measured")
    assert flat.width == 127
    assert flat.throughput[23] < flat.throughput[15]


def test_of_equal_throughputs_the_narrower():
    curve = LatencyCurve([1, 2, 3], [1.0, 1.0, 1.0])
    prediction = predict_width(MassCurve([0.5, 0.0]), curve, draft_ms=0.0, grid=[1, 2], cost="measured")
    assert prediction.width == 1


def test_without_a_grid_every_width_with_mass_and_latency_is_allowed():
    latency = affine(20.0, 0.1, packed=[16, 32, 64])
    allowed = list(predict_width(geometric(40), latency, draft_ms=1.0).throughput)
    assert allowed == list(range(1, 41))
    allowed = list(predict_width(geometric(512), latency, draft_ms=1.0, roots=4).throughput)
    assert allowed == list(range(1, 61))
    allowed = list(predict_width(geometric(512), latency, draft_ms=1.0, cost="measured").throughput)
    assert allowed == list(range(15, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": "exact"}, "cost 'exact' is unknown; choose one of affine, measured"),
        ({"rounding": "down"}, "choose one of up, best"),
        ({"slope": "median"}, "choose one of least_squares, endpoints"),
        ({"draft_ms": -1.0}, "draft_ms is -1"),
        ({"draft_ms": float("nan")}, "draft_ms is nan"),
        ({"draft_ms": "fast"}, "draft_ms must be a number"),
        ({"overhead_ms": float("inf")}, "overhead_ms is inf"),
        ({"roots": 0}, "roots is 0"),
        ({"roots": 1.5}, "roots must be a whole number"),
        ({"grid": []}, "empty"),
        ({"grid": 63}, "must be a list"),
        ({"grid": [0, 7]}, "allowed width 0"),
        ({"grid": [7.5]}, "whole number"),
        ({"grid": [7, 65]}, "allowed width 65 lies beyond the mass curve of 64 masses"),
        (
            {"grid": [7], "cost": "measured"},
            "allowed width 7 lies outside the measured latency range of widths 15",
        ),
        ({"grid": [48], "cost": "measured"}, "probe 49 packed tokens"),
        ({"roots": 48}, "no width has both"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"draft_ms": 1.0} | change
    with pytest.raises(CastError, match=message) as caught:
        predict_width(geometric(64), affine(20.0, 0.1, packed=[16, 32, 48]), **arguments)
    assert "\n" not in str(caught.value)


def test_a_fit_that_makes_the_root_free_is_refused():
    with pytest.raises(CastError, match="a positive time"):
        predict_width(geometric(), LatencyCurve([16, 32], [1.0, 20.0]), draft_ms=1.0)


def test_a_probe_without_points_in_the_fit_range_is_refused():
    with pytest.raises(CastError, match="16 to 128"):
        predict_width(geometric(), affine(20.0, 0.1, packed=[1, 4, 8]), draft_ms=1.0)
