"""The exact law of the token committed at a verified node, by enumeration (paper, Theorem 3).

Written from the paper's equations over the whole vocabulary, in fp64 and without the samplers' shortcuts, so
that it can be held against them: the cost grows with the factorial of the number of siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cast.errors import CastError
from cast.trees import CandidateTree


@dataclass(frozen=True)
class NodeLaw:
    """What can happen at a node.

    Attributes:
        siblings: tokens of the retained children, k of them.
        accepted: float64 [k], probability that each of them is accepted.
        drawn: float64 [V], probability of each token as the draw that ends the walk.
    """

    siblings: Sequence[int]
    accepted: Tensor
    drawn: Tensor

    @property
    def committed(self) -> Tensor:
        """Law float64 [V] of the token committed at the node, accepted or drawn."""
        return self.drawn.index_add(0, _index(self.siblings), self.accepted)


def direct_law(p: Tensor, siblings: Sequence[int]) -> NodeLaw:
    """The direct walk's: one draw from p, descending when it is a sibling (appendix C).

    Args:
        p: float64 [V], the target's law at the node.
        siblings: tokens of the retained children, distinct.
    """
    p = p.double()
    return NodeLaw(siblings, p[_index(siblings)], p.index_fill(0, _index(siblings), 0.0))


def recursive_law(p: Tensor, siblings: Sequence[int], q: Tensor) -> NodeLaw:
    """The law of recursive speculative sampling without replacement (Theorem 3), branch by branch.

    Args:
        p, siblings: as for `direct_law`.
        q: float [k], the proposal at the siblings, up to a factor.

    Raises:
        CastError: the proposal is not positive on every sibling.
    """
    p, q, tokens = p.double(), q.double(), _index(siblings)
    if not (q > 0).all():
        raise CastError("the proposal must be positive on every retained sibling (Theorem 3)")
    accepted, drawn = torch.zeros(len(q), dtype=torch.float64), torch.zeros_like(p)

    def branch(residual: Tensor, available: list[int], reached: float) -> None:
        """All that follows with the siblings still `available`; `reached` is this branch's probability."""
        if not available:
            drawn.add_(residual, alpha=reached)
            return
        proposal = torch.zeros_like(p)
        proposal[tokens[available]] = q[available] / q[available].sum()
        left = (residual - proposal).clamp(min=0)
        norm = float(left.sum())
        for i in available:
            proposed = reached * float(proposal[tokens[i]])
            kept = min(1.0, float(residual[tokens[i]] / proposal[tokens[i]])) if norm > 0 else 1.0
            accepted[i] += proposed * kept
            if kept < 1:
                branch(left / norm, [j for j in available if j != i], proposed * (1 - kept))

    branch(p, list(range(len(q))), 1.0)
    return NodeLaw(siblings, accepted, drawn)


def deterministic_law(p: Tensor, siblings: Sequence[int]) -> NodeLaw:
    """The law of EAGLE's rule for a deterministic candidate set: siblings in order, each proposed with q = 1.

    A candidate c is accepted with probability mu(c); a rejection takes it out of the residual mu.
    """
    residual, reached = p.double(), 1.0
    accepted = torch.zeros(len(siblings), dtype=torch.float64)
    for i, token in enumerate(siblings):
        accepted[i] = reached * residual[token]
        reached *= 1 - float(residual[token])
        residual = residual.index_fill(0, _index([token]), 0.0)
        if not residual.sum() > 0:  # everything was accepted
            return NodeLaw(siblings, accepted, residual)
        residual = residual / residual.sum()
    return NodeLaw(siblings, accepted, reached * residual)


def round_law(
    tree: CandidateTree, node_law: Callable[[int, tuple[int, ...], Sequence[int]], NodeLaw]
) -> dict[tuple[int, ...], float]:
    """Probability of everything one round can commit: an accepted path and the token that ends it.

    Args:
        tree: the verified candidates.
        node_law: (packed row, path to it, tokens of its children) to the law there.
    """
    children, outcomes = tree.children(), {}

    def descend(row: int, path: tuple[int, ...], reached: float) -> None:
        law = node_law(row, path, list(children[row]))
        for token, probability in enumerate(law.drawn.tolist()):
            if probability > 0:
                outcomes[(*path, token)] = reached * probability
        for (token, child), probability in zip(children[row].items(), law.accepted.tolist(), strict=True):
            if probability > 0:
                descend(child, (*path, token), reached * probability)

    descend(0, (), 1.0)
    return outcomes


def _index(tokens: Sequence[int]) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64)
