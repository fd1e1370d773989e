"""The walk from the root to the longest path the target agrees with."""

from __future__ import annotations

from dataclasses import dataclass

from cast.trees import CandidateTree
from cast.verify.select import Selection


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
    """Descend while a child carries the token the target selects (paper, section 2).

    Args:
        tree: the verified candidates; None for the root alone.
        select: the target's choice at a packed row.
    """
    children = tree.children() if tree is not None else [{}]
    rows, accepted = [0], []
    while True:
        token = select(rows[-1], accepted)
        child = children[rows[-1]].get(token)
        if child is None:
            return Walk(rows, accepted, token)
        rows.append(child)
        accepted.append(token)
