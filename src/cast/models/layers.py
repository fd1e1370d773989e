"""The few operations that targets and drafters share: linear maps, rotary embedding, grouped-query attention."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class PackedWeight:
    """A linear map's weight [out, in] on a CPU, laid out for its kernels once instead of at every call.

    Attributes:
        blocked: in oneDNN's blocked layout, whose kernel is made for many rows.
        plain: bfloat16 as it came, for passes of one row: torch's own kernel takes two thirds of oneDNN's time there.
            None in float32, where oneDNN's is the faster one there, too.
    """

    blocked: Tensor
    plain: Tensor | None

    def dense(self) -> Tensor:
        """The weight as it came, bit for bit."""
        return self.blocked.to_dense() if self.plain is None else self.plain

    @property
    def nbytes(self) -> int:
        """Bytes that one pass reads."""
        return self.blocked.numel() * self.blocked.dtype.itemsize


Weight = Tensor | PackedWeight


def pack(weight: Tensor) -> Weight:
    """A linear map's weight [out, in] as `linear` is fastest: packed on a CPU in float32 and bfloat16, else itself.

    It must not change any more: a packed one keeps a copy, and may keep the weight beside it.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return weight
    if not torch.backends.mkldnn.is_available():
        return weight
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weight  # oneDNN refuses bfloat16 where the CPU would emulate it
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight)
    return PackedWeight(blocked, weight if weight.dtype == torch.bfloat16 else None)


def dense(weight: Weight) -> Tensor:
    """The plain weight [out, in] behind `pack`, bit for bit."""
    return weight.dense() if isinstance(weight, PackedWeight) else weight


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [..., in] times a packed or plain weight [out, in], plus bias [out]."""
    if not isinstance(weight, PackedWeight):
        return F.linear(x, weight, bias)
    if weight.plain is not None and x.numel() == x.shape[-1]:
        product = _without_onednn(x, weight.plain)
        return product if bias is None else product + bias
    return torch.ops.mkldnn._linear_pointwise(x, weight.blocked, bias, "none", [], "")


_SWITCH = threading.Lock()


def _without_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear` by torch's own kernel. The switch is the process's: threads beside this one may miss oneDNN, too."""
    with _SWITCH:
        enabled = torch.backends.mkldnn.enabled
        try:
            torch.backends.mkldnn.enabled = False
            return F.linear(x, weight)
        finally:
            torch.backends.mkldnn.enabled = enabled


class PackedLinear(nn.Linear):
    """`nn.Linear` that packs its weight once it is frozen; parameters and checkpoints are those of `nn.Linear`.

    The packed copy is made at the first call without gradients, and again when the weight was changed, converted or
    replaced since.
    """

    _packed: tuple[tuple, Weight] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.requires_grad or x.requires_grad or self.weight.device.type != "cpu":
            return super().forward(x)
        weight = self.weight.detach()
        state = (weight.data_ptr(), weight.dtype, None if weight.is_inference() else weight._version)
        if self._packed is None or self._packed[0] != state:
            self._packed = (state, pack(weight))
        return linear(x, self._packed[1], self.bias)

    def __getstate__(self):
        """Without the copy: packed tensors can be neither pickled nor deep-copied."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


class RotaryTable:
    """Cosines and sines for every position of a generation, computed once in fp32.

    Args:
        inv_freq: fp32 [D / 2], inverse frequencies as the model's own configuration scales them.
        scaling: factor on cosine and sine (1 for plain RoPE).
        positions: number of positions to tabulate.
        dtype: dtype of the table, the model's.
    """

    def __init__(self, inv_freq: Tensor, scaling: float, positions: int, dtype: torch.dtype):
        phase = torch.arange(positions, device=inv_freq.device, dtype=torch.float32)[:, None] * inv_freq.float()
        phase = torch.cat((phase, phase), dim=-1)
        self.cos = (phase.cos() * scaling).to(dtype)[:, None]  # [positions, 1, D]
        self.sin = (phase.sin() * scaling).to(dtype)[:, None]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [n, 1, D], for int64 positions [n]."""
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary embedding to x [n, heads, D]."""
    cos, sin = cos_sin
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Grouped-query attention of a pack over a cache.

    Args:
        query: [n, heads, D].
        keys, values: [kv_heads, S, D]; S counts the cached entries and the pack's own.
        mask: additive [heads / kv_heads * n, S], see `for_group`; None where every row sees every key.
        causal: the causal kernel: row i sees all but the last n - 1 - i keys.

    Returns:
        [n, heads * D].
    """
    n, heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    if causal:
        square = keys.shape[1] == n
        out = sdpa(
            query.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=None if square else causal_behind_prefix(n, keys.shape[1]),
            is_causal=square,
            enable_gqa=group > 1,
        )[0]
        return out.transpose(0, 1).reshape(n, heads * head_dim)
    # The heads that share a key head become extra query rows, so the cache is read once and never repeated.
    query = query.view(n, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, group * n, head_dim)
    out = sdpa(query[None], keys[None], values[None], attn_mask=mask)[0]
    return out.view(kv_heads, group, n, head_dim).permute(2, 0, 1, 3).reshape(n, heads * head_dim)


def causal_behind_prefix(n: int, entries: int):
    """torch's marker of the causal mask of the last n of so many entries, for kernels that take it."""
    # Not at the top: the module imports torch's compiler, two seconds of every import of the decoder.
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(n, entries)


def sdpa(query: Tensor, keys: Tensor, values: Tensor, **options) -> Tensor:
    """torch's `scaled_dot_product_attention` by any kernel but cuDNN's.

    On Hopper and Blackwell torch prefers that one, which takes part of a second to plan for lengths that it has not
    met; a sequence has a new length in every round.
    """
    if query.device.type != "cuda":
        return F.scaled_dot_product_attention(query, keys, values, **options)
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return F.scaled_dot_product_attention(query, keys, values, **options)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)


def for_group(mask: Tensor, group: int) -> Tensor:
    """A mask [n, S] once for each of the `group` heads that share a key head, as `attend` takes it.

    Rows are multiples of 8 entries apart: CUDA's kernel copies another mask to such rows, in every layer.
    """
    n, entries = mask.shape
    rows = mask.new_empty(group, n, -(-entries // 8) * 8)[..., :entries]
    return rows.copy_(mask).view(group * n, entries)


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """int64 [len(values), ...] there, in a copy that the host does not wait for."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def additive_mask(visible: Tensor, prefix: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The pack's visibility with an all-visible prefix, as the additive mask attention takes.

    Args:
        visible: bool [n, n], who sees whom inside the pack.
        prefix: number of cached entries before the pack.

    Returns:
        [n, prefix + n] in `dtype`: 0 where visible, -inf elsewhere. Every row sees itself, so no row is empty.
    """
    n = visible.shape[0]
    mask = torch.zeros(n, prefix + n, dtype=dtype, device=device)
    mask[:, prefix:].masked_fill_(~visible.to(device, non_blocking=True), float("-inf"))
    return mask
