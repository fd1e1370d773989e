"""Refusals of single values, in one line each."""

from __future__ import annotations

import operator

from cast.errors import MOST_NODES, CastError
from cast.models import Pair


def check_integers(**values: int) -> None:
    """Raise a CastError naming the first value that is no whole number."""
    for name, value in values.items():
        try:
            operator.index(value)
        except TypeError:
            raise CastError(f"{name} must be a whole number, not {value!r}") from None


def check_least(**values: tuple[int, int]) -> None:
    """Raise a CastError unless every option, given with its least value, is a whole number from there."""
    for name, (value, least) in values.items():
        check_integers(**{name: value})
        if value < least:
            raise CastError(f"{name} must be at least {least}, not {value}")


def check_budget(budget: int) -> None:
    """Raise a CastError unless the budget is a whole number from 0 to `MOST_NODES`."""
    check_least(budget=(budget, 0))
    if budget > MOST_NODES:
        raise CastError(f"budget must be at most {MOST_NODES}, not {budget}")


def check_callables(**values: object) -> None:
    """Raise a CastError naming the first value, None aside, that cannot be called."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise CastError(f"{name} must be callable, not {value!r}")


def check_pair(pair: object) -> None:
    """Raise a CastError unless it is a loaded pair."""
    if not isinstance(pair, Pair):
        raise CastError(f"a pair is needed, as load_pair and load_embedded_pair give, not {type(pair).__name__}")
