"""Loading: what works, and one quick line for every broken checkpoint."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file

import cast
from cast import CastError
from cast.models import DFlashDrafter
from cast.models.loading import checkpoint_folder, load_drafter, resolve_device, resolve_dtype

PAIRS = ("dflash_tiny_qwen3", "dflash_tiny_llama")
KEEP_NOTHING, KEEP_HALF_A_HEADER, KEEP_HALF = 0.0, 0.001, 0.5


def test_a_pair_loads(target, drafter):
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu")
    assert (pair.dtype, pair.device.type, pair.name) == (torch.float32, "cpu", str(target.folder))
    assert pair.drafter.block_size == 8
    assert pair.drafter.target_layer_ids == (1, 3)
    assert pair.target.stop_token_ids == (94,)
    assert not any(parameter.requires_grad for parameter in pair.drafter.parameters())


def test_string_paths_and_a_loaded_head(target, drafter):
    head = load_drafter(str(drafter.folder), device="cpu")
    assert isinstance(head, DFlashDrafter)
    assert cast.load_pair(str(target.folder), head, device="cpu").drafter is head


def test_auto_device_and_dtype(target, drafter):
    pair = cast.load_pair(target.folder, drafter.folder)
    assert pair.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pair.dtype == torch.float32
    target.edit_config(dtype="bfloat16")
    pair = cast.load_pair(target.folder, drafter.folder)
    assert pair.dtype == pair.drafter.fc.weight.dtype == torch.bfloat16
    target.edit_config("dtype", torch_dtype="float16")
    assert cast.load_pair(target.folder).dtype == torch.float16
    target.edit_config("dtype", "torch_dtype")
    assert cast.load_pair(target.folder).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", torch.float16])
def test_an_asked_dtype_holds_for_both(target, drafter, dtype):
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu", dtype=dtype)
    asked = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert pair.target.dtype == pair.target.lm_head.dtype == pair.drafter.fc.weight.dtype == asked


def test_a_drafter_alone_keeps_its_stored_dtype(drafter):
    assert load_drafter(drafter.folder, device="cpu").fc.weight.dtype == torch.float32
    drafter.edit_weights(lambda w: w.update({name: tensor.bfloat16() for name, tensor in w.items()}))
    assert load_drafter(drafter.folder, device="cpu").fc.weight.dtype == torch.bfloat16


def test_rope_theta_and_block_size_at_their_other_places(target, drafter, golden_pair):
    config = drafter.config
    drafter.edit_config(
        *("rope_theta", "block_size", "rope_scaling"),
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        dflash_config=config["dflash_config"] | {"block_size": config["block_size"]},
    )
    target_theta = target.config["rope_theta"]
    target.edit_config(
        "rope_theta", "rope_scaling", rope_parameters={"rope_type": "default", "rope_theta": target_theta}
    )
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu")
    prompt = torch.arange(1, 12)
    expected = cast.generate(golden_pair("dflash_tiny_qwen3"), prompt, max_new_tokens=20, stop_token_ids=[])
    ours = cast.generate(pair, prompt, max_new_tokens=20, stop_token_ids=[])
    assert ours.tokens.tolist() == expected.tokens.tolist()
    assert ours.committed == expected.committed


def test_the_targets_rope_theta_matters(target, golden_pair):
    """Guards the test above: another theta gives other logits."""
    target.edit_config(rope_theta=100.0)
    prompt = torch.arange(1, 40)
    logits = [
        pair.target.forward(prompt, torch.arange(39), pair.target.new_cache(39), causal=True).logits
        for pair in (cast.load_pair(target.folder, device="cpu"), golden_pair("dflash_tiny_qwen3"))
    ]
    assert (logits[0] - logits[1]).abs().max() > 0.1


def test_features_are_concatenated_in_the_order_of_the_layer_ids(target, drafter, golden_pair):
    """Layer ids that do not ascend, with fc to match, are the same head (or refused), never another."""
    hidden = drafter.config["hidden_size"]
    drafter.edit_dflash(target_layer_ids=[3, 1])
    drafter.edit_weights(lambda w: w.update({"fc.weight": w["fc.weight"].roll(hidden, dims=1).contiguous()}))
    prompt = torch.arange(1, 12)
    expected = cast.generate(golden_pair("dflash_tiny_qwen3"), prompt, "dflash", max_new_tokens=40, stop_token_ids=[])
    try:
        pair = cast.load_pair(target.folder, drafter.folder, device="cpu")
    except CastError:
        return
    ours = cast.generate(pair, prompt, "dflash", max_new_tokens=40, stop_token_ids=[])
    assert ours.committed == expected.committed


def test_a_layer_tapped_twice_is_the_same_head_or_refused(target, drafter):
    hidden = drafter.config["hidden_size"]
    drafter.edit_dflash(target_layer_ids=[1, 1])
    assert hidden == 64
    try:
        pair = cast.load_pair(target.folder, drafter.folder, device="cpu")
    except CastError as error:
        assert "\n" not in str(error)
        return
    assert len(cast.generate(pair, torch.arange(5), max_new_tokens=8, stop_token_ids=[]).tokens) == 8


def test_sharded_weights(target, drafter):
    for part in (target, drafter):
        weights = part.weights
        names = sorted(weights)
        shards = {
            "model-00001-of-00002.safetensors": names[::2],
            "model-00002-of-00002.safetensors": names[1::2],
        }
        for file, held in shards.items():
            save_file({name: weights[name] for name in held}, part / file, metadata={"format": "pt"})
        index = {"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}
        (part / "model.safetensors.index.json").write_text(json.dumps(index))
        (part / "model.safetensors").unlink()
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu")
    assert len(cast.generate(pair, torch.arange(5), max_new_tokens=4).tokens) == 4


def test_a_missing_shard(target, refusal):
    weights = target.weights
    names = sorted(weights)
    save_file(
        {n: weights[n] for n in names[::2]},
        target / "model-00001-of-00002.safetensors",
        metadata={"format": "pt"},
    )
    where = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(names)}
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (target / "model.safetensors").unlink()
    refusal(target)


# --- missing and broken files -------------------------------------------------------------------


def test_a_missing_folder_and_a_file(tmp_path, target, refusal):
    assert "neither a folder" in refusal(tmp_path / "absent")
    assert "neither a folder" in refusal("./absent")
    assert "neither a folder" in refusal("absent")
    refusal(target / "config.json")
    refusal(target, tmp_path / "absent")


@pytest.mark.timeout(20)
def test_a_hub_id_without_the_network(target, refusal, monkeypatch):
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert "hub" in refusal("nobody/no-such-model")
    assert "hub" in refusal(target, "nobody/no-such-drafter")
    refusal("nobody/-not a repo id-")


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize(
    "content",
    [None, b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe{}", b"{}"],
    ids=["absent", "empty", "broken", "list", "string", "null", "not-utf8", "no-keys"],
)
def test_a_bad_config(target, drafter, refusal, part, content):
    broken = {"target": target, "drafter": drafter}[part]
    (broken / "config.json").unlink()
    if content is not None:
        (broken / "config.json").write_bytes(content)
    refusal(target, drafter)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
@pytest.mark.parametrize("value", ["many", None, -1])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_a_config_with_nonsense_sizes(target, drafter, refusal, part, key, value):
    {"target": target, "drafter": drafter}[part].edit_config(**{key: value})
    refusal(target, drafter)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": "many"},
        {"block_size": -3},
        {"dflash_config": []},
        {"dflash_config": {"mask_token_id": None, "target_layer_ids": [1, 3]}},
        {"dflash_config": {"mask_token_id": "m", "target_layer_ids": [1, 3]}},
        {"dflash_config": {"mask_token_id": 95, "target_layer_ids": "13"}},
        {"dflash_config": {"mask_token_id": 95, "target_layer_ids": 3}},
        {"rope_theta": "big"},
        {"rms_norm_eps": None},
        {"architectures": 5},
    ],
    ids=lambda changes: json.dumps(changes),
)
def test_a_drafter_config_with_nonsense_values(target, drafter, refusal, changes):
    drafter.edit_config(**changes)
    refusal(target, drafter)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_pickled_weights_are_not_read(target, drafter, refusal, part, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    broken = {"target": target, "drafter": drafter}[part]
    (broken / "model.safetensors").unlink()
    (broken / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    assert "safetensors" in refusal(target, drafter)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_no_weights_at_all(target, drafter, refusal, part):
    ({"target": target, "drafter": drafter}[part] / "model.safetensors").unlink()
    refusal(target, drafter)


@pytest.mark.parametrize("keep", [KEEP_NOTHING, KEEP_HALF_A_HEADER, KEEP_HALF, 0.999])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_truncated_weights(target, drafter, refusal, part, keep):
    {"target": target, "drafter": drafter}[part].truncate(keep=keep)
    refusal(target, drafter)


def test_garbage_weights(target, drafter, refusal):
    (drafter / "model.safetensors").write_bytes(b"\xff" * 4096)
    refusal(target, drafter)
    (target / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refusal(target)


def test_remote_code_is_not_run(target, refusal, tmp_path):
    marker = tmp_path / "executed"
    (target / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Config: pass\n")
    target.edit_config(auto_map={"AutoConfig": "evil.Config"}, model_type="evil")
    refusal(target)
    assert not marker.exists()


# --- tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.self_attn.q_norm.weight", "norm.weight"])
def test_a_missing_drafter_tensor(target, drafter, refusal, name):
    drafter.edit_weights(lambda w: w.pop(name))
    assert name in refusal(target, drafter)


def test_an_unexpected_drafter_tensor(target, drafter, refusal):
    drafter.edit_weights(lambda w: w.update({"layers.2.mlp.up_proj.weight": torch.zeros(2, 2)}))
    assert "layers.2.mlp.up_proj.weight" in refusal(target, drafter)


def test_unexpected_biases_without_attention_bias(target, drafter, refusal):
    drafter.edit_weights(lambda w: w.update({"layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    assert "q_proj.bias" in refusal(target, drafter)
    drafter.edit_config(attention_bias=True)
    assert "bias" in refusal(target, drafter)


def test_a_misshapen_drafter_tensor(target, drafter, refusal):
    drafter.edit_weights(lambda w: w.update({"fc.weight": w["fc.weight"][:, :-1].contiguous()}))
    assert "fc.weight" in refusal(target, drafter)


def test_whole_numbers_for_weights(target, drafter, refusal):
    drafter.edit_weights(lambda w: w.update({name: tensor.to(torch.int8) for name, tensor in w.items()}))
    assert "quantised" in refusal(target, drafter)


def test_layer_ids_that_do_not_fit_fc(target, drafter, refusal):
    drafter.edit_dflash(target_layer_ids=[0, 1, 2])
    assert "fc.weight" in refusal(target, drafter)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.2.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_target_tensor(target, refusal, name):
    target.edit_weights(lambda w: w.pop(name))
    assert name in refusal(target)


def test_a_misshapen_target_tensor(target, refusal):
    name = "model.layers.1.self_attn.k_proj.weight"
    target.edit_weights(lambda w: w.update({name: w[name][:-1].contiguous()}))
    refusal(target)


def test_an_unexpected_target_tensor(target, refusal):
    target.edit_weights(lambda w: w.update({"model.layers.5.mlp.up_proj.weight": torch.zeros(96, 64)}))
    assert "model.layers.5" in refusal(target)


# --- kinds and fit ------------------------------------------------------------------------------


def test_another_architecture_as_drafter(target, refusal):
    assert "DFlash" in refusal(target, target)


def test_a_drafter_as_target(drafter, refusal):
    refusal(drafter)


def test_a_second_generation_drafter(target, drafter, refusal):
    drafter.edit_dflash(conv_kernel_size=4)
    assert "DFlash 2" in refusal(target, drafter)


def test_an_unsupported_target(tmp_path, refusal):
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 1,
        "n_embd": 8,
        "n_head": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "gpt2" in refusal(tmp_path)


def test_an_unknown_model_type(target, refusal):
    target.edit_config(model_type="nonesuch")
    assert "nonesuch" in refusal(target)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "nonesuch"},
    ],
    ids=lambda config: config["quant_method"],
)
def test_a_quantised_target(target, refusal, quantization):
    target.edit_config(quantization_config=quantization)
    refusal(target)


def test_hidden_size(golden, target, refusal):
    assert "hidden size" in refusal(target, golden / "dflash_tiny_llama" / "drafter")


@pytest.mark.parametrize("layers", [[1, 4], [1, 5], [-1, 3]], ids=["last", "beyond", "negative"])
def test_tapped_layers(target, drafter, refusal, layers):
    drafter.edit_dflash(target_layer_ids=layers)
    assert "layer" in refusal(target, drafter)


def test_vocabulary(target, drafter, refusal):
    drafter.edit_config(vocab_size=97)
    assert "vocabulary" in refusal(target, drafter)


@pytest.mark.parametrize("mask", [96, 10**6, -1])
def test_mask_token(target, drafter, refusal, mask):
    drafter.edit_dflash(mask_token_id=mask)
    assert "mask token" in refusal(target, drafter)


def test_misfits_cost_no_target_load(target, drafter, refusal):
    """A head that cannot be read is found before the target's weights are touched."""
    (target / "model.safetensors").unlink()
    drafter.edit_dflash(conv_kernel_size=4)
    assert "DFlash 2" in refusal(target, drafter)


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "fp32", "", "float 32"])
def test_unknown_dtype(target, refusal, dtype):
    assert "dtype" in refusal(target, dtype=dtype)
    with pytest.raises(CastError):
        resolve_dtype(dtype)


