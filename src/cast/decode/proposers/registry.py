"""Methods by name. A drafter of your own joins with `register` (docs/own-drafter.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cast.decode.proposers.base import Autoregressive, Proposer
from cast.decode.proposers.block import CastTree, DFlashChain
from cast.decode.proposers.dart import DartTree
from cast.decode.proposers.eagle3 import Eagle3Tree
from cast.decode.proposers.ngram import PromptLookup
from cast.errors import CastError
from cast.models import Pair

METHODS: dict[str, Callable[..., Proposer]] = {
    "autoregressive": Autoregressive,
    "dflash": DFlashChain,
    "cast": CastTree,
    "eagle3": Eagle3Tree,
    "dart": DartTree,
    "ngram": PromptLookup,
}
"""Name of each method and what makes its proposer from a pair and the options it takes by keyword."""


def register(name: str) -> Callable[[Callable[..., Proposer]], Callable[..., Proposer]]:
    """A decorator that makes a proposer class (or function) of (pair, **options) a method of that name.

    Raises:
        CastError: the name is taken.
    """

    def add(factory: Callable[..., Proposer]) -> Callable[..., Proposer]:
        if METHODS.get(name, factory) is not factory:
            raise CastError(f"method {name!r} is registered already; choose another name")
        METHODS[name] = factory
        return factory

    return add


def make_proposer(
    pair: Pair,
    method: str,
    *,
    budget: int | None = None,
    top_k: int | None = None,
    block_size: int | None = None,
    **options,
) -> Proposer:
    """The proposer of a method.

    Args:
        budget, top_k, block_size: None takes the method's default; a method that has no use for one ignores it.
        options: of that method alone.

    Raises:
        CastError: unknown method or option, no drafter where one is needed, or a setting out of range.
    """
    if method not in tuple(METHODS):  # a tuple: whatever was given need not be hashable
        raise CastError(f"unknown method {method!r}; methods: {', '.join(METHODS)}")
    taken = inspect.signature(METHODS[method]).parameters
    unknown = [name for name in options if name not in taken]
    if unknown:
        own = [name for name in taken if name not in ("pair", "budget", "top_k", "block_size")]
        known = f"it takes {', '.join(own)}" if own else "it has none of its own"
        raise CastError(f"method {method!r} has no option {unknown[0]!r}; {known}")
    shared = {"budget": budget, "top_k": top_k, "block_size": block_size}
    given = {name: value for name, value in shared.items() if value is not None and name in taken}
    return METHODS[method](pair, **given, **options)
