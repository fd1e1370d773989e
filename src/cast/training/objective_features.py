"""What the objectives of EAGLE-3 and DART heads share: rows over committed tokens, chains behind anchors, the loss.

Row i pairs the features at position i with the token at i + 1. An anchor at position a is the pending root: its
chain sees the rows before a, the last of which carries the anchor's own token, and slot j of the chain is to predict
the token at a + j.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.feature_head import FeatureHead
from cast.models.layers import rotate


@dataclass
class CommittedRows:
    """The rows of whole sequences, as a head's cache holds them at decoding time.

    Attributes:
        rows: [S, T, 2H], what attention reads.
        hidden: [S, T, H], the residual stream.
        keys, values: [S, T, kv_heads, D].
    """

    rows: Tensor
    hidden: Tensor
    keys: Tensor
    values: Tensor

    def last(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """The row before each anchor and its residual stream, [S, A, 2H] and [S, A, H]."""
        at = (torch.arange(len(anchors), device=anchors.device)[:, None], anchors - 1)
        return self.rows[at], self.hidden[at]


def committed_rows(drafter: FeatureHead, embedding: Tensor, features: Tensor, tokens: Tensor) -> CommittedRows:
    """Every row of some sequences.

    Args:
        embedding: the target's table [V, H].
        features: [S, T, taps * H].
        tokens: int64 [S, T + 1].
    """
    hidden = drafter.fc(features)
    length = features.shape[1]
    rows = drafter.midlayer.paired(F.embedding(tokens[:, 1 : length + 1], embedding).to(hidden.dtype), hidden)
    return CommittedRows(rows, hidden, *keys_values(drafter, rows, torch.arange(length, device=tokens.device)))


def keys_values(drafter: FeatureHead, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated keys and values [..., kv_heads, D] of rows [..., 2H] at int64 positions that broadcast to [...]."""
    attention = drafter.midlayer.self_attn
    keys, values = (x.unflatten(-1, (-1, attention.head_dim)) for x in (attention.k_proj(rows), attention.v_proj(rows)))
    return rotate(keys, _phase(drafter, positions)), values


def attend_chains(
    drafter: FeatureHead,
    rows: Tensor,
    positions: Tensor,
    anchors: Tensor,
    committed: CommittedRows,
    own: tuple[Tensor, Tensor] | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Attention's output [S, A, Q, H] for Q rows of each anchor's chain.

    Args:
        rows, positions: [S, A, Q, 2H] and int64 [S, A, Q].
        own: keys and values [S, A, N, kv_heads, D] of the chain's rows behind the anchor.
        visible: bool [Q, N], which of them a row sees; all when None.
    """
    attention = drafter.midlayer.self_attn
    query = rotate(attention.q_proj(rows).unflatten(-1, (-1, attention.head_dim)), _phase(drafter, positions))
    query = query.unflatten(3, (-1, attention.group)) * attention.head_dim**-0.5  # [S, A, Q, kv_heads, group, D]
    behind = torch.arange(committed.keys.shape[1], device=anchors.device) >= anchors[..., None]
    scores = torch.einsum("saqkgd,stkd->saqkgt", query, committed.keys)
    scores = scores.masked_fill(behind[:, :, None, None, None], float("-inf"))
    if own is not None:
        chain = torch.einsum("saqkgd,sankd->saqkgn", query, own[0])
        if visible is not None:
            chain = chain.masked_fill(~visible[:, None, None], float("-inf"))
        scores = torch.cat((scores, chain), dim=-1)
    share = scores.float().softmax(-1).to(scores.dtype)
    length = committed.keys.shape[1]
    out = torch.einsum("saqkgt,stkd->saqkgd", share[..., :length], committed.values)
    if own is not None:
        out = out + torch.einsum("saqkgn,sankd->saqkgd", share[..., length:], own[1])
    return attention.o_proj(out.flatten(3))


def _phase(drafter: FeatureHead, positions: Tensor) -> tuple[Tensor, Tensor]:
    return drafter.rotary_table(int(positions.max()) + 1).at(positions)


def draft_ids(drafter: FeatureHead) -> Tensor:
    """Target id of every token of the draft vocabulary, int64 [Vd]."""
    return drafter.to_target(torch.arange(drafter.config.draft_vocab_size, device=drafter.fc.weight.device))


def draft_cross_entropy(drafter: FeatureHead, hidden: Tensor, ids: Tensor, mass: Tensor) -> Tensor:
    """Cross-entropy of each position, float32 [P], over the draft vocabulary.

    Tokens outside it are left out of the label: no head can propose them, and the rest keeps its own weight.

    Args:
        hidden: [P, H], normed.
        ids, mass: int64 target ids and float32 [P, K], the label distribution.
    """
    inverse = torch.full((drafter.config.vocab_size,), -1, device=ids.device)
    shown = draft_ids(drafter)
    inverse[shown] = torch.arange(len(shown), device=ids.device)
    index = inverse[ids]
    mass = mass.masked_fill(index < 0, 0.0)
    return -(drafter.lm_head(hidden).float().log_softmax(-1).gather(1, index.clamp(min=0)) * mass).sum(-1)
