"""Random models of every family: real architectures in miniature, from a seed, without a file.

They run each code path in milliseconds and predict nothing worth reading. A target is named
``random:<family>`` and a head ``random:<head>`` wherever a checkpoint's name is taken; text reaches them byte by
byte. A head of your own joins with `register_head`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cast.errors import CastError
from cast.models.dflash import DFlashConfig, DFlashDrafter, default_target_layers
from cast.models.pair import Pair
from cast.models.target import Target
from cast.models.target_weights import head_dim

PREFIX = "random:"
VOCABULARY = 288
FREQUENT = list(b" etaoi")
"""Tokens that a random target prefers, as language does: so a head that knows nothing is right now and then."""

_DENSE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,  # EAGLE-3 and DART heads need 7 to read three of them
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32768,
    "initializer_range": 0.2,  # so that the logits differ by more than rounding
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_HYBRID = _DENSE | {
    "num_hidden_layers": 4,  # three gated delta-rule layers and one with attention, as in the real ones
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_SHARED_EXPERT = {"shared_expert_intermediate_size": 32}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", _DENSE),
    "llama": ("LlamaConfig", _DENSE | {"rope_parameters": _LLAMA3_ROPE}),
    "smollm2": ("LlamaConfig", _DENSE | {"hidden_size": 96, "num_attention_heads": 6, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", _DENSE | _MOE | {"norm_topk_prob": True}),
    "qwen3_5": ("Qwen3_5TextConfig", _HYBRID),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", _HYBRID | _MOE | _SHARED_EXPERT),
}
"""Name of each family, its configuration class in transformers, and the miniature's sizes."""

HEADS: dict[str, Callable[[Any], nn.Module]] = {}
"""Name of each head and what makes it, weights drawn from torch's generator, from a target's configuration."""


def register_head(name: str) -> Callable[[Callable[[Any], nn.Module]], Callable[[Any], nn.Module]]:
    """A decorator that makes a function of the target's configuration the head ``random:<name>``."""

    def add(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
        HEADS[name] = make
        return make

    return add


def random_name(source: Any) -> str | None:
    """What follows ``random:`` in a source; None for every other source."""
    return source.removeprefix(PREFIX) if isinstance(source, str | Path) and str(source).startswith(PREFIX) else None


def random_config(family: str):
    """The transformers configuration of a family's miniature.

    Raises:
        CastError: no such family.
    """
    import transformers

    if family not in FAMILIES:
        raise CastError(f"no random family {family!r}; families: {', '.join(FAMILIES)}")
    name, sizes = FAMILIES[family]
    return getattr(transformers, name)(**sizes)


def random_model(config, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32):
    """A transformers model of any configuration with weights drawn from a seed, in evaluation mode.

    Also for shapes of real size: latency depends on shapes, not on weights.
    """
    from transformers import AutoModelForCausalLM

    with _seeded(seed), torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def random_head(
    name: str, target, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A random head for a target.

    Args:
        target: the transformers configuration of the target.

    Raises:
        CastError: no such head.
    """
    if name not in HEADS:
        raise CastError(f"no random head {name!r}; heads: {', '.join(HEADS)}")
    with _seeded(seed):
        head = HEADS[name](target)
    return head.to(device, dtype).eval().requires_grad_(False)


def random_pair(
    family: str = "qwen3",
    head: str | None = "dflash_b16",
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Pair:
    """A random target with a random head.

    Raises:
        CastError: no such family or head, or a family that cannot be decoded (see `cast.models.hybrid`).
    """
    model = random_model(random_config(family), seed=seed, device=device, dtype=dtype)
    model.lm_head.weight[FREQUENT] *= 5
    target = Target.of(model)
    pair = Pair(target, tokenizer=ByteTokenizer(), name=PREFIX + family)
    if head is None:
        return pair
    return pair.with_drafter(random_head(head, target.config, seed=seed, device=device, dtype=dtype))


class ByteTokenizer:
    """Text as its UTF-8 bytes, with what the experiments ask of a tokenizer."""

    chat_template = None

    def __len__(self) -> int:
        return 256

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids, **_) -> str:
        """Ids above the bytes have no text."""
        return bytes(int(token) for token in ids if int(token) < len(self)).decode(errors="replace")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's generators seeded inside, and as they were afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def dflash_head(target, block_size: int, layers: int = 2) -> DFlashDrafter:
    """A DFlash head of the published layout for a target's configuration, weights from torch's generator."""
    return DFlashDrafter(
        DFlashConfig(
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            layers=layers,
            heads=target.num_attention_heads,
            kv_heads=target.num_key_value_heads,
            head_dim=head_dim(target),
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope_parameters["rope_theta"],
            attention_bias=False,
            block_size=block_size,
            mask_token_id=target.vocab_size - 1,
            target_layer_ids=tuple(default_target_layers(target.num_hidden_layers, layers)),
            vocab_size=target.vocab_size,
        )
    )


@register_head("dflash_b16")
def _dflash_b16(target) -> DFlashDrafter:
    return dflash_head(target, 16)


@register_head("dflash_b10")
def _dflash_b10(target) -> DFlashDrafter:
    return dflash_head(target, 10)
