"""A draw is the exact inverse of a distribution function, and no uniform meets a weight of zero."""

import itertools
import math

import pytest
import torch

from cast import CastError
from cast.verify.chance import Chance

LARGEST = 1 - 2**-53


class Fixed(Chance):
    """Its next uniform is always the same one."""

    def __init__(self, uniform):
        self._uniform = uniform

    def uniform(self):
        return self._uniform


def drawn(weights, uniform):
    """The draw by both ways: from a list of weights, and from a tensor of their running sums."""
    sums = torch.tensor(list(itertools.accumulate(weights)), dtype=torch.float64)
    return Fixed(uniform).index(weights), Fixed(uniform).token(sums)


# Their sums are powers of two, so that every product with a uniform is exact.
EXACT = [[1.0], [0.25, 0.75], [0.0, 0.25, 0.0, 0.5, 0.25, 0.0, 0.0], [2.0, 0.0, 0.0, 6.0, 0.0]]


@pytest.mark.parametrize("weights", EXACT)
def test_a_draw_inverts_the_distribution_function_at_and_beside_every_step(weights):
    sums = list(itertools.accumulate(weights))
    steps = {0.0, *(part / sums[-1] for part in sums)}
    near = {math.nextafter(step, side) for step in steps for side in (0.0, 1.0)}
    for uniform in sorted(u for u in steps | near | {LARGEST} if 0 <= u < 1):
        first_above = next(place for place, part in enumerate(sums) if part > uniform * sums[-1])
        assert drawn(weights, uniform) == (first_above, first_above), uniform


@pytest.mark.parametrize(
    "weights", [[0.1] * 3 + [0.0], [0.0, 1 / 3, 1e-300, 0.0], [5e-324, 0.0], [1e-3] * 7 + [0.0] * 2]
)
@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.3, 1 / 3, 0.5, LARGEST])
def test_no_rounding_draws_a_weight_of_zero(weights, uniform):
    for place in drawn(weights, uniform):
        assert weights[place] > 0


def test_the_largest_uniform_draws_the_last_token_of_any_weight():
    # Its product with the least sum there is rounds up to the sum itself.
    weights = [0.0, 5e-324, 0.0]
    assert LARGEST * sum(weights) == sum(weights)
    assert drawn(weights, LARGEST) == (1, 1)


@pytest.mark.parametrize("probability", [0.0, -0.5])
def test_what_is_impossible_never_happens(probability):
    assert not Fixed(0.0).happens(probability)


def test_what_is_sure_always_happens():
    assert Fixed(LARGEST).happens(1.0)
    assert Fixed(0.25).happens(math.nextafter(0.25, 1.0))
    assert not Fixed(0.25).happens(0.25)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [math.nan, 1.0]])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(CastError, match="no token can be drawn"):
        Fixed(0.5).token(torch.tensor(weights, dtype=torch.float64).cumsum(0))


def test_uniforms_are_those_of_the_seed_without_end():
    generator = torch.Generator().manual_seed(3)
    expected = torch.cat([torch.rand(256, generator=generator, dtype=torch.float64) for _ in range(2)]).tolist()
    chance = Chance(3)
    assert [chance.uniform() for _ in range(300)] == expected[:300]
