"""Ragged attention: the packed rows of several requests, each over its own cached entries, in one call.

Two implementations of one interface: a Triton kernel on CUDA (`cast.serving.kernel`), and torch's attention
request by request elsewhere. On a CPU the loop costs nothing that the kernel would save, and no row is padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cast.models.layers import additive_mask, attend, for_group


@dataclass(frozen=True)
class RaggedLayout:
    """Where each request's packed rows and cached entries lie, and who sees whom.

    Attributes:
        starts: [B + 1], first packed row of each request, and their total T.
        slots: [B], where each request's entries are.
        prefix: [B], entries that all rows of a request see.
        ends: [B], entries that any row of it sees; those behind the prefix are the pack's own, row by row.
        visible: bool [T, widest pack], for the entries behind the prefix; None where every request ends with
            its prefix.
    """

    starts: Sequence[int]
    slots: Sequence[int]
    prefix: Sequence[int]
    ends: Sequence[int]
    visible: np.ndarray | None = None

    @property
    def requests(self) -> int:
        return len(self.slots)


class RaggedAttention(ABC):
    """Attention over one layout; made once for a pass, called once for each layer."""

    @abstractmethod
    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Grouped-query attention of packed rows.

        Args:
            query: [T, heads, D].
            keys, values: [slots, kv_heads, capacity, D], of one layer; the pack's own are written already.

        Returns:
            [T, heads * D].
        """


class LoopedAttention(RaggedAttention):
    """Torch's attention, one request after the other."""

    def __init__(self, layout: RaggedLayout, group: int, dtype: torch.dtype, device: torch.device):
        """Prepare the masks; `group` query heads share a key head."""
        self._layout = layout
        self._masks: list[Tensor | None] = []
        for request in range(layout.requests):
            rows, own = self._rows(request), layout.ends[request] - layout.prefix[request]
            mask = None
            if layout.visible is not None and own > 1:
                visible = torch.from_numpy(layout.visible[rows, :own])
                mask = for_group(additive_mask(visible, layout.prefix[request], dtype, device), group)
            self._masks.append(mask)

    def __call__(self, query, keys, values):
        return torch.cat(
            [
                attend(query[self._rows(request)], keys[slot, :, :end], values[slot, :, :end], self._masks[request])
                for request, (slot, end) in enumerate(zip(self._layout.slots, self._layout.ends, strict=True))
            ]
        )

    def _rows(self, request: int) -> slice:
        return slice(self._layout.starts[request], self._layout.starts[request + 1])


def ragged_attention(
    layout: RaggedLayout, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> RaggedAttention:
    """The implementation for that device: the kernel on CUDA where it covers head size and dtype, else the loop."""
    if device.type == "cuda":
        from cast.serving.kernel import TreeAttention, covers

        if covers(head_dim, dtype):
            return TreeAttention(layout, heads, kv_heads, head_dim, dtype, device)
    return LoopedAttention(layout, heads // kv_heads, dtype, device)
