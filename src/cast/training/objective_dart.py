"""DART's objective: the committed row before the anchor and the masked slots behind it, in one causal pass."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.models.dart import DartDrafter
from cast.training.objective_features import attend_chains, committed_rows, keys_values


def slot_hidden(
    drafter: DartDrafter, embedding: Tensor, features: Tensor, tokens: Tensor, anchors: Tensor, depth: int
) -> Tensor:
    """Normed hidden states [S, A, depth, H] of the first `depth` of the head's L positions.

    No slot sees a later one, so fewer of them are the first ones of a whole draft.

    Args:
        embedding: the target's table [V, H].
        features: [S, T, 3H].
        tokens: int64 [S, T + 1].
        anchors: int64 [S, A], each at least 1.
    """
    layer = drafter.midlayer
    committed = committed_rows(drafter, embedding, features, tokens)
    row, hidden = (x[:, :, None] for x in committed.last(anchors))
    masked = layer.mask_rep.expand(*anchors.shape, depth - 1, -1)
    positions = anchors[..., None] - 1 + torch.arange(depth, device=anchors.device)
    own = keys_values(drafter, masked, positions[..., 1:])
    visible = torch.ones(depth, depth - 1, dtype=torch.bool, device=anchors.device).tril(-1)
    rows = torch.cat((row, masked), dim=2)
    hidden = torch.cat((hidden, masked[..., : hidden.shape[-1]]), dim=2)
    attended = attend_chains(drafter, rows, positions, anchors, committed, own, visible)
    # The final norm twice, as at decoding time.
    return drafter.norm(drafter.norm(layer.finish(hidden, attended)))
