"""Random miniatures: from a seed, of every family, and decodable where the family is."""

import time

import pytest
import torch
from safetensors.torch import load_file

import cast
from cast import CastError
from cast.models.loading import load_drafter
from cast.models.random_models import FAMILIES, HEADS, ByteTokenizer, random_config, random_model, random_pair

DECODABLE = ("qwen3", "llama", "qwen3_moe")


@pytest.mark.parametrize("family", DECODABLE)
@pytest.mark.parametrize("head", ["dflash_b16", "dflash_b10"])
def test_all_methods_emit_the_same_tokens(family, head):
    pair = cast.load_pair(f"random:{family}", f"random:{head}", device="cpu")
    assert pair.name == f"random:{family}"
    assert pair.target.config.model_type == family
    assert pair.drafter.block_size == int(head.removeprefix("dflash_b"))
    prompt = torch.tensor(pair.tokenizer("Once upon a time")["input_ids"])
    plain, chain, tree = (
        cast.generate(pair, prompt, method, max_new_tokens=40) for method in ("autoregressive", "dflash", "cast")
    )
    assert plain.tokens.tolist() == chain.tokens.tolist() == tree.tokens.tolist()
    assert len(plain.tokens) == 40  # nothing ends it


@pytest.mark.parametrize("head", HEADS)
def test_a_head_for_a_target_whose_config_leaves_its_head_size_open(head):
    config = random_config("qwen3_moe")
    del config.head_dim
    assert load_drafter(f"random:{head}", device="cpu", target=config).config.head_dim == 64 // 4


def test_a_random_head_is_right_now_and_then():
    """So that accepted paths, gathers and means of R are exercised."""
    pair = random_pair("llama", "dflash_b10")
    prompt = torch.tensor(pair.tokenizer("Once upon a time")["input_ids"])
    out = cast.generate(pair, prompt, "cast", max_new_tokens=100)
    assert 1 < sum(out.committed) / len(out.committed) < 4


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_follow_the_seed_and_leave_the_generator_alone(family):
    config = random_config(family)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (random_model(config, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert sum(weight.numel() for weight in first.values()) < 1e6


def test_a_pair_takes_milliseconds():
    random_pair()
    started = time.process_time()
    random_pair()
    assert time.process_time() - started < 1.0


def test_dtype_and_other_heads():
    pair = cast.load_pair("random:qwen3", device="cpu", dtype="bfloat16")
    assert pair.dtype == torch.bfloat16
    assert pair.drafter is None
    assert pair.with_drafter("random:dflash_b10").drafter.fc.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("target", "drafter", "named"),
    [
        ("random:gpt2", None, "qwen3_moe"),
        ("random:qwen3", "random:medusa", "dflash_b16"),
        ("random:", None, "families"),
    ],
)
def test_unknown_names_are_told_with_the_known_ones(target, drafter, named):
    with pytest.raises(CastError, match=named) as error:
        cast.load_pair(target, drafter, device="cpu")
    assert "\n" not in str(error.value)


def test_a_random_head_alone_has_no_sizes():
    with pytest.raises(CastError, match="load_pair"):
        load_drafter("random:dflash_b16", device="cpu")


def test_every_head_fits_every_decodable_family():
    for family in DECODABLE:
        pair = random_pair(family, None)
        for head in HEADS:
            assert pair.with_drafter(f"random:{head}").drafter is not None


def test_text_is_bytes():
    tokenizer = ByteTokenizer()
    assert tokenizer("aé")["input_ids"] == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 0xC3, 0xA9, 287]) == "aé"
    assert len(tokenizer) <= random_config("qwen3").vocab_size


def test_a_checkpoint_with_one_tensor_for_each_expert_loads(tmp_path):
    """The layout of the public Qwen3-MoE checkpoints."""
    model = random_model(random_config("qwen3_moe"))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.mlp.experts.7.gate_proj.weight" in stored
    loaded, tokens = cast.load_pair(tmp_path, device="cpu").target, torch.arange(30)
    ours = loaded.forward(tokens, tokens, loaded.new_cache(30), causal=True).logits
    torch.testing.assert_close(ours, model(tokens[None]).logits[0], atol=1e-4, rtol=1e-4)
