"""A target and its drafter."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cast.errors import CastError
from cast.models.head import DraftHead
from cast.models.target import Target


@dataclass(frozen=True)
class Pair:
    """A target, optionally a drafter for it, and the target's tokenizer where the checkpoint has one.

    Attributes:
        name: how the target was named when it was loaded.
    """

    target: Target
    drafter: DraftHead | None = None
    tokenizer: Any = None
    name: str = ""

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        return self.target.dtype

    def with_drafter(self, drafter: str | Path | DraftHead | None) -> Pair:
        """The same target with another drafter: a hub id, a local folder, a loaded head or None.

        Raises:
            CastError: the checkpoint is missing, broken or not made for this target.
        """
        from cast.models.loading import load_drafter

        if isinstance(drafter, (str, Path)):
            drafter = load_drafter(drafter, device=self.device, dtype=self.dtype, target=self.target.config)
        if drafter is not None:
            drafter.check_fits(self.target.config)
            held = drafter.fc.weight
            if (held.dtype, held.device) != (self.dtype, self.device):
                raise CastError(
                    f"the drafter is {held.dtype} on {held.device}, the target {self.dtype} on {self.device}; "
                    "load it by name, or convert it with drafter.to(...)"
                )
        return replace(self, drafter=drafter)

    def to(self, dtype: torch.dtype) -> Pair:
        """A copy of the pair in another dtype, on the same device."""
        drafter = None if self.drafter is None else copy.deepcopy(self.drafter).to(dtype)
        return replace(self, target=self.target.to(dtype), drafter=drafter)
