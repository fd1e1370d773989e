"""The greedy walk of a tree that stays on the device: one copy to the host in a round, after the target's pass."""

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
    if any(copied[-2:]):
        whose = "drafter" if copied[-2] else "target"
        raise CastError(f"the {whose} returned NaN logits; check its checkpoint and dtype")
    n = len(chosen)
    rows = [row for row in range(n) if copied[row]]  # siblings differ in their tokens, so the rows are one path
    tokens = [copied[n + row] for row in rows]
    return Walk(rows, tokens[:-1], tokens[-1])
