"""Ranges of a recipe's values, so that a wrong one is told at once and not after hours of generating."""

from __future__ import annotations

import math
from typing import Any

from cast.errors import CastError


def check_ranges(section: str, spec: Any, above_0: tuple[str, ...] = (), **ranges: tuple[float, float]) -> None:
    """Check the attributes of a spec; None, where one may be that, is left alone.

    Args:
        section: of the configuration, for the message.
        above_0: attributes that are finite and above 0.
        ranges: attribute to its least and its largest value.

    Raises:
        CastError: naming the first value outside its range. NaN and infinity are outside every one.
    """
    for name in above_0:
        if not 0 < getattr(spec, name) < math.inf:
            raise CastError(f"{section}.{name} must be a finite number above 0, not {getattr(spec, name)}")
    for name, (least, most) in ranges.items():
        value = getattr(spec, name)
        if value is not None and (not least <= value <= most or value == math.inf):
            allowed = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise CastError(f"{section}.{name} must be {allowed}, not {value}")
