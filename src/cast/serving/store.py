"""Cache memory for several requests: one tensor, a slot of fixed capacity for each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.models.kv_cache import KVCache
from cast.models.layers import RotaryTable, on_device


class SlotStore:
    """Keys and values of up to `slots` sequences, allocated once and reused.

    Active requests hold the first slots, in order; `move_slot` keeps it so when one of them leaves. A pack
    is written behind its slot's committed entries and becomes part of the sequence through `commit`.

    Attributes:
        keys, values: [layers, slots, kv_heads, capacity, D].
        lengths: committed entries of each slot.
        rotary: phases of all positions.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        rotary: RotaryTable,
    ):
        # Zeros: a masked entry that was never written must not hold NaN, which no mask removes.
        self.keys = torch.zeros(layers, slots, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.lengths = [0] * slots
        self.rotary = rotary

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def cache(self, slot: int) -> KVCache:
        """The slot's memory as the empty cache of one sequence, for a prefill; set `lengths` afterwards."""
        return KVCache.over(self.keys[:, slot], self.values[:, slot], self.rotary)

    def write(self, layer: int, slots: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> None:
        """Place entries [n, kv_heads, D] at int64 [n] slots and columns."""
        self.keys[layer][slots, :, columns] = keys
        self.values[layer][slots, :, columns] = values

    def commit(self, packs: list[list[int]]) -> None:
        """Keep these rows of each slot's last pack, in order, and forget the rest.

        Args:
            packs: for each slot from the first on, ascending pack rows; one gather serves all slots.
        """
        moves = [
            (slot, self.lengths[slot] + row, self.lengths[slot] + place)
            for slot, rows in enumerate(packs)
            for place, row in enumerate(rows)
            if row != place
        ]
        if moves:
            slots, sources, places = on_device(moves, self.keys.device).T
            self.keys[:, slots, :, places] = self.keys[:, slots, :, sources]
            self.values[:, slots, :, places] = self.values[:, slots, :, sources]
        for slot, rows in enumerate(packs):
            self.lengths[slot] += len(rows)

    def move_slot(self, source: int, place: int) -> None:
        """Move a sequence to another slot, whose own is forgotten."""
        length = self.lengths[source]
        if source != place:
            self.keys[:, place, :, :length] = self.keys[:, source, :, :length]
            self.values[:, place, :, :length] = self.values[:, source, :, :length]
        self.lengths[place], self.lengths[source] = length, 0
