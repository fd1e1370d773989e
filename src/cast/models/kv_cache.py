"""A preallocated key-value cache that commits in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.layers import RotaryTable, on_device


class KVCache:
    """Keys and values of one sequence in every layer, of a fixed capacity.

    `length` entries are committed. A forward pass writes its pack behind them and attends over both; the
    pack becomes part of the sequence only through `commit`, so dropping a pack costs nothing.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        rotary: RotaryTable | None = None,
    ):
        self.keys = torch.empty(layers, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.length = 0
        self.rotary = rotary  # phases of all its positions; with the cache, as generations may share a model

    @classmethod
    def over(cls, keys: Tensor, values: Tensor, rotary: RotaryTable | None = None) -> KVCache:
        """An empty cache in memory that exists: keys and values [layers, kv_heads, capacity, D]."""
        cache = cls.__new__(cls)
        cache.keys, cache.values, cache.length, cache.rotary = keys, values, 0, rotary
        return cache

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def write(self, layer: int, keys: Tensor, values: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        """Place a pack's keys and values [n, kv_heads, D] behind the committed entries.

        Args:
            offset: entries of the pack already written (two writes make one pack in the drafter).

        Returns:
            (keys, values) over committed entries and pack so far, views [kv_heads, length + offset + n, D].

        Raises:
            CastError: the pack does not fit the capacity.
        """
        start = self.length + offset
        end = start + keys.shape[0]
        if end > self.capacity:
            raise CastError(f"the sequence needs {end} cache entries but only {self.capacity} were allocated")
        self.keys[layer, :, start:end] = keys.transpose(0, 1)
        self.values[layer, :, start:end] = values.transpose(0, 1)
        return self.keys[layer, :, :end], self.values[layer, :, :end]

    def commit(self, rows: Sequence[int] | int) -> None:
        """Keep these rows of the last pack, in order, and forget the rest (paper, appendix C: KV gather).

        Args:
            rows: ascending pack rows, or a number m for the first m. Keys already carry their rotary phase,
                which is that of their final position, so rows move without being touched. A run from row 0
                is a length update only.
        """
        if not isinstance(rows, int):
            settled = next((i for i, row in enumerate(rows) if row != i), len(rows))
            moved = rows[settled:]
            if moved:
                source = on_device(moved, self.keys.device) + self.length
                start, end = self.length + settled, self.length + len(rows)
                self.keys[:, :, start:end] = self.keys[:, :, source]
                self.values[:, :, start:end] = self.values[:, :, source]
            rows = len(rows)
        self.length += rows
