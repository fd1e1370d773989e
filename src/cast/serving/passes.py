"""The two model passes of a batched round: one drafter pass, one verification pass (paper, appendix F)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cast.decode.checks import check_least
from cast.models import DFlashDrafter, Target
from cast.models.layers import sdpa
from cast.serving.attention import RaggedLayout, ragged_attention
from cast.serving.forest import Forest
from cast.serving.store import SlotStore


@torch.inference_mode()
def draft(
    drafter: DFlashDrafter, target: Target, store: SlotStore, features: Sequence[Tensor], roots: Sequence[int]
) -> Tensor:
    """Score every position of every request's next block in one pass.

    Args:
        store: the feature cache; slot r belongs to request r and grows by its fresh positions.
        features: for each request [c_r, taps * H], of the positions committed since its last draft.
        roots: pending root of each request.

    Returns:
        Logits [B, L, V].
    """
    device, size, requests = target.device, drafter.block_size, len(roots)
    fresh = np.array([len(rows) for rows in features])
    held = np.array(store.lengths[:requests])
    context_slots, context_columns = _behind(held, fresh)
    block_slots, block_columns = _behind(held + fresh, np.full(requests, size))
    blocks = np.full((requests, size), drafter.config.mask_token_id)
    blocks[:, 0] = roots
    # One copy to the device: the block's tokens and everybody's places.
    context_slots, context_columns, block_slots, block_columns, tokens = _to_device(
        device, context_slots, context_columns, block_slots, block_columns, blocks.reshape(-1)
    )
    ends = (held + fresh + size).tolist()
    layout = RaggedLayout(
        starts=list(range(0, size * requests + 1, size)), slots=list(range(requests)), prefix=ends, ends=ends
    )
    config = drafter.config
    attend = ragged_attention(layout, config.heads, config.kv_heads, config.head_dim, target.dtype, device)

    def attention(index, query, of_context, of_block):
        store.write(index, context_slots, context_columns, *of_context)
        store.write(index, block_slots, block_columns, *of_block)
        return attend(query, store.keys[index], store.values[index])

    hidden = drafter.run_layers(
        target.embed(tokens),
        drafter.context(torch.cat(list(features))),
        store.rotary.at(block_columns),
        store.rotary.at(context_columns),
        attention,
    )
    for slot, count in enumerate(fresh.tolist()):
        store.lengths[slot] += count
    drafted = hidden.view(requests, size, -1)[:, 1:]
    return target.logits(drafter.norm(drafted.reshape(requests * (size - 1), -1))).view(requests, size - 1, -1)


@dataclass(frozen=True)
class Verified:
    """What a verification pass returns.

    Attributes:
        logits: [rows, V]; the rows of request r begin at `starts[r]`, its root first, then its nodes.
        taps: hidden states [rows, H] of the tapped layers.
        starts: [B].
        padded_rows: rows that belong to nobody.
    """

    logits: Tensor
    taps: list[Tensor]
    starts: list[int]
    padded_rows: int = 0


class Verifier(ABC):
    """Verifies the packs of all requests. Nothing is committed."""

    @abstractmethod
    def verify(
        self, target: Target, store: SlotStore, roots: Sequence[int], forest: Forest, taps: Sequence[int] = ()
    ) -> Verified:
        """The target over [b, z_1..z_N] of every request, each behind its own prefix (paper, Lemma 1).

        Args:
            store: slot r holds request r's prefix; receives the packs' entries uncommitted.
            roots: pending root of each request.
            forest: the candidates; a request may have none.
            taps: layers whose hidden states the drafter wants.
        """


class RaggedVerifier(Verifier):
    """All packed tokens in one sequence for every linear layer, attention request by request: no row is padded."""

    @torch.inference_mode()
    def verify(self, target, store, roots, forest, taps=()):
        device, sizes = target.device, forest.sizes + 1
        starts = np.concatenate(([0], np.cumsum(sizes)))
        prefix = np.array(store.lengths[: len(roots)])
        slots, columns = _behind(prefix, sizes)
        tokens, depth = np.empty(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
        nodes = np.ones(starts[-1], bool)
        nodes[starts[:-1]] = False
        tokens[~nodes], tokens[nodes], depth[nodes] = roots, forest.tokens, forest.depth
        positions = np.repeat(prefix, sizes) + depth
        tokens, positions, slots, columns = _to_device(device, tokens, positions, slots, columns)
        layout = RaggedLayout(
            starts=starts.tolist(),
            slots=list(range(len(roots))),
            prefix=prefix.tolist(),
            ends=(prefix + sizes).tolist(),
            visible=forest.visible(),
        )
        attend = ragged_attention(layout, target.heads, target.kv_heads, target.head_dim, target.dtype, device)

        def attention(index, query, key, value):
            store.write(index, slots, columns, key, value)
            return attend(query, store.keys[index], store.values[index])

        output = target.run_layers(tokens, store.rotary.at(positions), attention, taps=taps)
        return Verified(output.logits, output.taps, starts[:-1].tolist())


class DenseVerifier(Verifier):
    """Every pack right-padded to the widest, one rectangular attention: the padding is paid for by all."""

    @torch.inference_mode()
    def verify(self, target, store, roots, forest, taps=()):
        return self.verify_slots(target, store, range(len(roots)), roots, forest, taps)

    def verify_slots(self, target, store, members: Sequence[int], roots, forest, taps) -> Verified:
        """The same for requests that hold any slots, `members`, in ascending order."""
        device, requests, width = target.device, len(roots), 1 + forest.widest
        members = np.asarray(members)
        prefix = np.array(store.lengths)[members]
        sizes = forest.sizes + 1
        inside = np.arange(width) < sizes[:, None]
        tokens, depth = np.zeros((requests, width), np.int64), np.zeros((requests, width), np.int64)
        nodes = inside.copy()
        nodes[:, 0] = False
        tokens[:, 0], tokens[nodes], depth[nodes] = roots, forest.tokens, forest.depth
        visible = np.zeros((requests, width, width), bool)
        visible[inside] = forest.visible()
        visible[~inside] = np.eye(width, dtype=bool)[np.nonzero(~inside)[1]]  # a padded row sees itself
        columns = prefix[:, None] + np.arange(width)
        tokens, positions, slots, columns = _to_device(
            device,
            tokens.reshape(-1),
            (prefix[:, None] + depth).reshape(-1),
            members.repeat(width),
            columns.reshape(-1),
        )
        span = int(prefix.max()) + width
        mask = self._mask(torch.from_numpy(visible), prefix, span, target)
        contiguous = requests == members[-1] + 1
        group, kv_heads, dim = target.heads // target.kv_heads, target.kv_heads, target.head_dim
        chosen = slice(requests) if contiguous else torch.from_numpy(members).to(device)

        def attention(index, query, key, value):
            store.write(index, slots, columns, key, value)
            # The heads that share a key head become extra query rows, so the cache is read once and never repeated.
            query = query.view(requests, width, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
            out = sdpa(
                query.reshape(requests, kv_heads, group * width, dim),
                store.keys[index][chosen, :, :span],
                store.values[index][chosen, :, :span],
                attn_mask=mask,
            )
            out = out.view(requests, kv_heads, group, width, dim).permute(0, 3, 1, 2, 4)
            return out.reshape(requests * width, target.heads * dim)

        output = target.run_layers(tokens, store.rotary.at(positions), attention, taps=taps)
        starts = list(range(0, requests * width, width))
        return Verified(output.logits, output.taps, starts, padded_rows=int((~inside).sum()))

    @staticmethod
    def _mask(visible: Tensor, prefix: np.ndarray, span: int, target: Target) -> Tensor:
        """Additive [B, 1, group * width, span]: the request's own prefix, then what the row sees of its pack."""
        requests, width, _ = visible.shape
        device = target.device
        visible, length = visible.to(device), torch.from_numpy(prefix).to(device)
        seen = (torch.arange(span, device=device) < length[:, None])[:, None].expand(-1, width, -1).clone()
        columns = length[:, None] + torch.arange(width, device=device)
        seen.scatter_(2, columns[:, None].expand(-1, width, -1), visible)
        mask = torch.zeros(requests, 1, width, span, dtype=target.dtype, device=device)
        mask.masked_fill_(~seen[:, None], float("-inf"))
        return mask.repeat(1, 1, target.heads // target.kv_heads, 1)


class BucketedVerifier(Verifier):
    """Requests sorted by node count into buckets, one dense pass for each: less padding, more passes."""

    def __init__(self, buckets: int = 2):
        check_least(buckets=(buckets, 1))
        self.buckets = buckets
        self._dense = DenseVerifier()

    @torch.inference_mode()
    def verify(self, target, store, roots, forest, taps=()):
        order = np.argsort(forest.sizes, kind="stable")
        starts, logits, tapped, padded, passed = [0] * len(roots), [], [], 0, 0
        for members in np.array_split(order, min(self.buckets, len(order))):
            members = np.sort(members)
            part = self._dense.verify_slots(
                target, store, members, [roots[m] for m in members], forest.of(members), taps
            )
            for request, start in zip(members.tolist(), part.starts, strict=True):
                starts[request] = passed + start
            logits.append(part.logits)
            tapped.append(part.taps)
            passed += len(part.logits)
            padded += part.padded_rows
        taps = [torch.cat(parts) for parts in zip(*tapped, strict=True)]
        return Verified(torch.cat(logits), taps, starts, padded)


def _behind(lengths: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slot and column of each of `counts` entries behind `lengths`, request by request."""
    slots = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return slots, lengths[slots] + within


def _to_device(device: torch.device, *columns: np.ndarray) -> tuple[Tensor, ...]:
    """int64 arrays of any lengths, in one copy."""
    joined = torch.from_numpy(np.concatenate(columns).astype(np.int64)).to(device, non_blocking=True)
    return joined.split([len(column) for column in columns])
