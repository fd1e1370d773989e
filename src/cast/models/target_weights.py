"""A target's weights: the tensors its checkpoint publishes, and the fused layers that our pass runs.

Reading them needs no model class of transformers, whose import takes longer than most targets' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.experts import Experts
from cast.models.layers import Weight, pack

LM_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"

Take = Callable[[str], Tensor | None]
"""The tensor of that published name, on its final device and in its final dtype; None where there is none."""


@dataclass
class DecoderLayer:
    """Weights of one layer, with query, key and value and gate and up projections fused.

    The projections (`qkv`, `out`, `gate_up`, `down`) are packed, see `cast.models.layers.pack`. A layer has
    either `gate_up` and `down` or `experts`.
    """

    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Weight
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight | None = None
    gate_up_bias: Tensor | None = None
    down: Weight | None = None
    down_bias: Tensor | None = None
    experts: Experts | None = None


def head_dim(config) -> int:
    """Width of one attention head, as the configuration names it or as its sizes imply."""
    named = getattr(config, "head_dim", None)
    return config.hidden_size // config.num_attention_heads if named is None else named


def has_experts(config) -> bool:
    """Whether any layer may have experts."""
    return config.model_type == "qwen3_moe" and config.num_experts > 0


def tensor_shapes(config, held: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a supported target's checkpoint.

    Args:
        config: the transformers configuration.
        held: the names that the checkpoint holds. They decide where there is a choice: a language-model head beside
            the embeddings it is tied to, and a layer's experts stacked in one tensor.
    """
    hidden, width = config.hidden_size, head_dim(config)
    rows = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        FINAL_NORM: (hidden,),
    }
    if not config.tie_word_embeddings or LM_HEAD in held:
        shapes[LM_HEAD] = (config.vocab_size, hidden)

    def linear(name: str, outputs: int, inputs: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def feed_forward(name: str, width: int, bias: bool = False) -> None:
        linear(f"{name}.gate_proj", width, hidden, bias)
        linear(f"{name}.up_proj", width, hidden, bias)
        linear(f"{name}.down_proj", hidden, width, bias)

    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        shapes[f"{layer}.input_layernorm.weight"] = shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        for part, heads in rows.items():
            linear(f"{layer}.self_attn.{part}_proj", heads * width, hidden, config.attention_bias)
        linear(f"{layer}.self_attn.o_proj", hidden, rows["q"] * width, config.attention_bias)
        if config.model_type != "llama":
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (width,)
        if not _is_sparse(index, config):
            feed_forward(f"{layer}.mlp", config.intermediate_size, config.model_type == "llama" and config.mlp_bias)
            continue
        count, inner = config.num_experts, config.moe_intermediate_size
        linear(f"{layer}.mlp.gate", count, hidden)
        if f"{layer}.mlp.experts.gate_up_proj" in held:
            shapes[f"{layer}.mlp.experts.gate_up_proj"] = (count, 2 * inner, hidden)
            shapes[f"{layer}.mlp.experts.down_proj"] = (count, hidden, inner)
        else:
            for expert in range(count):
                feed_forward(f"{layer}.mlp.experts.{expert}", inner)
    return shapes


def decoder_layer(index: int, config, take: Take) -> DecoderLayer:
    """The fused weights of one layer."""
    layer = f"model.layers.{index}"
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}.{part}_proj" for part in ("gate", "up")]
    if _is_sparse(index, config):
        feed_forward = {"experts": Experts.of(take, mlp, config)}
    else:
        feed_forward = {
            "gate_up": pack(_joined(take(f"{name}.weight") for name in gate_up)),
            "gate_up_bias": _joined(take(f"{name}.bias") for name in gate_up),
            "down": pack(take(f"{mlp}.down_proj.weight")),
            "down_bias": take(f"{mlp}.down_proj.bias"),
        }
    return DecoderLayer(
        input_norm=take(f"{layer}.input_layernorm.weight"),
        qkv=pack(_joined(take(f"{name}.weight") for name in qkv)),
        qkv_bias=_joined(take(f"{name}.bias") for name in qkv),
        query_norm=take(f"{attention}.q_norm.weight"),
        key_norm=take(f"{attention}.k_norm.weight"),
        out=pack(take(f"{attention}.o_proj.weight")),
        out_bias=take(f"{attention}.o_proj.bias"),
        mlp_norm=take(f"{layer}.post_attention_layernorm.weight"),
        **feed_forward,
    )


def rotary_frequencies(config) -> tuple[Tensor, float]:
    """Inverse frequencies, fp32 [D / 2], and the factor on cosine and sine, of the configuration's RoPE.

    Raises:
        CastError: parameters that give no frequencies, or not one for every two channels of a head.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope, width, device = config.rope_parameters, head_dim(config), torch.device("cpu")
    try:
        if rope["rope_type"] == "default":
            exponent = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
            frequencies, scaling = 1.0 / rope["rope_theta"] ** exponent, 1.0
        else:
            frequencies, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device)
        usable = 0 < len(frequencies) * 2 == width and bool((frequencies * scaling).isfinite().all())
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        usable = False  # transformers only warns of odd values
    if not usable:
        raise CastError(f"target with RoPE parameters {rope} for heads of {width} channels is not supported")
    return frequencies, scaling


def _is_sparse(index: int, config) -> bool:
    """Whether a layer has experts."""
    if not has_experts(config):
        return False
    return index not in config.mlp_only_layers and (index + 1) % config.decoder_sparse_step == 0


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    parts = [part for part in parts if part is not None]
    return torch.cat(parts) if parts else None