@pytest.mark.parametrize("device", ["gpu", "cpu:x", "", "tpu"])
def test_unknown_device(target, refusal, device):
    assert "device" in refusal(target, device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:99"])
def test_an_absent_cuda_device(target, refusal, device):
    if torch.cuda.is_available() and device != "cuda:99":
        pytest.skip("this machine has a CUDA device")
    assert "cuda" in refusal(target, device=device).lower()


def test_resolve():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert resolve_dtype("auto") is None
    assert resolve_dtype("bfloat16") == torch.bfloat16


def test_a_local_folder_wins_over_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert checkpoint_folder("owner/name").resolve() == tmp_path / "owner" / "name"


# --- tokenizer ----------------------------------------------------------------------------------


def write_tokenizer(folder, tokens, cut=None):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(tokens)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text = tokenizer.to_str()
    (folder / "tokenizer.json").write_text(text[:cut])
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.fixture
def bare_target(target):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).unlink(missing_ok=True)
    return target


def test_without_a_tokenizer(bare_target):
    assert cast.load_pair(bare_target.folder, device="cpu").tokenizer is None


@pytest.mark.parametrize("tokens", [40, 96])
def test_a_tokenizer_of_at_most_the_vocabulary(bare_target, tokens):
    write_tokenizer(bare_target.folder, tokens)
    pair = cast.load_pair(bare_target.folder, device="cpu")
    assert pair.tokenizer("t3 t7")["input_ids"] == [3, 7]


