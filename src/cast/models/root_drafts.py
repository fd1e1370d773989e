"""The drafter's marginals at many roots of one known sequence, several roots in a pass.

Decoding drafts at the roots its rounds happen to reach. What is offered at any other root follows from the same
inputs: features of the positions before it, and its token. So one sequence holds every round that any method
could have started, and they can be drafted together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cast.models.dart import DartDrafter
from cast.models.dflash import DFlashDrafter
from cast.models.layers import attend
from cast.models.target import Target


@torch.inference_mode()
def drafts_at_roots(
    drafter: DFlashDrafter,
    target: Target,
    features: Tensor,
    root_tokens: Tensor,
    root_positions: Tensor,
    *,
    block_size: int | None = None,
    roots_at_once: int = 16,
) -> Iterator[Tensor]:
    """What `DFlashDrafter.draft` gives at each root, up to rounding.

    The context's keys and values are a map of each position alone, so they are computed once; a pass then packs
    the blocks of several roots, each of which sees the context before it and its own block.

    Args:
        target: lends its embedding table and language-model head.
        features: [S, taps * H], target features of positions 0 to S - 1.
        root_tokens: int64 [R], the token at each root.
        root_positions: int64 [R], ascending, at most S: position r sees features 0 to r - 1.
        block_size: B, the drafter's own when None.
        roots_at_once: roots of one pass; it bounds the memory.

    Yields:
        Logits [r, B - 1, V] of the next r roots.
    """
    size = block_size or drafter.block_size
    table = drafter.rotary_table(len(features) + size)
    context = drafter.context(features)
    phase = table.cos[: len(context)], table.sin[: len(context)]
    known = [layer.self_attn.keys_values(context, phase) for layer in drafter.layers]
    group = drafter.config.heads // drafter.config.kv_heads
    for tokens, roots in zip(root_tokens.split(roots_at_once), root_positions.split(roots_at_once), strict=True):
        last = int(roots[-1])
        positions = (roots[:, None] + torch.arange(size, device=roots.device)).flatten()
        phase = table.at(positions)
        block = torch.full((len(roots), size), drafter.config.mask_token_id, device=tokens.device)
        block[:, 0] = tokens
        hidden = target.embed(block.flatten())
        mask = _visibility(roots, size, last, hidden.dtype).repeat(group, 1)
        for layer, (context_keys, context_values) in zip(drafter.layers, known, strict=True):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden)
            keys, values = attention.keys_values(normed, phase)
            keys = torch.cat((context_keys[:last], keys)).transpose(0, 1)
            values = torch.cat((context_values[:last], values)).transpose(0, 1)
            hidden = hidden + attention.o_proj(attend(attention.queries(normed, phase), keys, values, mask))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        drafted = drafter.norm(hidden.unflatten(0, (-1, size))[:, 1:])
        yield target.logits(drafted.flatten(0, 1)).unflatten(0, (-1, size - 1))


@torch.inference_mode()
def dart_drafts_at_roots(
    drafter: DartDrafter, target: Target, features: Tensor, tokens: Tensor, root_positions: Tensor
) -> Iterator[Tensor]:
    """What `DartDrafter.draft` gives at each root, one pass a root: its cache grows with the sequence.

    Args:
        features: [S, taps * H], target features of positions 0 to S - 1.
        tokens: int64, the whole sequence; the token of each root and those before it are read.
        root_positions: int64 [R], ascending, from 1 to S.

    Yields:
        Logits [1, L, Vd] of the next root, over the draft vocabulary.
    """
    cache = drafter.new_cache(len(features) + drafter.positions)
    known = 0
    for root in root_positions.tolist():
        yield drafter.draft(target, features[known:root], tokens[known + 1 : root + 1], cache)[None]
        known = root


def _visibility(roots: Tensor, size: int, last: int, dtype: torch.dtype) -> Tensor:
    """Additive [R * B, last + R * B]: each block sees the context before its root, and itself."""
    before = torch.arange(last, device=roots.device) < roots[:, None]
    own = torch.eye(len(roots), dtype=torch.bool, device=roots.device).repeat_interleave(size, dim=1)
    visible = torch.cat((before, own), dim=1).repeat_interleave(size, dim=0)
    return torch.zeros(visible.shape, dtype=dtype, device=roots.device).masked_fill_(~visible, float("-inf"))
