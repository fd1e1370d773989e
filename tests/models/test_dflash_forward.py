"""The draft pass of random heads against the published steps written out plainly, without a cache."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cast.models import DFlashConfig, DFlashDrafter, Target

HIDDEN, VOCABULARY = 24, 40
VARIATIONS = {
    "plain": {},
    "bias": {"attention_bias": True},
    "wide-heads": {"head_dim": 10},
    "one-kv-head": {"kv_heads": 1},
    "no-grouping": {"kv_heads": 4},
    "theta-eps": {"rope_theta": 50.0, "rms_norm_eps": 0.05},
    "one-layer-three-taps": {"layers": 1, "target_layer_ids": (0, 1, 2)},
    "block-of-two": {"block_size": 2},
}


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return Target.of(LlamaForCausalLM(config).double().eval())


def random_head(changes):
    sizes = {
        "hidden_size": HIDDEN,
        "intermediate_size": 36,
        "layers": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "block_size": 6,
        "mask_token_id": 39,
        "target_layer_ids": (0, 2),
    }
    torch.manual_seed(1)
    head = DFlashDrafter(DFlashConfig(**{**sizes, **changes})).double().eval().requires_grad_(False)
    for parameter in head.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    return head


def norm(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x, positions, theta):
    """x [n, heads, D]: rotate pairs (i, i + D/2) by position * theta^(-2i/D)."""
    half = x.shape[-1] // 2
    frequency = theta ** -(torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1])
    angle = (positions[:, None].float() * frequency)[:, None]  # in fp32, as the models do
    cos, sin = angle.cos().double(), angle.sin().double()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def draft_by_hand(head, target, features, root, block_size):
    """FORMATS of the public checkpoints, steps 1 to 7, all features at once."""
    c, weights, known = head.config, head.state_dict(), len(features)
    block = torch.full((block_size,), c.mask_token_id)
    block[0] = root
    context = norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], c.rms_norm_eps)
    x, positions = target.embedding[block], torch.arange(known + block_size)
    for index in range(c.layers):

        def w(name, index=index):
            return weights[f"layers.{index}.{name}"]

        def project(name, rows, w=w):
            out = rows @ w(f"self_attn.{name}.weight").T
            return (out + w(f"self_attn.{name}.bias") if c.attention_bias else out).unflatten(-1, (-1, c.head_dim))

        normed = norm(x, w("input_layernorm.weight"), c.rms_norm_eps)
        rows = torch.cat((context, normed))
        query = norm(project("q_proj", normed), w("self_attn.q_norm.weight"), c.rms_norm_eps)
        key = norm(project("k_proj", rows), w("self_attn.k_norm.weight"), c.rms_norm_eps)
        query, key = rotated(query, positions[known:], c.rope_theta), rotated(key, positions, c.rope_theta)
        value, heads = project("v_proj", rows), []
        for q in range(c.heads):
            kv = q * c.kv_heads // c.heads
            scores = query[:, q] @ key[:, kv].T / c.head_dim**0.5
            heads.append(scores.softmax(-1) @ value[:, kv])
        out = torch.cat(heads, -1) @ w("self_attn.o_proj.weight").T
        x = x + (out + w("self_attn.o_proj.bias") if c.attention_bias else out)
        normed = norm(x, w("post_attention_layernorm.weight"), c.rms_norm_eps)
        gate, up = normed @ w("mlp.gate_proj.weight").T, normed @ w("mlp.up_proj.weight").T
        x = x + (torch.nn.functional.silu(gate) * up) @ w("mlp.down_proj.weight").T
    return norm(x, weights["norm.weight"], c.rms_norm_eps)[1:] @ target.lm_head.T


@pytest.mark.parametrize("name", VARIATIONS)
def test_draft_logits(target, name):
    head = random_head(VARIATIONS[name])
    generator = torch.Generator().manual_seed(2)
    width = HIDDEN * len(head.target_layer_ids)
    features = torch.randn(20, width, dtype=torch.float64, generator=generator)
    cache, taken = head.new_cache(40), 0
    for fresh, root in ((11, 3), (1, 38), (5, 0), (3, 39)):  # four rounds, each bringing a few positions
        logits = head.draft(target, features[taken : taken + fresh], torch.tensor([root]), cache)
        taken += fresh
        expected = draft_by_hand(head, target, features[:taken], root, head.block_size)
        assert logits.shape == (head.block_size - 1, VOCABULARY)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=1e-9)
        assert cache.length == taken


def test_a_shorter_block_is_the_block_of_that_size(target):
    head = random_head({})
    features = torch.randn(7, 2 * HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for block_size in (2, 3, 6):
        logits = head.draft(target, features, torch.tensor([5]), head.new_cache(20), block_size)
        expected = draft_by_hand(head, target, features, 5, block_size)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=1e-9)
