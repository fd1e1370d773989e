"""What EAGLE-3 and DART heads share: one decoder layer over target features and the next token's embedding.

Row i pairs the target's features at position i with the token at position i + 1, so a head knows the pending
root although the target has not read it yet. Both families keep their own language-model head over a draft
vocabulary, a subset of the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cast.errors import CastError
from cast.models.dflash import DFlashMLP
from cast.models.head import DraftHead, check_sizes, count, positive, rope_theta
from cast.models.kv_cache import KVCache
from cast.models.layers import PackedLinear, attend, for_group, rotate
from cast.models.target import Target

TAPS = 3
DEFAULT_ROPE_THETA = 10_000.0
"""What the public code falls back to, whatever the target's own base is."""


@dataclass(frozen=True)
class FeatureHeadConfig:
    """The keys of a public EAGLE-3 or DART `config.json` that the forward pass depends on.

    `target_hidden_size` differs from `hidden_size` in heads narrower or wider than their target; `draft_length`,
    the number of masked slots, is a DART head's alone. `target_layer_ids`, our own key, names the layers whose outputs
    a head reads; without it they are those of the public code.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    draft_length: int = 0
    target_layer_ids: tuple[int, ...] = ()
    layers: int = 1

    @classmethod
    def from_dict(cls, raw: dict) -> FeatureHeadConfig:
        """Read the raw JSON.

        Raises:
            CastError: a scaled RoPE, more than one layer, or a missing or impossible value.
        """
        hidden_size, heads = count(raw, "hidden_size"), count(raw, "num_attention_heads")
        vocab_size, draft_vocab_size = count(raw, "vocab_size"), count(raw, "draft_vocab_size")
        if draft_vocab_size > vocab_size:
            raise CastError(
                f"the drafter's config.json has a draft vocabulary of {draft_vocab_size} tokens, "
                f"more than the {vocab_size} it is taken from"
            )
        if count(raw, "num_hidden_layers", 1) != 1:
            raise CastError(f"a drafter of this kind has one layer, not num_hidden_layers {raw['num_hidden_layers']}")
        return cls(
            hidden_size=hidden_size,
            intermediate_size=count(raw, "intermediate_size"),
            heads=heads,
            kv_heads=count(raw, "num_key_value_heads", heads),
            head_dim=count(raw, "head_dim", hidden_size // heads),
            rms_norm_eps=positive(raw, "rms_norm_eps"),
            rope_theta=rope_theta(raw, DEFAULT_ROPE_THETA),
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=count(raw, "target_hidden_size", hidden_size),
            draft_length=count(raw, "draft_length") if raw.get("draft_length") is not None else 0,
            target_layer_ids=_layer_ids(raw),
        )


def _layer_ids(raw: dict) -> tuple[int, ...]:
    ids = raw.get("target_layer_ids")
    if ids is None:
        return ()
    rising = isinstance(ids, list) and all(type(i) is int for i in ids) and sorted(set(ids)) == ids
    if not rising or len(ids) != TAPS or ids[0] < 0:
        raise CastError(f"target_layer_ids in the drafter's config.json must be {TAPS} rising layers, not {ids!r}")
    return tuple(ids)


class FeatureAttention(nn.Module):
    """Attention whose input is twice as wide as the residual stream."""

    def __init__(self, config: FeatureHeadConfig):
        super().__init__()
        width, key = 2 * config.hidden_size, config.kv_heads * config.head_dim
        self.q_proj = PackedLinear(width, config.heads * config.head_dim, bias=False)
        self.k_proj = PackedLinear(width, key, bias=False)
        self.v_proj = PackedLinear(width, key, bias=False)
        self.o_proj = PackedLinear(config.heads * config.head_dim, config.hidden_size, bias=False)
        self.head_dim = config.head_dim
        self.group = config.heads // config.kv_heads

    def forward(
        self,
        x: Tensor,
        cache: KVCache,
        positions: slice | Tensor,
        *,
        queries: int,
        offset: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Write all rows x [n, 2H] behind the cache; attend from the last `queries` of them, [queries, H].

        Args:
            positions: of the rows, for the rotary phase.
            offset: rows already written behind the committed entries.
            mask: additive [queries, length + offset + n]; None where every query sees every row.
        """
        cos, sin = cache.rotary.cos[positions], cache.rotary.sin[positions]
        key = rotate(self._split(self.k_proj(x)), (cos, sin))
        keys, values = cache.write(0, key, self._split(self.v_proj(x)), offset=offset)
        query = rotate(self._split(self.q_proj(x[-queries:])), (cos[-queries:], sin[-queries:]))
        mask = None if mask is None else for_group(mask, self.group)
        return self.o_proj(attend(query, keys, values, mask))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class FeatureLayer(nn.Module):
    def __init__(self, config: FeatureHeadConfig):
        super().__init__()
        self.self_attn = FeatureAttention(config)
        self.mlp = DFlashMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def paired(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The attention's input [n, 2H]: the token's half first, each half normed on its own."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Both residual additions, [n, H]; the residual stream itself is not normed."""
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class FeatureHead(DraftHead):
    """A head over three tapped layers. Parameter names are those of the public checkpoints."""

    def __init__(self, config: FeatureHeadConfig):
        super().__init__(config)
        hidden = config.hidden_size
        self.fc = PackedLinear(TAPS * config.target_hidden_size, hidden, bias=False)
        self.midlayer = FeatureLayer(config)
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = PackedLinear(hidden, config.draft_vocab_size, bias=False)
        self.embed_tokens: nn.Embedding | None = None
        if config.draft_vocab_size != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    def accept(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        config = self.config
        kept = {name: tensor for name, tensor in weights.items() if name != "t2d"}  # the inverse table, for training
        if config.draft_vocab_size == config.vocab_size:
            kept.pop("d2t", None)  # as in the public code: ids stay as they are
        elif "d2t" not in kept:
            raise CastError(
                f"the {self.kind} checkpoint lacks d2t, the table from its draft vocabulary of "
                f"{config.draft_vocab_size} tokens to the target's {config.vocab_size}"
            )
        else:
            table = kept["d2t"]
            if table.shape == self.d2t.shape:
                ids = torch.arange(len(table)) + table
                if table.is_floating_point() or ids.min() < 0 or ids.max() >= config.vocab_size:
                    raise CastError(
                        f"the {self.kind} checkpoint's d2t leaves the target's vocabulary of {config.vocab_size} tokens"
                    )
        if "embed_tokens.weight" in kept or config.target_hidden_size != config.hidden_size:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        return kept

    def check_fits(self, target) -> None:
        check_sizes(self.config.target_hidden_size, self.config.vocab_size, target)
        layers, named = target.num_hidden_layers, self.config.target_layer_ids
        self.tapped_layers(layers)
        if named and named[-1] >= layers:
            raise CastError(f"the drafter reads layer {named[-1]} of a target that has {layers}")

    def tapped_layers(self, layers: int) -> tuple[int, int, int]:
        """The tapped layers of a target of that many."""
        return self.config.target_layer_ids or tapped_layers(layers)

    def embed(self, target: Target, token_ids: Tensor) -> Tensor:
        """Embeddings [n, H] of target ids [n], from the head's own table where its checkpoint has one."""
        if self.embed_tokens is None:
            return target.embed(token_ids)
        return self.embed_tokens(token_ids)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape; the stored table holds offsets."""
        if self.config.draft_vocab_size == self.config.vocab_size:
            return draft_ids
        return draft_ids + F.embedding(draft_ids, self.d2t[:, None]).squeeze(-1)


def tapped_layers(layers: int) -> tuple[int, int, int]:
    """The target layers whose OUTPUTS these heads read: the public code names the inputs of the next ones.

    Raises:
        CastError: a target of so few layers that the three would not be distinct.
    """
    inputs = (2, layers // 2, layers - 3)
    if not inputs[0] < inputs[1] < inputs[2]:
        raise CastError(
            f"EAGLE-3 and DART heads read three layers of the target, which takes at least 7; this one has {layers}"
        )
    return tuple(layer - 1 for layer in inputs)
