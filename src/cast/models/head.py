"""What all trained draft heads share: reading their config.json, rotary positions, a cache of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cast.errors import CastError
from cast.models.kv_cache import KVCache
from cast.models.layers import RotaryTable


class DraftHead(nn.Module):
    """Base of the heads. One generation's state lives in the `KVCache` that `new_cache` returns, so one head
    serves any number of generations at once.

    Attributes:
        config: with `layers`, `kv_heads`, `head_dim` and `rope_theta` at least.
        kind: the head's family, as messages name it.
    """

    kind = ""

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self._rotary_table: RotaryTable | None = None

    def accept(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a checkpoint that this head loads; raises a CastError where they cannot be one's."""
        return weights

    def check_fits(self, target) -> None:
        """Raise a CastError unless this head was made for a target of that shape.

        Args:
            target: the transformers configuration of the target.
        """
        raise NotImplementedError

    def rotary_table(self, positions: int) -> RotaryTable:
        """Cosines and sines for at least that many positions."""
        weight, table = self.fc.weight, self._rotary_table
        fits = table is not None and (table.cos.dtype, table.cos.device) == (weight.dtype, weight.device)
        if not fits or len(table.cos) < positions:
            exponent = torch.arange(0, self.config.head_dim, 2, device=weight.device, dtype=torch.float32)
            inv_freq = self.config.rope_theta ** -(exponent / self.config.head_dim)
            table = self._rotary_table = RotaryTable(inv_freq, 1.0, positions, weight.dtype)
        return table

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache of `capacity` entries, committed positions and the rows of one draft together."""
        config, weight = self.config, self.fc.weight
        table = self.rotary_table(capacity)
        return KVCache(config.layers, config.kv_heads, config.head_dim, capacity, weight.dtype, weight.device, table)


def section(raw: dict, key: str) -> dict:
    """A nested object of a drafter's config.json, empty where it is absent."""
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise CastError(f"{key} in the drafter's config.json must be an object, not {value!r}")
    return value


def count(raw: dict, key: str, default: int | None = None, *, at_least: int = 1) -> int:
    """A whole number of a drafter's config.json."""
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < at_least:
        raise CastError(f"{key} in the drafter's config.json must be a whole number from {at_least}, not {value!r}")
    return value


def positive(raw: dict, key: str) -> float:
    """A number above 0 of a drafter's config.json."""
    value = raw.get(key)
    if type(value) not in (int, float) or not value > 0:
        raise CastError(f"{key} in the drafter's config.json must be a number above 0, not {value!r}")
    return float(value)


def rope_theta(raw: dict, default: float | None = None) -> float:
    """The base of a drafter's plain RoPE, flat or inside `rope_parameters`; refuses a scaled one."""
    rope = section(raw, "rope_parameters") or section(raw, "rope_scaling")
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CastError(f"a drafter with scaled RoPE is not supported: {rope}")
    place = rope if rope.get("rope_theta") is not None else raw
    if default is not None and place.get("rope_theta") is None:
        return default
    return positive(place, "rope_theta")


def check_sizes(hidden_size: int, vocab_size: int | None, target) -> None:
    """Raise a CastError unless a drafter made for these sizes fits the target's configuration."""
    if hidden_size != target.hidden_size:
        raise CastError(f"the drafter's hidden size {hidden_size} does not fit the target's {target.hidden_size}")
    if vocab_size is not None and vocab_size != target.vocab_size:
        raise CastError(f"the drafter's vocabulary of {vocab_size} tokens is not the target's of {target.vocab_size}")
