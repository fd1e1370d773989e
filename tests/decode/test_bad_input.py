"""Every mistake is one line, before anything is lost, and leaves the pair as it was."""

import copy
import dataclasses
import gc

import numpy as np
import pytest
import torch

import cast
from cast import CastError
from cast.models.layers import dense, pack

NAN = float("nan")
METHODS = ("autoregressive", "dflash", "cast")


def refusal(pair, *arguments, **options):
    """The line; fails if a token was emitted before it or collection stayed off."""
    emitted = []
    with pytest.raises(CastError) as error:
        cast.generate(pair, *arguments, on_tokens=emitted.append, **options)
    assert str(error.value)
    assert "\n" not in str(error.value)
    assert gc.isenabled()
    return str(error.value), emitted


@pytest.mark.parametrize(
    ("input_ids", "word"),
    [
        (torch.tensor([], dtype=torch.int64), "empty"),
        ([], "empty"),
        (torch.zeros(1, 0, dtype=torch.int64), "empty"),
        (torch.tensor([1.0, 2.0]), "integers"),
        (torch.tensor([True, False]), "integers"),
        (torch.tensor([1j, 2]), "integers"),
        (torch.zeros(2, 3, dtype=torch.int64), "shape"),
        (torch.zeros(1, 1, 3, dtype=torch.int64), "shape"),
        (torch.tensor(3), "shape"),
        (torch.tensor([1, 96]), "vocabulary"),
        (torch.tensor([-1, 2]), "vocabulary"),
        (torch.tensor([2**40]), "vocabulary"),
        (np.array([2**64 - 1], np.uint64), "vocabulary"),
        ([2**70], "token ids"),
        ("text", "token ids"),
        (None, "token ids"),
        ([[1], [2, 3]], "token ids"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_prompts(golden_pair, input_ids, word, method):
    message, emitted = refusal(golden_pair("dflash_tiny_qwen3"), input_ids, method)
    assert emitted == []
    assert word in message


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "eagle3"}, "method"),
        ({"method": ""}, "method"),
        ({"method": None}, "method"),
        ({"method": ["cast"]}, "method"),
        ({"budget": -1}, "budget"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -3}, "top_k"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 9}, "block_size"),
        ({"block_size": -2}, "block_size"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": -5}, "max_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": NAN}, "temperature"),
        ({"temperature": 1e-300}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"sampler": "urn"}, "sampler"),
        ({"sampler": ["walk"]}, "sampler"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "x", "temperature": 1.0}, "seed"),
        ({"max_new_tokens": None}, "max_new_tokens"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": "x"}, "stop_token_ids"),
        ({"logits_processor": 5}, "logits_processor"),
        ({"method": "ngram", "max_ngram": 1.5}, "max_ngram"),
        ({"method": "ngram", "budget": -1}, "budget"),
        ({"engine": "warp"}, "engine"),
    ],
    ids=str,
)
def test_bad_arguments(golden_pair, options, word):
    message, emitted = refusal(golden_pair("dflash_tiny_qwen3"), torch.arange(5), **options)
    assert word in message
    assert emitted == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("prompt_tokens", "new_tokens"), [(512, 1), (500, 13), (600, 1), (3, 510)])
def test_past_the_models_maximum(pair, method, prompt_tokens, new_tokens):
    ids = torch.arange(prompt_tokens).remainder(90)
    message, emitted = refusal(pair, ids, method, max_new_tokens=new_tokens)
    assert "maximum" in message
    assert "512" in message
    assert emitted == []


