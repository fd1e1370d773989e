"""What methods are called and in which colour they are drawn; tables need no more of the look of figures."""

from __future__ import annotations

from typing import NamedTuple

from .data import CHAIN, PLAIN, TREE


class Look(NamedTuple):
    """What a method is called and how it is drawn."""

    label: str
    colour: str


METHODS = {
    PLAIN: Look("AR", "#000000"),
    "ngram": Look("n-gram", "#56B4E9"),
    "eagle3": Look("EAGLE-3", "#CC79A7"),
    "dart": Look("DART", "#009E73"),
    CHAIN: Look("DFlash", "#E69F00"),
    TREE: Look("CAST", "#0072B2"),
}
"""The methods of `cast.decode` in the order of tables."""


def method_label(name: str) -> str:
    """What a method is called; one of your own goes by its name."""
    return METHODS[name].label if name in METHODS else name
