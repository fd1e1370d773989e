"""A new EAGLE-3 or DART head that starts from its target's last layer and language-model head."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.dart import DartDrafter
from cast.models.drafters import new_head
from cast.models.feature_head import FeatureHead
from cast.models.layers import dense
from cast.models.target import Target
from cast.training.initial import check_start

KINDS = ("eagle3", "dart")
NEW_WEIGHT = 0.02  # standard deviation of weights that no layer of the target has
NEW_SLOT = 0.5  # of the masked slot, which attention reads un-normed beside normed rows


def feature_head_config(
    target: Target, kind: str, *, taps: list[int], draft_vocab_size: int, block_size: int, intermediate_size: int | None
) -> dict:
    """The `config.json` of a new head with the target's own attention sizes.

    Args:
        kind: "eagle3" or "dart".
        taps: the three target layers whose outputs it reads.
        block_size: one more than the positions a DART head scores; unused by EAGLE-3.
        intermediate_size: the target's own when None.

    Raises:
        CastError: a DART head without a masked slot, or not three taps.
    """
    if len(set(taps)) != 3:
        raise CastError(f"EAGLE-3 and DART heads read three layers of the target, not {taps}; raise head.taps to 3")
    if kind == "dart" and block_size < 3:
        raise CastError(f"a DART head needs at least one masked slot: head.block_size 3, not {block_size}")
    config = target.config
    rope = getattr(config, "rope_parameters", None) or {}
    raw = {
        "architectures": ["LlamaForCausalLMEagle3" if kind == "eagle3" else "DartLlamaForCausalLM"],
        "draft_vocab_size": min(draft_vocab_size, target.vocab_size),
        "dtype": "bfloat16",
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate_size or config.intermediate_size,
        "max_position_embeddings": target.max_positions,
        "model_type": "llama",
        "num_attention_heads": target.heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": target.kv_heads,
        "rms_norm_eps": target.eps,
        "rope_theta": rope.get("rope_theta") or getattr(config, "rope_theta", 10_000.0),
        "target_layer_ids": list(taps),
        "vocab_size": target.vocab_size,
    }
    return raw | ({"draft_length": block_size - 2} if kind == "dart" else {})


@torch.inference_mode(False)
@torch.no_grad()
def initial_feature_head(target: Target, raw_config: dict, counts: Tensor, seed: int = 0) -> FeatureHead:
    """A head whose layer is the target's last one where shapes agree; its token half starts near zero.

    `fc` passes the last tap through, and the language-model head holds the target's rows of the draft vocabulary.

    Args:
        counts: int64 [V], how often the target's outputs hold each token; the most frequent are the draft vocabulary.

    Raises:
        CastError: as `cast.training.initial.check_start`.
    """
    head = new_head(raw_config).float()
    config, source = head.config, target.decoder_layers[-1]
    check_start(target, 1, config.intermediate_size)
    generator = torch.Generator().manual_seed(seed)
    width, hidden = config.intermediate_size, config.hidden_size
    kept = counts.topk(config.draft_vocab_size).indices.sort().values
    if config.draft_vocab_size != config.vocab_size:
        head.d2t.copy_(kept - torch.arange(len(kept)))
    head.lm_head.weight.copy_(dense(target.lm_head)[kept])
    head.fc.weight.zero_()
    head.fc.weight[:, -hidden:] = torch.eye(hidden)
    layer = head.midlayer
    sizes = [n * target.head_dim for n in (target.heads, target.kv_heads, target.kv_heads)]
    for name, weight in zip("qkv", dense(source.qkv).split(sizes), strict=True):
        linear = getattr(layer.self_attn, f"{name}_proj")
        linear.weight[:, :hidden] = NEW_WEIGHT * torch.randn(len(weight), hidden, generator=generator)
        linear.weight[:, hidden:] = weight
    layer.self_attn.o_proj.weight.copy_(dense(source.out))
    gate, up = dense(source.gate_up).chunk(2)
    layer.mlp.gate_proj.weight.copy_(gate[:width])
    layer.mlp.up_proj.weight.copy_(up[:width])
    layer.mlp.down_proj.weight.copy_(dense(source.down)[:, :width])
    layer.hidden_norm.weight.copy_(source.input_norm)
    layer.post_attention_layernorm.weight.copy_(source.mlp_norm)
    # Embeddings have unit size after their norm, as the features' half has about the size of its norm's weights.
    layer.input_layernorm.weight.fill_(1.0)
    head.norm.weight.copy_(target.final_norm)
    if isinstance(head, DartDrafter):
        # Applied twice, the square root gives the direction the target's norm gives.
        root = target.final_norm.float().abs().sqrt()
        head.norm.weight.copy_(root * root.square().mean().sqrt())
        layer.mask_rep.copy_(NEW_SLOT * torch.randn(2 * hidden, generator=generator))
    return head
