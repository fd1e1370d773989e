"""A target's tokenizer: absent, fitting, too large or broken."""

import json

import pytest

import cast


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
