import numpy as np
import pytest

from cast.errors import CastError
from cast.width import LatencyCurve

N = [1, 16, 24, 32, 48, 64, 96, 128]

# The paper's Table 5, ms; then least-squares and endpoint slope over n in [16, 128] recomputed from it.
TABLE_5 = {
    "Blackwell 8B": ([17.2, 21.9, 23.3, 23.6, 24.1, 24.6, 24.4, 30.3], 0.0576, 0.0750),
    "A6000 8B": ([117.0, 128.1, 128.8, 131.5, 129.6, 129.6, 133.2, 129.1], 0.0141, 0.0089),
    "A100 8B": ([30.2, 34.4, 33.2, 39.4, 34.9, 35.3, 35.9, 35.6], 0.0050, 0.0107),
    "H100 NVL 8B": ([14.7, 17.9, 17.8, 20.8, 18.2, 18.4, 19.2, 19.2], 0.0066, 0.0116),
    "Blackwell 4B": ([16.9, 18.7, 19.6, 19.5, 19.4, 19.4, 20.9, 20.4], 0.0145, 0.0152),
    "H100 SXM 8B": ([24.7, 30.6, 30.2, 30.6, 31.2, 31.5, 32.2, 32.6], 0.0211, 0.0179),
    "H100 SXM 4B": ([23.9, 25.3, 25.1, 25.3, 25.7, 25.9, 26.6, 27.1], 0.0179, 0.0161),
}


@pytest.mark.parametrize("row", TABLE_5)
def test_both_estimators_on_the_papers_table_5(row):
    latency, least_squares, endpoints = TABLE_5[row]
    curve = LatencyCurve(N, latency)
    assert curve.slope(16, 128) == pytest.approx(least_squares, abs=0.5e-4)
    assert curve.slope(16, 128, estimator="endpoints") == pytest.approx(endpoints, abs=0.5e-4)


def test_blackwell_8b_fit_and_its_dependence_on_the_cliff():
    curve = LatencyCurve(N, TABLE_5["Blackwell 8B"][0])
    intercept, slope = curve.fit(16, 128)
    assert intercept == pytest.approx(21.245, abs=0.0005)
    reference = np.polyfit(N[1:], TABLE_5["Blackwell 8B"][0][1:], 1)
    assert (slope, intercept) == pytest.approx(tuple(reference))
    assert curve.slope(16, 127) == pytest.approx(0.0264, abs=0.5e-4)


def test_the_endpoint_line_passes_through_both_end_points():
    curve = LatencyCurve(N, TABLE_5["H100 SXM 8B"][0])
    intercept, slope = curve.fit(16, 128, "endpoints")
    assert intercept + 16 * slope == pytest.approx(30.6)
    assert intercept + 128 * slope == pytest.approx(32.6)


def test_points_are_sorted_and_interpolated():
    curve = LatencyCurve([64, 16, 32], [30.0, 10.0, 14.0])
    assert curve.packed_tokens.tolist() == [16, 32, 64]
    assert curve.at(16) == 10.0
    assert curve.at(24) == pytest.approx(12.0)
    assert isinstance(curve.at(24), float)
    assert curve.at([32, 48, 64]).tolist() == pytest.approx([14.0, 22.0, 30.0])


def test_the_curve_cannot_be_changed_and_does_not_change_with_its_input():
    latency = np.array([10.0, 14.0])
    curve = LatencyCurve([16, 32], latency)
    latency[0] = 99.0
    assert curve.at(16) == 10.0
    with pytest.raises(ValueError, match="read-only"):
        curve.latency_ms[0] = 1.0


@pytest.mark.parametrize("n", [15, 65, float("nan"), [20, 200]])
def test_no_extrapolation(n):
    with pytest.raises(CastError, match="not measured; the probe covers 16 to 64"):
        LatencyCurve([16, 32, 64], [10.0, 14.0, 30.0]).at(n)


@pytest.mark.parametrize(
    ("packed_tokens", "latency_ms", "message"),
    [
        ([16], [10.0], "at least two"),
        ([], [], "at least two"),
        ([16, 32], [10.0], "2 packed-token counts but 1 latencies"),
        ([16, 16], [10.0, 11.0], "16 appears twice"),
        ([0, 16], [10.0, 11.0], r"packed_tokens\[0\] is 0"),
        ([1, 16], [10.0, float("nan")], r"latency_ms\[1\] is nan"),
        ([1, 16], [10.0, float("inf")], r"latency_ms\[1\] is inf"),
        ([1, 16], [-1.0, 2.0], r"latency_ms\[0\] is -1"),
        ([[1, 16]], [10.0, 11.0], "flat list"),
        (["a", "b"], [10.0, 11.0], "numbers"),
    ],
)
def test_bad_curves(packed_tokens, latency_ms, message):
    with pytest.raises(CastError, match=message) as caught:
        LatencyCurve(packed_tokens, latency_ms)
    assert "\n" not in str(caught.value)


def test_bad_fits():
    curve = LatencyCurve([1, 16, 200], [10.0, 14.0, 30.0])
    with pytest.raises(CastError, match=r"16 to 128 packed tokens: the probe has 1 point"):
        curve.slope(16, 128)
    with pytest.raises(CastError, match="choose one of least_squares, endpoints"):
        curve.slope(1, 200, estimator="median")
