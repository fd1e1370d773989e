"""Loading: what works, in which dtype and on which device."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import cast
from cast import CastError
from cast.models import DFlashDrafter
from cast.models.checkpoint import checkpoint_folder
from cast.models.layers import dense
from cast.models.loading import load_drafter, resolve_device, resolve_dtype


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
    target.edit_weights(lambda w: w.update({name: tensor.bfloat16() for name, tensor in w.items()}))
    pair = cast.load_pair(target.folder, drafter.folder)
    assert pair.dtype == pair.drafter.fc.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", torch.float16])
def test_an_asked_dtype_holds_for_both(target, drafter, dtype):
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu", dtype=dtype)
    asked = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert pair.target.dtype == dense(pair.target.lm_head).dtype == pair.drafter.fc.weight.dtype == asked


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


@pytest.mark.parametrize("dtype", ["int8", "fp32", "", "float 32", None, 32, torch.int8, torch.float8_e4m3fn])
def test_unknown_dtype(target, refusal, dtype):
    assert "dtype" in refusal(target, dtype=dtype)
    with pytest.raises(CastError):
        resolve_dtype(dtype)


def test_a_device_that_tensors_name_otherwise(target, drafter):
    """As "cuda" and cuda:0, which are not equal: a drafter's is compared with the target's."""
    pair = cast.load_pair(target.folder, drafter.folder, device="cpu:0")
    assert pair.device == pair.drafter.fc.weight.device


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


def greedy(target) -> list[int]:
    pair = cast.load_pair(target.folder, device="cpu")
    return cast.generate(pair, torch.arange(5), "autoregressive", max_new_tokens=8).tokens.tolist()


def test_files_and_tensors_beside_those_of_the_model(target):
    """What other tools leave in a folder: the model in another format, phases that follow from the configuration."""
    expected = greedy(target)
    target.edit_weights(lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    save_file({"tok_embeddings.weight": torch.zeros(2, 2)}, target / "consolidated.safetensors")
    assert greedy(target) == expected


def test_a_language_model_head_beside_tied_embeddings(target):
    """As transformers reads it: the tensors win over the configuration."""
    expected = greedy(target)
    assert not torch.equal(target.weights["lm_head.weight"], target.weights["model.embed_tokens.weight"])
    target.edit_config(tie_word_embeddings=True)
    assert greedy(target) == expected
    target.edit_weights(lambda w: w.pop("lm_head.weight"))
    tied = cast.load_pair(target.folder, device="cpu").target
    assert torch.equal(dense(tied.lm_head), tied.embedding)


def test_a_head_that_repeats_its_tied_embeddings_takes_no_memory_of_its_own(target):
    target.edit_config(tie_word_embeddings=True)
    target.edit_weights(lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    tied = cast.load_pair(target.folder, device="cpu", dtype="float64").target
    assert tied.lm_head.data_ptr() == tied.embedding.data_ptr()


def test_loading_imports_no_model_class_and_no_compiler(target, drafter):
    """Each costs a job of the pipeline seconds before it begins."""
    program = (
        "import sys, cast\n"
        f"cast.load_pair({str(target.folder)!r}, {str(drafter.folder)!r}, device='cpu')\n"
        "print([name for name in sys.modules if '.modeling_qwen' in name or name == 'torch._dynamo'])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_loading_shows_how_far_it_is_on_a_terminal_alone(target, monkeypatch, capsys):
    cast.load_pair(target.folder, device="cpu")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cast.load_pair(target.folder, device="cpu")
    assert f"Loading {target.folder.name}" in capsys.readouterr().err
