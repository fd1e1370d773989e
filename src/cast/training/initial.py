"""A new DFlash head that starts as close to its target as the layout allows."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.dflash import DFlashConfig, DFlashDrafter, default_target_layers
from cast.models.layers import dense
from cast.models.target import Target
from cast.training.batched import BatchedTarget


def head_config(
    target: Target,
    *,
    layers: int,
    taps: int,
    block_size: int,
    mask_token_id: int,
    intermediate_size: int | None = None,
) -> dict:
    """The public `config.json` of a new head with the target's own attention sizes.

    Args:
        layers: layers of the head.
        taps: how many target layers it reads, evenly spaced as the published heads space them.
        intermediate_size: the target's own when None.

    Raises:
        CastError: the target has too few layers for so many taps, or no such mask token.
    """
    config = target.config
    tapped = default_target_layers(target.layers, taps)
    if tapped != sorted(set(tapped)):
        raise CastError(f"{taps} taps do not fit a target of {target.layers} layers; lower head.taps")
    if not 0 <= mask_token_id < target.vocab_size:
        raise CastError(f"head.mask_token_id {mask_token_id} is no token of the target; it has {target.vocab_size}")
    rope = getattr(config, "rope_parameters", None) or {}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": block_size,
        "dflash_config": {
            "mask_token_id": mask_token_id,
            "target_layer_ids": tapped,
        },
        "dtype": "bfloat16",
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate_size or config.intermediate_size,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": target.max_positions,
        "num_attention_heads": target.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": target.kv_heads,
        "num_target_layers": target.layers,
        "rms_norm_eps": target.eps,
        "rope_scaling": None,
        "rope_theta": rope.get("rope_theta") or getattr(config, "rope_theta", 10_000.0),
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
    }


def check_start(target: Target, layers: int, intermediate_size: int | None) -> None:
    """Refuse a head that cannot begin as its target's last layers.

    Args:
        layers: of the head.
        intermediate_size: its MLP width; the target's own when None.

    Raises:
        CastError: the target has too few layers or they hold experts, or the head's MLP is wider than theirs.
    """
    if layers >= target.layers:
        raise CastError(
            f"a head begins as its target's last layers, {target.layers - 1} at most, not {layers}; lower head.layers"
        )
    if any(layer.experts is not None for layer in target.decoder_layers[-layers:]):
        raise CastError(
            "a head begins as its target's last layers, and these have experts where a head has one MLP; name a head "
            "to go on from in training.start_from"
        )
    own = target.config.intermediate_size
    if intermediate_size is not None and intermediate_size > own:
        raise CastError(
            f"the head's MLP width {intermediate_size} exceeds the target's {own}, from which it is copied; lower "
            "head.intermediate_size"
        )


@torch.inference_mode(False)
@torch.no_grad()
def initial_drafter(target: Target, raw_config: dict, sample: list[Tensor]) -> DFlashDrafter:
    """A head whose layers are the target's last ones, whose `fc` passes the last tap through and whose norm
    is the target's.

    The head norms queries and keys per channel, which a Llama target does not; those weights are set so that
    the normed channels have the root mean square they have in the target, measured on `sample`.

    Args:
        raw_config: as `head_config` gives it.
        sample: some token sequences of the target's own output, int64 [T_r].

    Raises:
        CastError: as `check_start`.
    """
    config = DFlashConfig.from_dict(raw_config)
    check_start(target, config.layers, config.intermediate_size)
    drafter = DFlashDrafter(config).float()
    first = target.layers - config.layers
    inputs = BatchedTarget(target, sample, max(map(len, sample)), tuple(range(first - 1, target.layers - 1)))
    _, features = inputs.prefill()
    valid = torch.arange(features.shape[1], device=features.device)[None] >= inputs.padding[:, None]
    hidden = features[valid].unflatten(-1, (config.layers, -1))

    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -config.hidden_size :] = torch.eye(config.hidden_size)
    drafter.hidden_norm.weight.copy_(target.decoder_layers[first].input_norm)
    drafter.norm.weight.copy_(target.final_norm)
    width = config.intermediate_size
    for index, layer in enumerate(drafter.layers):
        source = target.decoder_layers[first + index]
        query, key, value = dense(source.qkv).split(
            [n * target.head_dim for n in (target.heads, target.kv_heads, target.kv_heads)]
        )
        gate, up = dense(source.gate_up).chunk(2)
        for linear, weight in (
            (layer.self_attn.q_proj, query),
            (layer.self_attn.k_proj, key),
            (layer.self_attn.v_proj, value),
            (layer.self_attn.o_proj, dense(source.out)),
            (layer.mlp.gate_proj, gate[:width]),
            (layer.mlp.up_proj, up[:width]),
            (layer.mlp.down_proj, dense(source.down)[:, :width]),
        ):
            linear.weight.copy_(weight)
        layer.input_layernorm.weight.copy_(source.input_norm)
        layer.post_attention_layernorm.weight.copy_(source.mlp_norm)
        if source.query_norm is not None:
            layer.self_attn.q_norm.weight.copy_(source.query_norm)
            layer.self_attn.k_norm.weight.copy_(source.key_norm)
            continue
        normed = target._norm(hidden[:, index], source.input_norm)
        layer.self_attn.q_norm.weight.copy_(_channel_scale(normed @ query.T, target.head_dim))
        layer.self_attn.k_norm.weight.copy_(_channel_scale(normed @ key.T, target.head_dim))
    return drafter


def _channel_scale(projected: Tensor, head_dim: int) -> Tensor:
    """Root mean square of each channel [D]; both channels of a rotary pair share theirs, as rotation mixes
    them.
    """
    square = projected.float().unflatten(-1, (-1, head_dim)).square().mean((0, 1))
    return square.view(2, -1).mean(0).sqrt().repeat(2)
