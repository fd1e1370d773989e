"""Hybrid targets (Qwen3.5 and 3.6: gated delta-rule layers between those with attention), for the latency probe only.

A recurrent layer folds every token it sees into its state, in place. There is no row to gather or to forget, so a
tree's branches cannot share a pass, and each timed pass needs a copy of the prefix's cache (paper, appendix D.1).
Forward pass and cache are transformers' own.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.checkpoint import checkpoint_folder
from cast.models.loading import resolve_device, resolve_dtype, target_config, target_model
from cast.models.random_models import random_config, random_model, random_name
from cast.models.target import HYBRIDS

FUSED_PACKAGES = ("fla", "causal_conv1d")
"""What flash-linear-attention and causal-conv1d are imported as."""


class HybridTarget:
    """A hybrid language model and the cache classes that transformers gives it.

    Attributes:
        weights: "checkpoint" or "random".
        vocab_size, max_positions, device, dtype: of the model.
    """

    def __init__(self, model, weights: str):
        config = model.config.get_text_config()
        self.model = model
        self.weights = weights
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.device, self.dtype = model.device, model.dtype
        # Newer releases call it `cache`, older ones `past_key_values`.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def prefill(self, token_ids: Tensor) -> Any:
        """The cache after these tokens, int64 [T]."""
        output = self.model(token_ids[None], use_cache=True, logits_to_keep=1)
        return output[self._cache_name]

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, cache: Any) -> Tensor:
        """Logits [n, V] of a pack, int64 [n], in causal order behind the cache, which is spent by it."""
        return self.model(token_ids[None], **{self._cache_name: cache}, use_cache=True).logits[0]


def copy_of(cache: Any) -> Any:
    """A cache like this one that shares nothing with it."""
    return copy.deepcopy(cache)


def load_hybrid(
    source: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
) -> HybridTarget:
    """Load a hybrid target from a hub id or a local folder, or draw one (``random:<family>``).

    Raises:
        CastError: missing or broken checkpoint, or a target that is no hybrid.
    """
    device = resolve_device(device)
    family = random_name(source)
    folder = None if family else checkpoint_folder(source, revision)
    config = random_config(family) if family else target_config(folder)
    if config.model_type not in HYBRIDS:
        raise CastError(
            f"target {source} of type {config.model_type!r} is no hybrid; "
            "experiment=prefix_probe times the pass it decodes with"
        )
    if isinstance(dtype, str):
        dtype = resolve_dtype(dtype) or getattr(config.get_text_config(), "dtype", None) or torch.float32
    if family:
        return HybridTarget(random_model(config, device=device, dtype=dtype), "random")
    return HybridTarget(target_model(folder, config, dtype).to(device), "checkpoint")


@contextlib.contextmanager
def fused_packages() -> Iterator[set[str]]:
    """The packages among `FUSED_PACKAGES` whose functions are called inside: what ran, not what is installed."""
    called: set[str] = set()

    def notice(frame: FrameType, event: str, _: Any) -> None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if event == "call" and package in FUSED_PACKAGES:
            called.add(package)

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        yield called
    finally:
        sys.setprofile(before)
