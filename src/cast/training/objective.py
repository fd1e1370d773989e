"""The training objective: masked blocks behind anchors, scored against the target's tokens and distributions.

A block starts at an anchor, a position whose token is known (at decoding time, the pending root). It sees the
features strictly before the anchor and, in both directions, its own slots [anchor, mask, ..., mask]; slot j
is to predict the token j positions after the anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.dflash import DFlashDrafter


@dataclass
class Batch:
    """Padded sequences with anchors.

    Attributes:
        features: [S, T, taps * H], zero behind each sequence's end.
        tokens: int64 [S, T + 1], zero there too.
        anchor_tokens: int64 [S, A], the token at each anchor.
        anchors: int64 [S, A], positions.
        rows, slots: int64 [P], which block (of S * A, flat) and which slot (1 to B - 1) each scored position
            is.
        vocabulary, vocabulary_bias: int64 and float32 [M], the tokens the softmax runs over and what is
            added to their logits (log of how many tokens a sampled one stands for).
        labels: int64 [P], the target's token there, as an index into `vocabulary`.
        soft_ids, soft_weights: int64 (indices into `vocabulary`) and float32 [P, K], the target's
            distribution there (weights sum to one).
        weights: float32 [P].
        block_size: B of these blocks, at most the head's own.
    """

    features: Tensor
    tokens: Tensor
    anchor_tokens: Tensor
    anchors: Tensor
    rows: Tensor
    slots: Tensor
    vocabulary: Tensor
    vocabulary_bias: Tensor
    labels: Tensor
    soft_ids: Tensor
    soft_weights: Tensor
    weights: Tensor

    block_size: int

    def to(self, device) -> Batch:
        return Batch(**{name: v.to(device) if isinstance(v, Tensor) else v for name, v in vars(self).items()})


def block_hidden(
    drafter: DFlashDrafter,
    embedding: Tensor,
    features: Tensor,
    anchor_tokens: Tensor,
    anchors: Tensor,
    block_size: int | None = None,
) -> Tensor:
    """Normed hidden states [S, A, B, H] of every slot of every block, all sequences and anchors in one pass.

    Args:
        embedding: the target's table [V, H].
        features: [S, T, taps * H].
        anchor_tokens, anchors: int64 [S, A].
        block_size: B, the head's own when None.
    """
    sequences, count = anchors.shape
    block, length = block_size or drafter.block_size, features.shape[1]
    ids = torch.full((sequences, count, block), drafter.config.mask_token_id, device=anchors.device)
    ids[..., 0] = anchor_tokens
    hidden = F.embedding(ids.flatten(1), embedding).to(features.dtype)
    slots = (anchors[..., None] + torch.arange(block, device=anchors.device)).flatten(1)
    table = drafter.rotary_table(max(length, int(slots.max()) + 1))
    context_phase = table.cos[:length], table.sin[:length]
    block_phase = table.cos[slots], table.sin[slots]
    context = drafter.context(features)
    unseen = torch.arange(length, device=anchors.device) >= anchors[..., None]
    for layer in drafter.layers:
        attention = layer.self_attn
        normed = layer.input_layernorm(hidden)
        query = attention.queries(normed, block_phase) * attention.head_dim**-0.5
        seen, own = attention.keys_values(context, context_phase), attention.keys_values(normed, block_phase)
        hidden = hidden + attention.o_proj(_attend_blocks(query, seen, own, unseen, block))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return drafter.norm(hidden).unflatten(1, (count, block))


def _attend_blocks(
    query: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], unseen: Tensor, block: int
) -> Tensor:
    """Attention's output [S, A * B, H] of every block over the context before its anchor and its own slots.

    Two products and one softmax over both, so that no block is scored against another's slots.

    Args:
        query: [S, A * B, heads, D], scaled.
        context, own: keys and values [S, T, kv_heads, D] and [S, A * B, kv_heads, D].
        unseen: bool [S, A, T], context a block must not see.
    """
    keys, values = (x.transpose(1, 2) for x in context)  # [S, kv_heads, T, D]
    own_keys, own_values = (x.unflatten(1, (-1, block)).permute(0, 3, 1, 2, 4) for x in own)  # [S, kv_heads, A, B, D]
    length, kv_heads = keys.shape[2], keys.shape[1]
    # The heads that share a key head become extra rows of a block: [S, kv_heads, A, B * group, D].
    query = query.unflatten(2, (kv_heads, -1)).unflatten(1, (-1, block)).permute(0, 3, 1, 2, 4, 5)
    rows = query.flatten(3, 4)
    seen = (rows.flatten(2, 3) @ keys.mT).view(*rows.shape[:-1], length)
    seen = seen.masked_fill(unseen[:, None, :, None], float("-inf"))
    share = torch.cat((seen, rows @ own_keys.mT), dim=-1).softmax(-1)
    out = (share[..., :length].flatten(2, 3) @ values).view_as(rows) + share[..., length:] @ own_values
    return out.view_as(query).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Weighted cross-entropy against sparse targets through a frozen language-model head.

    Logits exist for one chunk of positions at a time, and the gradient with respect to the hidden states is
    taken on the spot, so [P, V] is never held and nothing is computed twice.
    """

    @staticmethod
    def forward(ctx, hidden, lm_head, bias, target_ids, target_weights, weights, chunk):
        gradient, losses = torch.empty_like(hidden), hidden.new_empty(len(hidden), dtype=torch.float32)
        for part in torch.arange(len(hidden), device=hidden.device).split(chunk):
            part = slice(int(part[0]), int(part[-1]) + 1)
            logits = F.linear(hidden[part], lm_head).float().add_(bias)
            ids, mass = target_ids[part], target_weights[part]
            logits.sub_(logits.amax(-1, keepdim=True))
            wanted = (logits.gather(1, ids) * mass).sum(-1)
            slope = logits.exp_()
            normaliser = slope.sum(-1, keepdim=True)
            losses[part] = normaliser.log()[:, 0] - wanted
            slope.mul_(weights[part, None] / normaliser).scatter_add_(1, ids, -mass * weights[part, None])
            gradient[part] = slope.to(lm_head.dtype) @ lm_head
        ctx.save_for_backward(gradient)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx, scale, _):
        (gradient,) = ctx.saved_tensors
        return gradient * scale.to(gradient.dtype), None, None, None, None, None, None


