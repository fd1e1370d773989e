"""Packed verification: the pending root and every node of a tree in one target pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cast.models.kv_cache import KVCache
from cast.models.layers import additive_mask, on_device
from cast.models.target import Target, TargetOutput
from cast.trees import CandidateTree, ancestor_mask


def verify(
    target: Target, cache: KVCache, root: Tensor, tree: CandidateTree | None, taps: Sequence[int] = ()
) -> TargetOutput:
    """One pass over [b, z_1..z_N] behind the cached prefix x (paper, Lemma 1 and appendix C).

    Args:
        target: the target model.
        cache: covers x; receives the pack's entries uncommitted.
        root: int64 [1], the pending root b, on the target's device.
        tree: the candidates; None packs the root alone, which needs no mask.
        taps: layers whose hidden states the drafter wants.

    Returns:
        Logits and taps of all N + 1 rows; row 0 is the root, row i + 1 node i.
    """
    prefix = cache.length
    if tree is None or len(tree) == 0:
        position = on_device([prefix], target.device)
        return target.forward(root, position, cache, taps=taps)
    token_ids, positions, mask = pack_tree(tree, root, prefix, target.dtype)
    return target.forward(token_ids, positions, cache, mask=mask, causal=mask is None, taps=taps)


def pack_tree(
    tree: CandidateTree, root: Tensor, prefix: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Token ids [N + 1], positions [N + 1] and additive mask [N + 1, prefix + N + 1] of a tree, where the root is.

    The mask is None where the causal kernel does its work: for a chain on a GPU.
    """
    device = root.device
    nodes = torch.stack((tree.tokens, tree.depth)).to(device, non_blocking=True)
    token_ids = torch.cat((root, nodes[0]))
    positions = torch.nn.functional.pad(nodes[1], (1, 0)) + prefix
    if tree.visible is None and tree.is_chain:  # a look at a tree on the device would wait for it
        if device.type == "cuda":
            return token_ids, positions, None
        # CPUs have no causal kernel for a pack behind a prefix, but the mask needs no ancestor closure.
        visible = torch.ones(len(tree) + 1, len(tree) + 1, dtype=torch.bool).tril()
    else:
        visible = ancestor_mask(tree)
    return token_ids, positions, additive_mask(visible, prefix, dtype, device)