def test_a_tokenizer_larger_than_the_vocabulary(bare_target, refusal):
    write_tokenizer(bare_target.folder, 97)
    message = refusal(bare_target)
    assert "97" in message
    assert "96" in message


@pytest.mark.parametrize("cut", [0, 1, 200])
def test_a_broken_tokenizer(bare_target, refusal, cut):
    write_tokenizer(bare_target.folder, 96, cut)
    assert "tokenizer" in refusal(bare_target)


def test_a_tokenizer_config_alone(bare_target, refusal):
    (bare_target / "tokenizer_config.json").write_text("{")
    refusal(bare_target)


# --- pairs --------------------------------------------------------------------------------------


def test_with_drafter(target, drafter, golden, golden_pair):
    bare = cast.load_pair(target.folder, device="cpu")
    assert bare.drafter is None
    paired = bare.with_drafter(drafter.folder)
    assert bare.drafter is None
    assert paired.target is bare.target
    assert paired.with_drafter(paired.drafter).drafter is paired.drafter
    assert bare.with_drafter(str(drafter.folder)).drafter.block_size == 8
    assert paired.with_drafter(None).drafter is None
    with pytest.raises(CastError, match="hidden size"):
        bare.with_drafter(golden / "dflash_tiny_llama" / "drafter")
    with pytest.raises(CastError, match="hidden size"):
        bare.with_drafter(golden_pair("dflash_tiny_llama").drafter)
    with pytest.raises(CastError):
        bare.with_drafter(target.folder / "absent")


