"""The ragged tree-attention kernel, forward only (paper, appendix F).

One program handles a block of query rows of one request and one key head. The query heads that share the key
head are rows of the block, so keys and values are read once for the whole group. A row sees its request's
prefix and, among the pack's own entries, those whose bits are set in its ancestor words.

With TRITON_INTERPRET=1 in the environment before Triton is imported, it runs on a CPU, slowly.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from cast.serving.attention import RaggedAttention, RaggedLayout

WORD_BITS = 64
HEAD_DIMS = (16, 32, 64, 128)


def covers(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernel is written for heads of that size and dtype; it sums in fp32, too little for fp64."""
    return head_dim in HEAD_DIMS and dtype.itemsize <= 4


class TreeAttention(RaggedAttention):
    """The kernel over one layout."""

    def __init__(
        self,
        layout: RaggedLayout,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self._group, self._kv_heads, self._head_dim = heads // kv_heads, kv_heads, head_dim
        rows = np.diff(layout.starts) * self._group
        # Four-byte operands fill the shared memory of a smaller GPU at 64 rows, or when blocks are loaded ahead.
        # The dtype alone decides, so that no round compiles a variant of its own.
        self._block_rows, self._stages = (64, 2) if dtype.itemsize < 4 else (16, 1)
        blocks = -(-rows // self._block_rows)
        request = np.repeat(np.arange(layout.requests), blocks)
        first = (np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * self._block_rows
        starts = np.asarray(layout.starts)
        columns = (layout.slots, layout.prefix, layout.ends, starts[:-1], starts[1:])
        of_block = np.stack([first, *(np.asarray(column)[request] for column in columns)], axis=1)
        words = ancestor_words(layout.visible) if layout.visible is not None else np.zeros((1, 1), np.int64)
        self._words_per_row = words.shape[1]
        # One copy to the device for the whole pass.
        both = np.concatenate((of_block.reshape(-1), words.reshape(-1))).astype(np.int64)
        both = torch.from_numpy(both).to(device, non_blocking=True)
        self._blocks, self._words = both[: of_block.size], both[of_block.size :]
        self._grid = (len(request), kv_heads)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        query = query.contiguous()
        out = torch.empty_like(query)
        _tree_attention[self._grid](
            query,
            keys,
            values,
            out,
            self._blocks,
            self._words,
            self._words_per_row,
            self._head_dim**-0.5,
            keys.stride(0),
            keys.stride(1),
            keys.stride(2),
            GROUP=self._group,
            KV_HEADS=self._kv_heads,
            HEAD_DIM=self._head_dim,
            BLOCK_ROWS=self._block_rows,
            BLOCK_COLUMNS=WORD_BITS,
            num_stages=self._stages,
        )
        return out.view(len(query), -1)


def ancestor_words(visible: np.ndarray) -> np.ndarray:
    """Bits of bool [T, columns], column j in bit j % 64 of word j // 64: int64 [T, ceil(columns / 64)]."""
    rows, columns = visible.shape
    padded = np.zeros((rows, -(-columns // WORD_BITS) * WORD_BITS), bool)
    padded[:, :columns] = visible
    return np.packbits(padded, axis=1, bitorder="little").view("<i8").astype(np.int64)


@triton.jit
def _attend_block(query, key, value, seen, best, total, out, scale):
    """Fold one block of columns into the running softmax of a block of rows."""
    scores = tl.dot(query, key, input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp(scores - new_best[:, None])
    shrink = tl.exp(best - new_best)
    total = total * shrink + tl.sum(weights, 1)
    out = out * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return new_best, total, out


@triton.jit(do_not_specialize=["words_per_row"])
def _tree_attention(
    queries,  # [T, KV_HEADS * GROUP, HEAD_DIM], contiguous, as is the output
    keys,  # [slots, KV_HEADS, capacity, HEAD_DIM], values with the same strides
    values,
    outputs,
    blocks,  # int64 [programs, 6]: first row among the request's, slot, prefix, end, its packed rows from and to
    words,  # int64 [T, words_per_row]
    words_per_row,
    scale,
    slot_stride,
    head_stride,
    column_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,  # the bits of a word, so that a block of the pack's columns is one word of each row
):
    block = blocks + tl.program_id(0) * 6
    kv_head = tl.program_id(1)
    first = tl.load(block)
    slot = tl.load(block + 1)
    prefix = tl.load(block + 2)
    end = tl.load(block + 3)
    start = tl.load(block + 4)
    stop = tl.load(block + 5)

    row = first + tl.arange(0, BLOCK_ROWS)  # token by token, the group's heads within each
    token = start + row // GROUP
    inside = token < stop
    dims = tl.arange(0, HEAD_DIM)
    at_row = (token * (KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP) * HEAD_DIM
    query = tl.load(queries + at_row[:, None] + dims[None, :], mask=inside[:, None], other=0.0)

    lane = tl.arange(0, BLOCK_COLUMNS)
    base = slot * slot_stride + kv_head * head_stride
    best = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    out = tl.zeros((BLOCK_ROWS, HEAD_DIM), tl.float32)

    for left in range(0, prefix, BLOCK_COLUMNS):
        column = left + lane
        cached = column < prefix
        at = base + column * column_stride
        key = tl.load(keys + at[None, :] + dims[:, None], mask=cached[None, :], other=0.0)
        value = tl.load(values + at[:, None] + dims[None, :], mask=cached[:, None], other=0.0)
        best, total, out = _attend_block(query, key, value, cached[None, :], best, total, out, scale)

    for left in range(prefix, end, BLOCK_COLUMNS):
        column = left + lane
        packed = column < end
        at = base + column * column_stride
        key = tl.load(keys + at[None, :] + dims[:, None], mask=packed[None, :], other=0.0)
        value = tl.load(values + at[:, None] + dims[None, :], mask=packed[:, None], other=0.0)
        # Bit 0 of word 0 is the root, which every row sees: no row's first block is empty. Rows outside see all.
        word = tl.load(words + token * words_per_row + (left - prefix) // BLOCK_COLUMNS, mask=inside, other=-1)
        seen = ((word[:, None] >> lane[None, :]) & 1) != 0
        best, total, out = _attend_block(query, key, value, seen & packed[None, :], best, total, out, scale)

    out = out / total[:, None]
    tl.store(outputs + at_row[:, None] + dims[None, :], out.to(outputs.dtype.element_ty), mask=inside[:, None])
