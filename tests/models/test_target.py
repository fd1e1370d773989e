"""Our decoder forward against stock transformers, on random tiny models of every supported variation."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen3_5Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from cast.errors import CastError
from cast.models import Target, load_pair
from cast.models.experts import Experts
from cast.models.target import check_family
from cast.models.target_weights import tensor_shapes

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 77.0}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
MOE = {
    "head_dim": 12,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
VARIATIONS = {
    "llama": (LlamaConfig, {}),
    "llama-tied": (LlamaConfig, {"tie_word_embeddings": True}),
    "llama-bias": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": (LlamaConfig, {"head_dim": 20}),
    "llama-one-kv-head": (LlamaConfig, {"num_key_value_heads": 1}),
    "llama-no-grouping": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama3-rope": (LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (LlamaConfig, {"rope_parameters": LINEAR}),
    "llama-theta-eps": (LlamaConfig, {"rope_parameters": PLAIN, "rms_norm_eps": 0.1}),
    "qwen3": (Qwen3Config, {"head_dim": 12}),
    "qwen3-tied": (Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3-bias": (Qwen3Config, {"head_dim": 12, "attention_bias": True}),
    "qwen3-head-dim": (Qwen3Config, {"head_dim": 32}),
    "qwen3-yarn": (Qwen3Config, {"head_dim": 16, "rope_parameters": YARN}),
    "moe": (Qwen3MoeConfig, MOE),
    "moe-normalised": (Qwen3MoeConfig, MOE | {"norm_topk_prob": True}),
    "moe-one-expert": (Qwen3MoeConfig, MOE | {"num_experts_per_tok": 1}),
    "moe-all-experts": (Qwen3MoeConfig, MOE | {"num_experts_per_tok": 7}),
    "moe-every-second-layer": (Qwen3MoeConfig, MOE | {"decoder_sparse_step": 2}),
    "moe-dense-layers": (Qwen3MoeConfig, MOE | {"mlp_only_layers": [0, 2]}),
    "moe-tied-bias": (Qwen3MoeConfig, MOE | {"tie_word_embeddings": True, "attention_bias": True}),
}


def random_model(family, changes):
    torch.manual_seed(0)
    config = family(**{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases start at 1 and 0, which would hide them
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", VARIATIONS)
@torch.no_grad()
def test_logits_and_hidden_states_equal_transformers(name):
    model = random_model(*VARIATIONS[name])
    target = Target.of(model)
    tokens = torch.randint(SIZES["vocab_size"], (90,), generator=torch.Generator().manual_seed(1))
    stock = model(tokens[None], output_hidden_states=True, use_cache=False)

    whole = target.forward(tokens, torch.arange(90), target.new_cache(90), causal=True, taps=(0, 1))
    torch.testing.assert_close(whole.logits, stock.logits[0], **CLOSE)
    for layer, hidden in enumerate(whole.taps):
        torch.testing.assert_close(hidden, stock.hidden_states[layer + 1][0], **CLOSE)

    # The same through the cache: a prefill, then one token at a time.
    cache = target.new_cache(90)
    last = target.forward(tokens[:80], torch.arange(80), cache, causal=True, last_logits_only=True)
    assert last.logits.shape == (1, SIZES["vocab_size"])
    torch.testing.assert_close(last.logits[0], stock.logits[0, 79], **CLOSE)
    cache.commit(80)
    for position in range(80, 90):
        out = target.forward(tokens[position : position + 1], torch.tensor([position]), cache)
        cache.commit(1)
        torch.testing.assert_close(out.logits[0], stock.logits[0, position], **CLOSE)


def test_sizes_are_read_from_the_model():
    target = Target.of(random_model(*VARIATIONS["qwen3-head-dim"]))
    assert (target.layers, target.heads, target.kv_heads, target.head_dim) == (3, 4, 2, 32)
    assert (target.hidden_size, target.vocab_size, target.max_positions) == (48, 61, 256)
    assert (target.dtype, target.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([5, 7], 9, (5, 7)), (4, 9, (4,)), (None, 9, (9,)), (None, [1, 2], (1, 2)), (None, None, ())],
)
def test_stop_tokens_come_from_the_generation_config_first(generation, config, expected):
    model = random_model(LlamaConfig, {})
    model.config.eos_token_id, model.generation_config.eos_token_id = config, generation
    assert Target.of(model).stop_token_ids == expected


def test_a_copy_in_another_dtype_leaves_the_original_alone():
    target = Target.of(random_model(LlamaConfig, {}))
    double = target.to(torch.float64)
    assert (target.dtype, double.dtype) == (torch.float32, torch.float64)
    assert target.embedding.dtype == torch.float32
    assert double.new_cache(4).keys.dtype == torch.float64
    tokens = torch.arange(5)
    outputs = [t.forward(tokens, tokens, t.new_cache(5), causal=True).logits for t in (target, double)]
    torch.testing.assert_close(outputs[0].double(), outputs[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(),
        LlamaConfig(**SIZES, hidden_act="gelu"),
        Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1),
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "proportional", "rope_theta": 1e4}),
        Qwen3MoeConfig(**SIZES, use_sliding_window=True, sliding_window=16),
        LlamaConfig(**SIZES | {"num_key_value_heads": 3}),
        Qwen3Config(**SIZES, layer_types=["full_attention", "sliding_attention", "full_attention"]),
        Qwen3Config(**SIZES, layer_types=["full_attention"] * 3, rope_parameters={"full_attention": PLAIN}),
        LlamaConfig(**SIZES, rope_parameters=LINEAR | {"partial_rotary_factor": 0.5}),
        LlamaConfig(**SIZES, rope_parameters=LINEAR | {"factor": "2"}),
        LlamaConfig(**SIZES, rope_parameters=LINEAR | {"factor": 0}),
        LlamaConfig(**SIZES, rope_parameters=PLAIN | {"rope_theta": "big"}),
        LlamaConfig(**SIZES, rope_parameters=PLAIN | {"rope_theta": -1.0}),
        LlamaConfig(**SIZES, head_dim=3),
        LlamaConfig(**SIZES, head_dim=0),
        LlamaConfig(**SIZES, head_dim=-4),
    ],
    ids=[
        *("gpt2", "gelu", "sliding-window", "dynamic-rope", "proportional-rope", "moe-sliding-window", "uneven-heads"),
        *("sliding-layer", "rope-per-layer", "partial-rope", "factor-text", "factor-zero", "theta-text"),
        *("theta-negative", "odd-heads", "empty-heads", "negative-heads"),
    ],
)
def test_unsupported_families_are_one_line(config):
    with pytest.raises(CastError, match="not supported") as error:
        check_family(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_sparse_step": 0},
        {"num_experts_per_tok": 0},
        {"num_experts_per_tok": 8},
        {"moe_intermediate_size": -1},
        {"max_position_embeddings": 0},
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_one_line(changes):
    with pytest.raises(CastError, match="cannot be") as error:
        check_family(Qwen3MoeConfig(**SIZES | MOE | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("qwen3", {"mlp_bias": True}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}),
        ("llama", {"num_experts": 4}),
        ("moe-dense-layers", {"mlp_bias": True}),
        ("llama", {"partial_rotary_factor": 0.5}),
    ],
    ids=str,
)
def test_keys_that_a_family_does_not_read_change_nothing(name, keys):
    model = random_model(*VARIATIONS[name])
    family, changes = VARIATIONS[name]
    held = model.state_dict()
    assert tensor_shapes(family(**SIZES | changes | keys), held) == {name: held[name].shape for name in held}
    target = Target(family(**SIZES | changes | keys), held)
    tokens = torch.arange(30)
    with torch.no_grad():
        stock = model(tokens[None], use_cache=False).logits[0]
    ours = target.forward(tokens, tokens, target.new_cache(30), causal=True).logits
    torch.testing.assert_close(ours, stock, **CLOSE)


def test_no_experts_at_all_are_dense_layers():
    config = Qwen3MoeConfig(**SIZES | MOE | {"num_experts": -1})
    held = random_model(Qwen3MoeConfig, MOE | {"num_experts": 0}).state_dict()
    assert tensor_shapes(config, held) == {name: held[name].shape for name in held}


@pytest.mark.parametrize("config", [Qwen3_5Config(), Qwen3_5TextConfig(), Qwen3_5MoeTextConfig()])
def test_hybrids_are_sent_to_the_probe(config):
    with pytest.raises(CastError, match="hybrid_probe") as error:
        check_family(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_checkpoint_is_the_same_target_as_the_model_it_was_saved_from(name, tmp_path):
    model = random_model(*VARIATIONS[name])
    model.config.eos_token_id, model.generation_config.eos_token_id = 3, [5, 7]
    model.save_pretrained(tmp_path)
    saved, held = load_pair(tmp_path, device="cpu", dtype="float32").target, Target.of(model)
    assert saved.stop_token_ids == held.stop_token_ids == (5, 7)
    tokens = torch.arange(30)
    logits = [each.forward(tokens, tokens, each.new_cache(30), causal=True).logits for each in (saved, held)]
    assert torch.equal(*logits)


def test_experts_stacked_in_a_checkpoint_are_those_published_one_by_one(tmp_path):
    model = random_model(*VARIATIONS["moe-normalised"])
    one_by_one, stacked = tmp_path / "one_by_one", tmp_path / "stacked"
    for folder in (one_by_one, stacked):
        model.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, stacked / "model.safetensors")
    names = [set(load_file(folder / "model.safetensors")) for folder in (one_by_one, stacked)]
    assert [any(".experts.0." in name for name in held) for held in names] == [True, False]
    tokens = torch.arange(30)
    targets = [load_pair(folder, device="cpu").target for folder in (one_by_one, stacked)]
    logits = [each.forward(tokens, tokens, each.new_cache(30), causal=True).logits for each in targets]
    assert torch.equal(*logits)


def test_only_experts_that_received_tokens_are_run(monkeypatch):
    experts = Target.of(random_model(*VARIATIONS["moe"])).decoder_layers[0].experts
    run, one = [], Experts._one
    monkeypatch.setattr(Experts, "_one", lambda self, index, x: run.append((index, len(x))) or one(self, index, x))
    x = torch.randn(1, 48, generator=torch.Generator().manual_seed(0))
    chosen = (x @ experts.router.T)[0].topk(3).indices.sort().values
    experts(x)
    assert run == [(int(index), 1) for index in chosen]


def test_a_tokens_experts_do_not_depend_on_its_pack():
    experts = Target.of(random_model(*VARIATIONS["moe"])).decoder_layers[0].experts
    experts = experts.to(torch.float64)
    x = torch.randn(40, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([experts(row[None]) for row in x])
    torch.testing.assert_close(experts(x), alone, atol=1e-12, rtol=1e-12)


def test_rotary_positions_grow_with_the_longest_cache():
    model = random_model(LlamaConfig, {})
    target = Target.of(model)
    target.new_cache(4)
    tokens = torch.arange(30)
    cache = target.new_cache(30)
    target.new_cache(2)  # a shorter generation must not take positions away from a longer one
    out = target.forward(tokens, tokens, cache, causal=True)
    with torch.no_grad():
        torch.testing.assert_close(out.logits, model(tokens[None]).logits[0], **CLOSE)
