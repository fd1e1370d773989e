"""Packed linear weights, rotary tables and masks."""

import copy
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from cast.models import layers
from cast.models.layers import (
    PackedLinear,
    PackedWeight,
    RotaryTable,
    additive_mask,
    attend,
    dense,
    for_group,
    linear,
    pack,
    rotate,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_linear_map_is_the_linear_map(dtype, rows, with_bias):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 33, generator=generator).to(dtype)
    bias = torch.randn(50, generator=generator).to(dtype) if with_bias else None
    x = torch.randn(rows, 33, generator=generator).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(linear(x, pack(weight), bias), F.linear(x, weight, bias), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_packing_is_undone_bit_for_bit(dtype):
    weight = torch.randn(37, 21, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(dense(pack(weight)), weight)


def test_one_row_of_bf16_takes_torchs_own_kernel_and_puts_the_switch_back(monkeypatch):
    generator = torch.Generator().manual_seed(4)
    weight, x = (torch.randn(shape, generator=generator) for shape in ((50, 1536), (2, 1536)))
    packed = {dtype: pack(weight.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    if not isinstance(packed[torch.bfloat16], PackedWeight):
        pytest.skip("no bfloat16 in oneDNN on this CPU")
    calls = []  # rows of a call, and whether oneDNN was allowed

    def noted(x, *given):
        calls.append((len(x), torch.backends.mkldnn.enabled))
        return F.linear(x, *given)

    monkeypatch.setattr(layers, "F", SimpleNamespace(linear=noted))
    for dtype, weights in packed.items():
        for rows in (x[:1], x):
            exact = rows.to(dtype).double() @ weight.to(dtype).double().T
            out = linear(rows.to(dtype), weights).double()
            torch.testing.assert_close(out, exact, rtol=2**-8, atol=1e-3)
    assert calls == [(1, False)]
    for allowed in (False, True):
        with torch.backends.mkldnn.flags(enabled=allowed):
            with pytest.raises(RuntimeError):
                linear(x[:1, 1:].bfloat16(), packed[torch.bfloat16])
            assert torch.backends.mkldnn.enabled == allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_linear_follows_every_change_of_its_weight(dtype):
    layer = PackedLinear(33, 20).to(dtype).requires_grad_(False)
    x = torch.randn(3, 33, generator=torch.Generator().manual_seed(2)).to(dtype)

    def agrees():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), atol=0.05, rtol=0.02)
        return True

    assert agrees()
    layer.weight.mul_(-2)
    assert agrees()
    layer.load_state_dict(
        {"weight": torch.ones(20, 33, dtype=dtype), "bias": torch.zeros(20, dtype=dtype)}, assign=True
    )
    layer.requires_grad_(False)
    assert agrees()
    layer.to(torch.float64)
    torch.testing.assert_close(layer(x.double()), F.linear(x.double(), layer.weight, layer.bias))


def test_a_frozen_linear_packs_once_is_copied_without_and_trains_as_any_other():
    layer = PackedLinear(33, 20).requires_grad_(False)
    x = torch.randn(3, 33, generator=torch.Generator().manual_seed(3))
    layer(x)
    packed = layer._packed
    layer(x)
    assert layer._packed is packed
    assert set(layer.state_dict()) == {"weight", "bias"}
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), layer(x))
    copied.requires_grad_(True)
    copied(x).sum().backward()
    torch.testing.assert_close(copied.weight.grad, x.sum(0).expand(20, -1))
    through = x.clone().requires_grad_(True)  # a frozen layer passes gradients on
    layer(through).sum().backward()
    torch.testing.assert_close(through.grad, layer.weight.sum(0).expand(3, -1))


