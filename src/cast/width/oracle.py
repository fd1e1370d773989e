"""What a timing sweep would have chosen, and how far a predicted width is from it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cast.errors import CastError


def sweep_oracle(gains: Mapping[int, float]) -> int:
    """The swept width with the largest gain; of equal gains the narrower width.

    Args:
        gains: swept width -> measured gain over the chain, as a fraction (0.2 is 20 percent).

    Raises:
        CastError: when no width was swept or a gain is not a finite number.
    """
    if not gains:
        raise CastError("sweep oracle: no width was swept; give at least one width and its gain")
    for width, gain in gains.items():
        if not math.isfinite(gain):
            raise CastError(f"sweep oracle: the gain at width {width} is {gain}; leave unmeasured widths out")
    return min(gains, key=lambda width: (-gains[width], width))


def gap_points(gains: Mapping[int, float], width: int) -> float:
    """Gain at ``width`` minus the oracle's gain, in percentage points: 0 at the oracle, otherwise negative.

    Raises:
        CastError: as `sweep_oracle`, and when ``width`` was not swept.
    """
    best = gains[sweep_oracle(gains)]
    if width not in gains:
        swept = ", ".join(map(str, sorted(gains)))
        raise CastError(f"gap: width {width} was not swept; swept widths are {swept}")
    return 100.0 * (gains[width] - best)
