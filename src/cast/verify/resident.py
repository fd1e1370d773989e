"""Walks of a tree that was built on the device: after the target's pass one copy, of the greedy walk or of the tree."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.errors import CastError
from cast.trees import CandidateTree
from cast.verify.walk import Walk


def greedy_walk_on_device(tree: CandidateTree, logits: Tensor) -> Walk:
    """What `cast.verify.walk.walk` commits by the arg-max at each row.

    Args:
        tree: with its ancestor mask, on the device of the logits.
        logits: [N + 1, V].

    Raises:
        CastError: NaN among the drafter's scores, or among the logits of a row on the path.
    """
    best, chosen = logits.max(dim=-1)  # max propagates NaN
    follows = tree.tokens == chosen[tree.parent + 1]
    follows = torch.cat((follows.new_ones(1), follows))
    on_path = ~(tree.visible & ~follows).any(dim=-1)  # the target's choice led to the row and to all above it
    undefined = torch.stack((tree.log_mass.isnan().any(), (best.isnan() & on_path).any()))
    copied = torch.cat((on_path.long(), chosen, undefined.long())).tolist()
    refuse_nan("drafter", copied[-2])
    refuse_nan("target", copied[-1])
    n = len(chosen)
    rows = [row for row in range(n) if copied[row]]  # siblings differ in their tokens, so the rows are one path
    tokens = [copied[n + row] for row in rows]
    return Walk(rows, tokens[:-1], tokens[-1])


def on_host(tree: CandidateTree) -> CandidateTree:
    """The tree on the CPU, in one copy.

    Raises:
        CastError: NaN among the drafter's scores.
    """
    columns = torch.stack([part.double() for part in (tree.tokens, tree.parent, tree.depth, tree.log_mass)]).cpu()
    tokens, parent, depth = columns[:3].long()  # every id is exact in fp64
    refuse_nan("drafter", columns[3].isnan().any())
    return CandidateTree(tokens, parent, depth, columns[3].float())


def refuse_nan(whose: str, found: bool | int | Tensor) -> None:
    """Raise a CastError where the drafter's or the target's logits were found to hold NaN."""
    if found:
        raise CastError(f"the {whose} returned NaN logits; check its checkpoint and dtype")