def test_with_drafter_takes_the_targets_dtype(target, drafter):
    pair = cast.load_pair(target.folder, device="cpu", dtype="bfloat16").with_drafter(drafter.folder)
    assert pair.drafter.fc.weight.dtype == torch.bfloat16


def test_a_loaded_head_of_another_dtype_serves_or_is_refused(target, drafter):
    """Never a torch error from the middle of a generation."""
    head = load_drafter(drafter.folder, device="cpu", dtype="bfloat16")
    try:
        pair = cast.load_pair(target.folder, head, device="cpu", dtype="float32")
        out = cast.generate(pair, torch.arange(5), max_new_tokens=4, stop_token_ids=[])
    except CastError as error:
        assert "\n" not in str(error)
    else:
        assert len(out.tokens) == 4


@pytest.mark.parametrize("method", ["dflash", "cast"])
def test_a_method_that_drafts_needs_a_drafter(target, method):
    pair = cast.load_pair(target.folder, device="cpu")
    with pytest.raises(CastError, match="drafter"):
        cast.generate(pair, torch.arange(5), method)
    assert len(cast.generate(pair, torch.arange(5), "autoregressive", max_new_tokens=3).tokens) == 3


@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_in_another_dtype(golden_pair, name):
    pair = golden_pair(name)
    exact = pair.to(torch.float64)
    assert (exact.dtype, exact.drafter.fc.weight.dtype) == (torch.float64, torch.float64)
    assert (pair.dtype, pair.drafter.fc.weight.dtype) == (torch.float32, torch.float32)
    assert pair.with_drafter(None).to(torch.float64).drafter is None
    outputs = [cast.generate(p, torch.arange(1, 9), max_new_tokens=24, stop_token_ids=[]) for p in (pair, exact)]
    assert outputs[0].tokens.tolist() == outputs[1].tokens.tolist()


def test_loading_leaves_no_trace_in_the_folder(target, drafter):
    before = {part: sorted(os.listdir(part.folder)) for part in (target, drafter)}
    cast.load_pair(target.folder, drafter.folder, device="cpu")
    assert before == {part: sorted(os.listdir(part.folder)) for part in (target, drafter)}


def test_a_read_only_folder(target, drafter, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(target.folder, copy)
    copy.chmod(0o555)
    try:
        cast.load_pair(copy, drafter.folder, device="cpu")
    finally:
        copy.chmod(0o755)
