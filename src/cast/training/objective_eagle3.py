"""EAGLE-3's objective: several draft steps with the head's own hidden states fed back, as at decoding time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.eagle3 import Eagle3Drafter
from cast.training.objective_features import attend_chains, committed_rows, keys_values


def chain_hidden(
    drafter: Eagle3Drafter, embedding: Tensor, features: Tensor, tokens: Tensor, anchors: Tensor, depth: int
) -> Tensor:
    """Normed hidden states [S, A, depth, H] of chains along the target's own tokens.

    Slot 1 is the committed row before the anchor; every later slot pairs the output of the slot before it with the
    token that slot was to predict, and sees the chain's rows so far.

    Args:
        embedding: the target's table [V, H].
        features: [S, T, 3H].
        tokens: int64 [S, T + 1].
        anchors: int64 [S, A], each at least 1.
    """
    layer = drafter.midlayer
    committed = committed_rows(drafter, embedding, features, tokens)
    rows, hidden = (x[:, :, None] for x in committed.last(anchors))
    position, own, outputs = anchors[..., None] - 1, None, []
    for slot in range(1, depth + 1):
        if slot > 1:
            # Chains may run past a sequence's end; what they say there is not scored.
            at = (anchors + slot - 1).clamp(max=tokens.shape[1] - 1)
            embedded = F.embedding(tokens.gather(1, at), embedding).to(hidden.dtype)[:, :, None]
            rows, position = layer.paired(embedded, hidden), position + 1
            new = keys_values(drafter, rows, position)
            own = new if own is None else tuple(torch.cat(both, dim=2) for both in zip(own, new, strict=True))
        hidden = layer.finish(hidden, attend_chains(drafter, rows, position, anchors, committed, own))
        outputs.append(hidden)
    return drafter.norm(torch.cat(outputs, dim=2))