def label_distribution(batch: Batch, soft_share: float) -> tuple[Tensor, Tensor]:
    """Indices into the batch's vocabulary and masses, [P, 1 + K]: the target's token and its own distribution."""
    ids = torch.cat((batch.labels[:, None], batch.soft_ids), dim=1)
    hard = torch.full_like(batch.soft_weights[:, :1], 1 - soft_share)
    return ids, torch.cat((hard, batch.soft_weights * soft_share), dim=1)


def block_loss(
    drafter: DFlashDrafter,
    embedding: Tensor,
    lm_head: Tensor,
    batch: Batch,
    soft_share: float,
    chunk: int = 512,
) -> tuple[Tensor, Tensor]:
    """Mean weighted cross-entropy of a batch, and the unweighted loss of each scored position, float32 [P].

    The label distribution is `1 - soft_share` on the target's token and `soft_share` on the target's own
    distribution there: the first is what greedy verification tests, the second calibrates the runners-up.
    """
    hidden = block_hidden(drafter, embedding, batch.features, batch.anchor_tokens, batch.anchors, batch.block_size)
    hidden = hidden.flatten(0, 1)[batch.rows, batch.slots]
    ids, mass = label_distribution(batch, soft_share)
    weights = batch.weights / batch.weights.sum()
    total, losses = _ChunkedCrossEntropy.apply(
        hidden, lm_head[batch.vocabulary], batch.vocabulary_bias, ids, mass, weights, chunk
    )
    return total, losses
