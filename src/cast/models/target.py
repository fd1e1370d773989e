"""The target language model: a plain decoder forward over the weights of a published checkpoint.

Owning the forward pass gives one path for every supported family, in which the mask, the positions, the
tapped features, the rows that get logits and the cache are ours, whatever a transformers release does with
its own cache classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.errors import CastError
from cast.models.experts import Experts
from cast.models.kv_cache import KVCache
from cast.models.layers import PackedWeight, RotaryTable, Weight, attend, dense, for_group, linear, pack, rotate
from cast.models.target_weights import (
    EMBEDDING,
    FINAL_NORM,
    LM_HEAD,
    DecoderLayer,
    decoder_layer,
    has_experts,
    head_dim,
    rotary_frequencies,
)

FAMILIES = ("llama", "qwen3", "qwen3_moe")
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
EXPERT_SIZES = ("moe_intermediate_size", "num_experts_per_tok", "decoder_sparse_step")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
HYBRIDS = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Families with recurrent layers, whose state cannot follow the branches of a tree; see `cast.models.hybrid`."""

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query [n, heads, D], key [n, kv_heads, D], value [n, kv_heads, D]) to [n, heads * D]."""


@dataclass(frozen=True)
class TargetOutput:
    """What one pass returns: logits [n or 1, V] and, for the tapped layers in order, hidden states [n, H] each."""

    logits: Tensor
    taps: list[Tensor]


class Target:
    """A causal decoder of the Llama or Qwen3 families (grouped-query attention, RMSNorm, SwiGLU or experts, RoPE).

    Attributes:
        config: the transformers configuration.
        layers, heads, kv_heads, head_dim, hidden_size, vocab_size, max_positions: its sizes.
        stop_token_ids: the model's own end-of-sequence ids.
        dtype, device: of the weights.
    """

    def __init__(
        self,
        config,
        weights: Mapping[str, Tensor],
        *,
        stop_token_ids: Sequence[int] = (),
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        track: Callable[[range], Iterable[int]] = iter,
    ):
        """Fuse the weights of a checkpoint.

        Args:
            config: the transformers configuration.
            weights: every tensor of `cast.models.target_weights.tensor_shapes` by its name.
            stop_token_ids: the model's own end-of-sequence ids.
            device, dtype: of the result; those of the token embeddings by default.
            track: passes on the layers one by one, and may show how many are done.

        Raises:
            CastError: another model family or an attention variant this forward does not cover.
        """
        check_family(config)
        device, dtype = device or weights[EMBEDDING].device, dtype or weights[EMBEDDING].dtype

        def take(name: str) -> Tensor | None:
            return weights[name].detach().to(device, dtype) if name in weights else None

        self.config = config
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = head_dim(config)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.eps = config.rms_norm_eps
        self.stop_token_ids = tuple(stop_token_ids)
        self.embedding = take(EMBEDDING)
        self.device, self.dtype = self.embedding.device, dtype
        lm_head = take(LM_HEAD)
        if lm_head is None or (config.tie_word_embeddings and torch.equal(lm_head, self.embedding)):
            lm_head = self.embedding
        self.lm_head = pack(lm_head)
        self.final_norm = take(FINAL_NORM)
        self.decoder_layers = [decoder_layer(index, config, take) for index in track(range(self.layers))]
        self._rotary_table: RotaryTable | None = None

    @classmethod
    def of(cls, model) -> Target:
        """The target with the weights of a loaded transformers model, `LlamaForCausalLM` and the like, where they are.

        Raises:
            CastError: as for the constructor.
        """
        stop = end_of_sequence(getattr(model.generation_config, "eos_token_id", None), model.config)
        check_family(model.config)
        return cls(model.config, model.state_dict(), stop_token_ids=stop)

    def to(self, dtype: torch.dtype) -> Target:
        """A copy with its weights in another dtype."""
        other = copy.copy(self)
        for name in ("embedding", "final_norm"):
            setattr(other, name, getattr(self, name).to(dtype))
        tied = torch.equal(dense(self.lm_head), self.embedding)
        other.lm_head = pack(other.embedding) if tied else _converted(self.lm_head, dtype)
        other.decoder_layers = [
            DecoderLayer(**{name: _converted(weight, dtype) for name, weight in vars(layer).items()})
            for layer in self.decoder_layers
        ]
        other._rotary_table = None
        other.dtype = dtype
        return other

    def rotary_table(self, positions: int) -> RotaryTable:
        """Cosines and sines for at least that many positions."""
        table = self._rotary_table
        if table is None or len(table.cos) < positions:
            inv_freq, scaling = rotary_frequencies(self.config)
            table = self._rotary_table = RotaryTable(inv_freq.to(self.device), scaling, positions, self.dtype)
        return table

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` tokens, and rotary positions to match."""
        table = self.rotary_table(capacity)
        return KVCache(self.layers, self.kv_heads, self.head_dim, capacity, self.dtype, self.device, table)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Token embeddings [n, H] for int64 ids [n]."""
        return F.embedding(token_ids, self.embedding)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """The language-model head: [n, H] (already normed) to [n, V] in the model's dtype, written to `out` if any."""
        if out is None:
            return linear(hidden, self.lm_head)
        if isinstance(self.lm_head, PackedWeight):
            return out.copy_(linear(hidden, self.lm_head))
        return torch.mm(hidden, self.lm_head.T, out=out)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        taps: Sequence[int] = (),
        last_logits_only: bool = False,
    ) -> TargetOutput:
        """One pass over a pack behind the cached prefix. The pack is written to the cache, not committed.

        Args:
            token_ids: int64 [n].
            positions: int64 [n], absolute position of each token.
            cache: holds the prefix x.
            mask: additive [n, len(x) + n]; None where each row sees everything (a single token).
            causal: attend with the causal kernel instead of a mask (a prefill, or a chain on a GPU).
            taps: ascending layer indices whose output hidden states are returned.
            last_logits_only: logits of the last row only, for a prefill.
        """
        if mask is not None:
            mask = for_group(mask, self.heads // self.kv_heads)

        def behind_prefix(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, *cache.write(index, key, value), mask, causal)

        return self.run_layers(
            token_ids, cache.rotary.at(positions), behind_prefix, taps=taps, last_logits_only=last_logits_only
        )

    @torch.inference_mode()
    def run_layers(
        self,
        token_ids: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        attention: Attention,
        *,
        taps: Sequence[int] = (),
        last_logits_only: bool = False,
        out: TargetOutput | None = None,
    ) -> TargetOutput:
        """The pass itself, with the caller's attention: what the tokens see is decided there and nowhere else.

        Args:
            token_ids: int64 [n].
            cos_sin: rotary phases of each token, see `RotaryTable.at`.
            attention: called once for each layer, in order.
            taps, last_logits_only: as for `forward`.
            out: memory for what it returns; None allocates it.
        """
        hidden = self.embed(token_ids)
        tapped = []
        for index, layer in enumerate(self.decoder_layers):
            hidden = hidden + self._attention(layer, index, hidden, cos_sin, attention)
            kept = out.taps[len(tapped)] if out and index in taps else None
            hidden = torch.add(hidden, self._mlp(layer, hidden), out=kept)
            if index in taps:
                tapped.append(hidden)
        if last_logits_only:
            hidden = hidden[-1:]
        return TargetOutput(self.logits(self._norm(hidden, self.final_norm), out and out.logits), tapped)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _attention(self, layer, index, hidden, cos_sin, attention) -> Tensor:
        n = hidden.shape[0]
        qkv = linear(self._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(n, self.heads + 2 * self.kv_heads, self.head_dim)
        if layer.query_norm is None:
            query_key = rotate(qkv[:, : self.heads + self.kv_heads], cos_sin)
            query, key = query_key.split((self.heads, self.kv_heads), dim=1)
        else:
            query = rotate(self._norm(qkv[:, : self.heads], layer.query_norm), cos_sin)
            key = rotate(self._norm(qkv[:, self.heads : self.heads + self.kv_heads], layer.key_norm), cos_sin)
        attended = attention(index, query, key, qkv[:, self.heads + self.kv_heads :])
        return linear(attended, layer.out, layer.out_bias)

    def _mlp(self, layer, hidden) -> Tensor:
        hidden = self._norm(hidden, layer.mlp_norm)
        if layer.experts is not None:
            return layer.experts(hidden)
        gate, up = linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return linear(F.silu(gate) * up, layer.down, layer.down_bias)


def check_family(config) -> None:
    """Refuse, before any weight is read, a model whose forward pass is not the one above.

    Raises:
        CastError: naming the model type or the variant.
    """
    if config.model_type in HYBRIDS:
        raise CastError(
            f"target of type {config.model_type!r} is a hybrid: its gated delta-rule layers cannot follow the branches "
            "of a tree, so it is probed (experiment=hybrid_probe) but not decoded"
        )
    if config.model_type not in FAMILIES:
        raise CastError(f"target of type {config.model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    for size in SIZES + (EXPERT_SIZES if has_experts(config) else ()):
        if getattr(config, size) < 1:
            raise CastError(f"target with {size} {getattr(config, size)} cannot be; the config.json is broken")
    if has_experts(config) and config.num_experts_per_tok > config.num_experts:
        raise CastError(
            f"target that sends a token to {config.num_experts_per_tok} of {config.num_experts} experts cannot be; "
            "the config.json is broken"
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise CastError(
            f"target with {config.num_attention_heads} attention heads for {config.num_key_value_heads} key heads "
            "is not supported: they must share them evenly"
        )
    if getattr(config, "quantization_config", None):
        raise CastError("a quantised target is not supported; load the original checkpoint")
    if config.hidden_act != "silu":
        raise CastError(f"target activation {config.hidden_act!r} is not supported; only silu is")
    sliding = getattr(config, "use_sliding_window", False) and getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if sliding else "full_attention"])
    if kinds != {"full_attention"}:
        raise CastError(f"target with layers of {', '.join(sorted(kinds))} is not supported; only full_attention is")
    rope = config.rope_parameters.get("rope_type", "per-layer")
    if rope not in ROPE_TYPES:
        # Those of dynamic and longrope depend on the length of the sequence.
        raise CastError(f"target with {rope} RoPE is not supported; supported: {', '.join(ROPE_TYPES)}")
    rotary_frequencies(config)


def end_of_sequence(generation: int | Sequence[int] | None, config) -> tuple[int, ...]:
    """End-of-sequence ids: those of the generation configuration, or else those of the model's."""
    stop = config.eos_token_id if generation is None else generation
    if stop is None:
        return ()
    return tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)


def _converted(weight: Weight | Experts | None, dtype: torch.dtype) -> Weight | Experts | None:
    if isinstance(weight, PackedWeight):
        return pack(weight.dense().to(dtype))
    return None if weight is None else weight.to(dtype)
