"""The walk from the root to the longest path the target agrees with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cast.trees import CandidateTree

Selection = Callable[[int, list[int], Mapping[int, int]], int]
"""(packed row, tokens accepted on the way to it, its children as {token: packed row}) to the token committed there."""


@dataclass(frozen=True)
class Walk:
    """What a round commits.

    Attributes:
        rows: packed rows of the root and the accepted path, in order; their cache entries are kept.
        accepted: tokens of the accepted path.
        next_root: the target's token after the path, the next pending root.
    """

    rows: list[int]
    accepted: list[int]
    next_root: int

    @property
    def committed(self) -> int:
        """R: accepted tokens and the one the target selected."""
        return len(self.accepted) + 1


def walk(tree: CandidateTree | None, select: Selection) -> Walk:
    """Descend while a child carries the selected token (paper, section 2).

    Args:
        tree: the verified candidates; None for the root alone.
        select: the token committed at a packed row.
    """
    children = tree.children() if tree is not None else [{}]
    rows, accepted = [0], []
    while True:
        siblings = children[rows[-1]]
        token = select(rows[-1], accepted, siblings)
        child = siblings.get(token)
        if child is None:
            return Walk(rows, accepted, token)
        rows.append(child)
        accepted.append(token)
