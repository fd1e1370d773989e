"""One line for a whole checkpoint of another kind, or one that does not fit its target."""

import json

import pytest


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
