"""The Triton kernel against torch's attention, by Triton's interpreter where there is no GPU."""

import numpy as np
import pytest
import torch

from cast.serving.attention import LoopedAttention, RaggedLayout, ragged_attention

pytest.importorskip("triton", reason="the kernel's tests need triton: pip install triton")
from cast.serving.kernel import TreeAttention, ancestor_words, covers

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def difference(layout, query, keys, values):
    heads, kv_heads = query.shape[1], keys.shape[1]
    on_device = [tensor.to(DEVICE) for tensor in (query, keys, values)]
    out = TreeAttention(layout, heads, kv_heads, query.shape[2], query.dtype, DEVICE)(*on_device)
    exact = LoopedAttention(layout, heads // kv_heads, torch.float32, torch.device("cpu"))
    expected = exact(query.float(), keys.float(), values.float())
    assert out.shape == expected.shape
    return (out.cpu().float() - expected).abs().max().item()


@pytest.mark.parametrize(
    ("sizes", "prefixes", "heads", "kv_heads", "head_dim"),
    [
        ([3, 0, 7], [5, 1, 64], 4, 2, 64),  # an empty tree, a one-token prefix, a prefix of one block
        ([63, 64, 0], [63, 65, 128], 3, 1, 64),  # packs and prefixes on either side of a block's end
        ([66], [1], 2, 2, 128),  # two words of ancestors, no grouping
        ([1, 5], [0, 2], 8, 1, 128),  # no prefix at all
        ([4, 9], [70, 3], 9, 3, 16),
    ],
)
def test_fp32(ragged_case, sizes, prefixes, heads, kv_heads, head_dim):
    assert difference(*ragged_case(sizes, prefixes, heads, kv_heads, head_dim)) < 2e-6


@pytest.mark.parametrize("seed", range(4))
def test_random_ragged_shapes(ragged_case, seed):
    draw = np.random.default_rng(seed)
    requests = int(draw.integers(1, 5))
    sizes, prefixes = draw.integers(0, 40, requests).tolist(), draw.integers(1, 100, requests).tolist()
    kv_heads, group = int(draw.integers(1, 3)), int(draw.integers(1, 5))
    case = ragged_case(sizes, prefixes, kv_heads * group, kv_heads, int(draw.choice([64, 128])), seed=seed)
    assert difference(*case) < 2e-6


def test_half_precision(ragged_case):
    """The path of two-byte operands; the interpreter's matrix product knows float16 but not bfloat16."""
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    case = ragged_case([20, 3], [40, 7], 6, 2, 64, dtype)
    assert difference(*case) < (2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_a_pass_in_which_every_row_sees_everything(ragged_case):
    """The drafter's blocks: nothing lies behind the prefix."""
    _, query, keys, values = ragged_case([7, 7], [20, 75], 4, 2, 64)
    ends = [28, 83]
    layout = RaggedLayout(starts=[0, 8, 16], slots=[1, 0], prefix=ends, ends=ends)
    assert difference(layout, query, keys, values) < 2e-6


def test_words_hold_the_ancestors_bit_by_bit():
    visible = np.random.default_rng(0).random((5, 130)) < 0.5
    words = ancestor_words(visible)
    assert words.shape == (5, 3)
    assert words.dtype == np.int64
    for row, column in np.ndindex(visible.shape):
        assert bool((int(words[row, column // 64]) >> (column % 64)) & 1) == visible[row, column]


def test_other_devices_take_the_loop(ragged_case):
    layout, query, *_ = ragged_case([2], [3], 2, 1, 64)
    chosen = ragged_attention(layout, 2, 1, 64, query.dtype, torch.device("cpu"))
    assert isinstance(chosen, LoopedAttention)


def test_what_the_kernel_covers():
    assert all(covers(size, dtype) for size in (16, 64, 128) for dtype in (torch.float32, torch.bfloat16))
    assert not covers(96, torch.float32)
    assert not covers(64, torch.float64)  # its sums are fp32
