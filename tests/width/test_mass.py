import numpy as np
import pytest

from cast.errors import CastError
from cast.width import MassCurve


def test_sums_and_order_statistics():
    curve = MassCurve([0.5, 0.25, 0.125])
    assert len(curve) == 3
    assert [curve.g(n) for n in range(4)] == [0.0, 0.5, 0.75, 0.875]
    assert [curve.mass(n) for n in (1, 2, 3)] == [0.5, 0.25, 0.125]
    assert curve.g(np.int64(2)) == 0.75


def test_beyond_the_end_says_how_many_masses_there_are():
    curve = MassCurve([0.5, 0.25])
    for ask in (lambda: curve.g(3), lambda: curve.mass(3), lambda: curve.g(-1), lambda: curve.mass(0)):
        with pytest.raises(CastError, match="2 masses are known"):
            ask()
    with pytest.raises(CastError, match="whole number"):
        curve.g(1.5)


def test_rounding_noise_is_removed():
    curve = MassCurve([1.0 + 5e-7, 0.5, 0.5 + 5e-7])
    assert curve.masses.tolist() == [1.0, 0.5, 0.5]


def test_from_rounds_sorts_each_round_before_averaging():
    rounds = np.array([[0.1, 0.9, 0.4], [0.5, 0.2, 0.0]], dtype=np.float32)
    assert MassCurve.from_rounds(rounds).masses == pytest.approx([0.7, 0.3, 0.05])


@pytest.mark.parametrize(
    ("masses", "message"),
    [
        ([0.5, 0.6], r"mass 2 \(0.6\) is larger than mass 1 \(0.5\)"),
        ([1.1, 0.5], r"masses\[0\] is 1.1"),
        ([0.5, -0.1], r"masses\[1\] is -0.1"),
        ([0.5, float("nan")], r"masses\[1\] is nan"),
        ([], "shape"),
        ([[0.5]], "shape"),
        (["x"], "numbers"),
    ],
)
def test_bad_masses(masses, message):
    with pytest.raises(CastError, match=message) as caught:
        MassCurve(masses)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rounds", [[0.5, 0.4], np.empty((0, 4)), [[0.5, float("nan")]]])
def test_bad_rounds(rounds):
    with pytest.raises(CastError, match="mass curve"):
        MassCurve.from_rounds(rounds)