@pytest.mark.slow
def test_bf16_works_on_a_cpu_without_native_bf16():
    """As on a laptop with AVX2 only; oneDNN reads its limit once, so this takes a process of its own."""
    script = (
        "import torch\n"
        "from cast.models.layers import linear, pack\n"
        "weight, x = torch.eye(32).bfloat16(), torch.arange(64.0).view(2, 32).bfloat16()\n"
        "assert torch.equal(linear(x, pack(weight)), x)\n"
    )
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=limited, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    inv_freq = 10000.0 ** -(torch.arange(0, 16, 2) / 16)
    table = RotaryTable(inv_freq, 1.0, 64, torch.float64)
    query, key = torch.randn(2, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def score(i, j):
        return float((rotate(query, table.at(torch.tensor([i]))) * rotate(key, table.at(torch.tensor([j])))).sum())

    assert score(3, 3) == pytest.approx(float((query * key).sum()), rel=1e-6)
    assert score(9, 4) == pytest.approx(score(45, 40), rel=1e-4)
    rotated = rotate(query, table.at(torch.tensor([50])))
    assert rotated.norm().item() == pytest.approx(query.norm().item(), rel=1e-6)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_attention_of_a_pack_equals_attention_head_by_head(group):
    n, kv_heads, length, width = 5, 2, 11, 8
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(n, kv_heads * group, width, dtype=torch.float64, generator=generator)
    keys, values = torch.randn(2, kv_heads, length, width, dtype=torch.float64, generator=generator)
    visible = torch.rand(n, n, generator=generator) > 0.5
    visible |= torch.eye(n, dtype=torch.bool)
    mask = additive_mask(visible, length - n, torch.float64, torch.device("cpu"))
    for used in (mask, None):
        out = attend(query, keys, values, used if used is None else used.repeat(group, 1)).view(
            n, kv_heads * group, width
        )
        for head in range(kv_heads * group):
            scores = query[:, head] @ keys[head // group].T / width**0.5
            weights = (scores if used is None else scores + used).softmax(-1)
            torch.testing.assert_close(out[:, head], weights @ values[head // group])


def test_the_mask_hides_inside_the_pack_only():
    visible = torch.tensor([[True, False], [True, True]])
    mask = additive_mask(visible, 3, torch.float32, torch.device("cpu"))
    assert mask.tolist() == [[0, 0, 0, 0, float("-inf")], [0, 0, 0, 0, 0]]


def test_the_causal_kernel_behind_a_prefix_equals_the_mask():
    n, kv_heads, group, length, width = 4, 2, 3, 9, 8
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(n, kv_heads * group, width, generator=generator)
    keys, values = torch.randn(2, kv_heads, length, width, generator=generator)
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    mask = additive_mask(visible, length - n, torch.float32, torch.device("cpu")).repeat(group, 1)
    torch.testing.assert_close(attend(query, keys, values, causal=True), attend(query, keys, values, mask))


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("entries", [8, 13])
def test_a_mask_for_each_head_of_a_group_has_rows_that_cuda_takes_as_they_are(group, entries):
    mask = torch.randn(5, entries, generator=torch.Generator().manual_seed(7))
    grouped = for_group(mask, group)
    assert torch.equal(grouped, mask.repeat(group, 1))
    assert grouped.stride(0) % 8 == 0


def test_cudnn_is_not_asked_to_plan_each_length_of_a_sequence(monkeypatch):
    class OnCuda(torch.Tensor):
        device = torch.device("cuda")

    allowed, kernel = [], F.scaled_dot_product_attention

    def noted(*args, **options):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return kernel(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    query, keys = torch.randn(3, 4, 8), torch.randn(2, 3, 8)
    for causal in (False, True):
        expected = attend(query, keys, keys, causal=causal)
        assert torch.equal(attend(query.as_subclass(OnCuda), keys, keys, causal=causal), expected)
        assert allowed == [before, False]
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
        allowed.clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "length"), [(16, 16), (16, 300), (5, 4096)])
def test_the_causal_kernel_equals_the_mask_on_a_gpu(dtype, n, length):
    kv_heads, group, width, device = 2, 4, 128, torch.device("cuda")
    generator = torch.Generator().manual_seed(6)
    query = torch.randn(n, kv_heads * group, width, generator=generator).to(device, dtype)
    keys, values = torch.randn(2, kv_heads, length, width, generator=generator).to(device, dtype)
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    mask = additive_mask(visible, length - n, dtype, device).repeat(group, 1)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    causal = attend(query, keys, values, causal=True)
    torch.testing.assert_close(causal, attend(query, keys, values, mask), atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_new_length_takes_long_on_a_gpu():
    query, keys = (torch.randn(*shape, 128, device="cuda").bfloat16() for shape in ((16, 8), (2, 200)))
    attend(query, keys, keys)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for length in range(100, 150):
        attend(query, keys[:, :length], keys[:, :length])
    torch.cuda.synchronize()
    assert time.perf_counter() - started < 1  # cuDNN's plans would take ten times as long