def poisoned_target(pair, value=NAN):
    """A copy whose language-model head has one bad row."""
    target = copy.copy(pair.target)
    head = dense(target.lm_head).clone()
    head[7] = value
    target.lm_head = pack(head)
    return dataclasses.replace(pair, target=target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_nan_logits_of_the_target(pair, prompt, plain, method, temperature):
    message, emitted = refusal(poisoned_target(pair), prompt, method, temperature=temperature)
    assert "NaN" in message
    assert emitted == []
    assert cast.generate(pair, prompt, method, max_new_tokens=8, stop_token_ids=[]).tokens.tolist() == plain[:8]


@pytest.mark.parametrize("method", METHODS)
def test_nan_that_appears_in_a_later_round(pair, prompt, plain, method):
    """NaN through one token's embedding: what was emitted before stays, and the loop ends in one line."""
    late = next(t for i, t in enumerate(plain) if i > 6 and t not in plain[:i] and t not in prompt.tolist())
    target = copy.copy(pair.target)
    target.embedding = target.embedding.clone()
    target.embedding[late] = NAN
    message, emitted = refusal(
        dataclasses.replace(pair, target=target),
        prompt,
        method,
        max_new_tokens=64,
        stop_token_ids=[],
        budget=5,
    )
    assert "NaN" in message
    flat = [token for piece in emitted for token in piece]
    assert flat == plain[: len(flat)]
    assert len(flat) <= plain.index(late) + 1


def poisoned_drafter(pair):
    drafter = copy.deepcopy(pair.drafter)
    with torch.no_grad():
        drafter.norm.weight[3] = NAN
    return dataclasses.replace(pair, drafter=drafter)


@pytest.mark.parametrize("shape", [{"budget": 0}, {"budget": 1}, {"budget": 63}], ids=str)
@pytest.mark.parametrize("method", ["dflash", "cast"])
def test_nan_logits_of_the_drafter(pair, prompt, method, shape):
    message, emitted = refusal(poisoned_drafter(pair), prompt, method, **shape)
    assert "NaN" in message
    assert "drafter" in message
    assert len(emitted) == 1  # the prefill's token, before the first draft


def test_an_exception_in_on_tokens_leaves_the_pair_usable(pair, prompt, plain):
    for method in METHODS:
        for at in (0, 1, 3):
            calls = []

            def fail(piece, at=at, calls=calls):
                calls.append(piece)
                if len(calls) > at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                cast.generate(pair, prompt, method, max_new_tokens=40, stop_token_ids=[], on_tokens=fail)
            assert len(calls) == at + 1
            assert gc.isenabled()
        out = cast.generate(pair, prompt, method, max_new_tokens=40, stop_token_ids=[])
        assert out.tokens.tolist() == plain[:40]


def test_a_processor_that_fails_leaves_the_pair_usable(pair, prompt, plain):
    def fail(input_ids, scores):
        if input_ids.shape[1] > len(prompt) + 5:
            raise ZeroDivisionError
        return scores

    with pytest.raises(ZeroDivisionError):
        cast.generate(pair, prompt, max_new_tokens=40, stop_token_ids=[], logits_processor=fail)
    assert gc.isenabled()
    assert torch.is_inference_mode_enabled() is False
    assert cast.generate(pair, prompt, max_new_tokens=40, stop_token_ids=[]).tokens.tolist() == plain[:40]


def test_a_method_that_drafts_without_a_drafter(pair):
    for method in ("dflash", "cast"):
        message, _ = refusal(pair.with_drafter(None), torch.arange(4), method)
        assert "drafter" in message


@pytest.mark.parametrize(
    "wrong",
    [{"budget": 1.5}, {"budget": "7"}, {"top_k": 2.5}, {"max_new_tokens": 1.5}, {"temperature": float("inf")}],
)
def test_wrong_kinds_of_number_are_refused(golden_pair, wrong):
    (name,) = wrong
    with pytest.raises(cast.CastError, match=name):
        cast.generate(golden_pair("dflash_tiny_qwen3"), torch.tensor([1, 2]), **{"max_new_tokens": 4, **wrong})


@pytest.mark.parametrize("method", ["cast", "ngram"])
def test_a_budget_beyond_any_mask_is_refused(golden_pair, method):
    with pytest.raises(cast.CastError, match="budget must be at most 16384, not 100000"):
        cast.generate(golden_pair("dflash_tiny_qwen3"), torch.tensor([1, 2]), method, 100_000, 4)


@pytest.mark.parametrize("source", [5, None, ["a"]])
def test_a_target_is_named_by_a_string_or_path(source):
    with pytest.raises(cast.CastError, match="named by a folder or a hub id"):
        cast.load_pair(source)


def test_a_pair_and_a_callable_are_asked_for(golden_pair):
    with pytest.raises(cast.CastError, match="on_tokens must be callable, not 5"):
        cast.generate(golden_pair("dflash_tiny_qwen3"), torch.tensor([1, 2]), on_tokens=5)
    for other in (golden_pair("dflash_tiny_qwen3").target, "Qwen/Qwen3-8B"):
        with pytest.raises(cast.CastError, match="a pair is needed, as load_pair and load_embedded_pair give"):
            cast.generate(other, torch.tensor([1, 2]))
