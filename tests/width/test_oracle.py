import pytest

from cast.errors import CastError
from cast.width import gap_points, sweep_oracle


def test_the_papers_blackwell_8b_row():
    gains = {15: 0.1107, 31: 0.158, 47: 0.192, 63: 0.198, 95: 0.2147, 127: 0.024}  # means of Table 8
    assert sweep_oracle(gains) == 95
    assert gap_points(gains, 63) == pytest.approx(-1.67)
    assert gap_points(gains, 95) == 0.0


def test_of_equal_gains_the_narrower_width():
    assert sweep_oracle({63: 0.2, 31: 0.2, 15: 0.1}) == 31
    assert gap_points({63: 0.2, 31: 0.2}, 63) == 0.0


def test_bad_sweeps():
    with pytest.raises(CastError, match="no width"):
        sweep_oracle({})
    with pytest.raises(CastError, match="width 31 is nan"):
        sweep_oracle({15: 0.1, 31: float("nan")})
    with pytest.raises(CastError, match="swept widths are 15, 31"):
        gap_points({31: 0.2, 15: 0.1}, 63)
