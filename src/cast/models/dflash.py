"""DFlash: a block drafter that scores a whole block in one pass, from the public checkpoint layout.

The head attends to features of the target (hidden states of a few of its layers) for every committed position
and, bidirectionally, to the block [b, mask, ..., mask]. Slot j of the block predicts the token at its own
position. Embedding table and language-model head are the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cast.errors import CastError
from cast.models.head import DraftHead, check_sizes, count, positive, rope_theta, section
from cast.models.kv_cache import KVCache
from cast.models.layers import PackedLinear, attend, rotate
from cast.models.target import Target

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of the same tokens, each [n, kv_heads, D]."""

BlockAttention = Callable[[int, Tensor, KeysValues, KeysValues], Tensor]
"""(layer, queries of the block [n, heads, D], of the fresh context, of the block) to [n, heads * D]."""


@dataclass(frozen=True)
class DFlashConfig:
    """The keys of a public DFlash `config.json` that the forward pass depends on."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    vocab_size: int | None = None

    @classmethod
    def from_dict(cls, raw: dict) -> DFlashConfig:
        """Read the raw JSON; `rope_theta` and `block_size` may stand at either of their two places.

        Raises:
            CastError: another architecture, a DFlash 2 checkpoint, a scaled RoPE, or a missing or impossible value.
        """
        if "DFlashDraftModel" not in (raw.get("architectures") or []):
            raise CastError(f"not a DFlash drafter: its config.json has architectures {raw.get('architectures')}")
        block = section(raw, "dflash_config")
        second_generation = [key for key in block if key.startswith(("conv_", "selector_"))]
        if second_generation:
            raise CastError(f"DFlash 2 checkpoints are not supported (config key {second_generation[0]!r})")
        theta = rope_theta(raw)
        layers, heads = count(raw, "num_hidden_layers"), count(raw, "num_attention_heads")
        hidden_size = count(raw, "hidden_size")
        taps = block.get("target_layer_ids")
        if taps is None:
            taps = default_target_layers(count(raw, "num_target_layers"), layers)
        if not isinstance(taps, list) or not taps or not all(type(layer) is int for layer in taps):
            raise CastError(f"target_layer_ids in the drafter's config.json must be a list of layers, not {taps!r}")
        return cls(
            hidden_size=hidden_size,
            intermediate_size=count(raw, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=count(raw, "num_key_value_heads", heads),
            head_dim=count(raw, "head_dim", hidden_size // heads),
            rms_norm_eps=positive(raw, "rms_norm_eps"),
            rope_theta=theta,
            attention_bias=bool(raw.get("attention_bias", False)),
            block_size=count(raw if raw.get("block_size") is not None else block, "block_size", at_least=2),
            mask_token_id=_mask_token(block),
            target_layer_ids=tuple(taps),
            vocab_size=count(raw, "vocab_size") if raw.get("vocab_size") is not None else None,
        )


def _mask_token(block: dict) -> int:
    token = block.get("mask_token_id")
    if type(token) is not int or token < 0:
        raise CastError(f"the drafter's config.json names no mask token: mask_token_id is {token!r}")
    return token


def default_target_layers(target_layers: int, draft_layers: int) -> list[int]:
    """The tapped layers of a checkpoint that names none: evenly spaced, banker's rounding as published."""
    if draft_layers == 1:
        return [target_layers // 2]
    step = (target_layers - 4) / (draft_layers - 1)
    return [round(1 + index * step) for index in range(draft_layers)]


class DFlashAttention(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        bias = config.attention_bias
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = PackedLinear(config.hidden_size, query, bias=bias)
        self.k_proj = PackedLinear(config.hidden_size, key, bias=bias)
        self.v_proj = PackedLinear(config.hidden_size, key, bias=bias)
        self.o_proj = PackedLinear(query, config.hidden_size, bias=bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
        self.head_dim = config.head_dim

    def queries(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """[..., n, H] to rotated, normed queries [..., n, heads, D]."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), cos_sin)

    def keys_values(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[..., n, H] to rotated, normed keys and plain values, each [..., n, kv_heads, D]."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), cos_sin), self._split(self.v_proj(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class DFlashMLP(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.gate_proj = PackedLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = PackedLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = PackedLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DFlashLayer(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.self_attn = DFlashAttention(config)
        self.mlp = DFlashMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class DFlashDrafter(DraftHead):
    """The head. Parameter names are those of the public checkpoints."""

    kind = "DFlash"

    def __init__(self, config: DFlashConfig):
        super().__init__(config)
        hidden = config.hidden_size
        self.fc = PackedLinear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)

    @property
    def block_size(self) -> int:
        """B: the pending root and B - 1 masked slots, so L = B - 1 positions are drafted."""
        return self.config.block_size

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    def check_fits(self, target) -> None:
        config, layers = self.config, target.num_hidden_layers
        check_sizes(config.hidden_size, config.vocab_size, target)
        if not 0 <= config.mask_token_id < target.vocab_size:
            raise CastError(
                f"the drafter's mask token {config.mask_token_id} is outside the target's vocabulary of "
                f"{target.vocab_size} tokens"
            )
        if list(config.target_layer_ids) != sorted(set(config.target_layer_ids)):
            raise CastError(f"the drafter's tapped layers {list(config.target_layer_ids)} are not strictly ascending")
        # The published layout takes stock hidden states, whose last entry is normed: a tap there is ambiguous.
        outside = [layer for layer in config.target_layer_ids if not 0 <= layer < layers - 1]
        if outside:
            raise CastError(
                f"the drafter taps target layer {outside[0]}, but this target has layers 0 to {layers - 1} "
                f"of which 0 to {layers - 2} can be tapped"
            )

    def context(self, features: Tensor) -> Tensor:
        """Fuse tapped hidden states [..., c, taps * H] into the context [..., c, H] that all layers attend to."""
        return self.hidden_norm(self.fc(features))

    @torch.inference_mode()
    def draft(
        self, target: Target, features: Tensor, root: Tensor, cache: KVCache, block_size: int | None = None
    ) -> Tensor:
        """Score every position of the next block in one pass (paper, section 2).

        Args:
            target: lends its embedding table and language-model head.
            features: [c, taps * H], target features of the committed positions not yet in `cache`.
            root: int64 [1], the pending root b.
            cache: the feature cache; grows by c.
            block_size: B, at most the head's own; its own when None.

        Returns:
            Logits [B - 1, V]; row j scores the token j + 1 positions after the root.
        """
        block = torch.full((block_size or self.block_size,), self.config.mask_token_id, device=root.device)
        block[:1] = root
        context = self.context(features)
        fresh, table = context.shape[0], cache.rotary
        root_position = cache.length + fresh
        at_context = slice(cache.length, root_position)
        at_block = slice(root_position, root_position + len(block))

        def over_cache(index: int, query: Tensor, of_context: KeysValues, of_block: KeysValues) -> Tensor:
            cache.write(index, *of_context)
            return attend(query, *cache.write(index, *of_block, offset=fresh))

        hidden = self.run_layers(
            target.embed(block),
            context,
            (table.cos[at_block], table.sin[at_block]),
            (table.cos[at_context], table.sin[at_context]),
            over_cache,
        )
        cache.commit(fresh)
        return target.logits(self.norm(hidden[1:]))

    def run_layers(
        self,
        hidden: Tensor,
        context: Tensor,
        block_phase: tuple[Tensor, Tensor],
        context_phase: tuple[Tensor, Tensor],
        attention: BlockAttention,
    ) -> Tensor:
        """The pass itself, with the caller's attention, which keeps the context and decides who sees whom.

        Args:
            hidden: [n, H], embeddings of the block, or of several blocks one after the other.
            context: [c, H], see `context`.
            block_phase, context_phase: rotary phases of their positions.
            attention: called once for each layer, in order.

        Returns:
            Hidden states [n, H], not normed.
        """
        for index, layer in enumerate(self.layers):
            own = layer.self_attn
            normed = layer.input_layernorm(hidden)
            # The context enters through the same key and value projections, but not through the input norm.
            attended = attention(
                index,
                own.queries(normed, block_phase),
                own.keys_values(context, context_phase),
                own.keys_values(normed, block_phase),
            )
            hidden = hidden + own.o_proj(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden
