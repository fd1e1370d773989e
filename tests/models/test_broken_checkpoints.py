"""One quick line for every checkpoint whose files or tensors are missing or broken, and no code of theirs is run."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

KEEP_NOTHING, KEEP_HALF_A_HEADER, KEEP_HALF = 0.0, 0.001, 0.5


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
    [None, b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe{}", b"{}", b"[" * 100000, b"[" + b"9" * 5000 + b"]"],
    ids=["absent", "empty", "broken", "list", "string", "null", "not-utf8", "no-keys", "deep", "huge-number"],
)
def test_a_bad_config(target, drafter, refusal, part, content):
    broken = {"target": target, "drafter": drafter}[part]
    (broken / "config.json").unlink()
    if content is not None:
        (broken / "config.json").write_bytes(content)
    refusal(target, drafter)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
@pytest.mark.parametrize("value", ["many", None, 0, -1])
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
    assert "lacks model-00002-of-00002.safetensors" in refusal(target)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_folder_in_the_place_of_a_file(target, refusal, name):
    (target / name).unlink(missing_ok=True)
    (target / name).mkdir()
    assert name in refusal(target)


@pytest.mark.parametrize("names", [("a", "b"), ("model-00001-of-00002", "model-00002-of-00002")])
def test_a_tensor_in_two_files(target, refusal, names):
    """transformers takes the last one."""
    for name in names:
        shutil.copy(target / "model.safetensors", target / f"{name}.safetensors")
    (target / "model.safetensors").unlink()
    assert "'lm_head.weight' twice" in refusal(target)


@pytest.mark.parametrize(
    "name", ["{parent}/out.safetensors", "../out.safetensors", "a\nb.safetensors", "\ud800.safetensors"]
)
def test_an_index_that_leaves_its_folder(target, refusal, name):
    (target / "model.safetensors").rename(target.folder.parent / "out.safetensors")
    where = dict.fromkeys(load_file(target.folder.parent / "out.safetensors"), name.format(parent=target.folder.parent))
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert "model.safetensors.index.json" in refusal(target)


@pytest.mark.parametrize("index", [b"{", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}'])
def test_a_broken_index(target, refusal, index):
    (target / "model.safetensors").rename(target / "model-00001-of-00001.safetensors")
    (target / "model.safetensors.index.json").write_bytes(index)
    assert "model.safetensors.index.json" in refusal(target)


@pytest.mark.parametrize("generation", [b"{", b"[]", b'{"eos_token_id": "</s>"}', b'{"eos_token_id": [1, null]}'])
def test_a_broken_generation_config(target, refusal, generation):
    (target / "generation_config.json").write_bytes(generation)
    refusal(target)


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


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_quantised_weights(target, drafter, refusal, part, dtype):
    quantised = {"target": target, "drafter": drafter}[part]
    quantised.edit_weights(lambda w: w.update({name: tensor.to(dtype) for name, tensor in w.items()}))
    assert "quantised" in refusal(target, drafter)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "auto", 5])
def test_a_dtype_that_no_model_runs_in(target, refusal, dtype):
    target.edit_config(dtype=dtype)
    refusal(target)


def test_a_size_beyond_every_tensor(target, refusal):
    target.edit_config(vocab_size=10**30)
    assert str(10**30) in refusal(target)


def test_a_vocabulary_padded_in_the_config_alone(target, refusal):
    rows = target.config["vocab_size"]
    target.edit_config(vocab_size=rows + 32)
    message = refusal(target)
    assert f"({rows}, " in message
    assert f"({rows + 32}, " in message


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
    assert name in refusal(target)


def test_an_unexpected_target_tensor(target, refusal):
    target.edit_weights(lambda w: w.update({"model.layers.5.mlp.up_proj.weight": torch.zeros(96, 64)}))
    assert "model.layers.5" in refusal(target)
