"""Loops, departures and the rule for fp32 near-ties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cast
from cast import CastError
from cast.experiments.exactness import (
    FP32_NEAR_TIE,
    NO_DEPARTURE,
    check_fp32_departure,
    departure,
    repeat_share,
    top_two_gap,
)


@pytest.mark.parametrize(
    ("tokens", "gram", "share"),
    [
        ([], 8, 0.0),
        (range(7), 8, 0.0),  # shorter than one n-gram
        (range(8), 8, 0.0),
        (range(100), 8, 0.0),
        ([5] * 8, 8, 0.0),  # a single n-gram repeats nothing
        ([5] * 9, 8, 1 / 2),
        ([5] * 17, 8, 9 / 10),
        ([1, 2] * 8, 8, 7 / 9),  # nine n-grams, two distinct
        ([1, 2, 3, 1, 2, 3], 3, 1 / 4),
        ([1, 2, 1, 2, 3], 2, 1 / 4),  # 12 21 12 23
        ([1, 1, 2], 1, 1 / 3),
    ],
)
def test_repeat_share_by_hand(tokens, gram, share):
    assert repeat_share(list(tokens), gram) == pytest.approx(share)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_repeat_share_is_a_share(tokens):
    assert 0 <= repeat_share(tokens) < 1


@pytest.mark.parametrize(
    ("reference", "tokens", "index"),
    [
        ([1, 2, 3], [1, 2, 3], NO_DEPARTURE),
        ([], [], NO_DEPARTURE),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 9], 2),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1], [], 0),
        ([1, 2, 3], [1, 9], 1),
        ([1, 2], [1, 9, 3], 1),
    ],
)
def test_departure(reference, tokens, index):
    assert departure(reference, tokens) == index


def test_top_two_gap_is_that_of_the_next_token(golden_pair):
    pair = golden_pair("dflash_tiny_qwen3")
    prefix = torch.arange(1, 9)
    logits = pair.target.forward(prefix, torch.arange(8), pair.target.new_cache(8), causal=True).logits[-1]
    best, second = logits.sort(descending=True).values[:2].tolist()
    assert top_two_gap(pair, prefix) == pytest.approx(best - second, abs=1e-6)


METHODS = [{"method": "dflash", "block_size": None, "top_k": 8}, {"method": "cast", "budget": 15, "top_k": 8}]


@pytest.mark.parametrize("method", METHODS)
def test_a_departure_away_from_a_tie_is_an_error(golden_pair, method):
    with pytest.raises(CastError, match="not exact") as error:
        check_fp32_departure(golden_pair("dflash_tiny_qwen3"), torch.arange(1, 9), 3, FP32_NEAR_TIE, **method)
    assert "\n" not in str(error.value)
    assert "new token 3" in str(error.value)
    assert method["method"] in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_near_tie_passes_when_fp64_agrees(golden_pair, method, monkeypatch):
    runs = []
    generate = cast.decode.generate

    def record(pair, prompt, **options):
        runs.append((pair.dtype, pair.drafter.fc.weight.dtype, options))
        return generate(pair, prompt, **options)

    monkeypatch.setattr("cast.experiments.exactness.generate", record)
    check_fp32_departure(golden_pair("dflash_tiny_qwen3"), torch.arange(1, 9), 3, FP32_NEAR_TIE / 2, **method)
    assert [(target, drafter) for target, drafter, _ in runs] == [(torch.float64, torch.float64)] * 2
    assert [options["method"] for *_, options in runs] == [method["method"], "autoregressive"]
    # Far enough to reach the departure, and past any stop token before it.
    assert all(options["max_new_tokens"] == 4 and options["stop_token_ids"] == [] for *_, options in runs)
    assert golden_pair("dflash_tiny_qwen3").dtype == torch.float32


def test_a_near_tie_that_fp64_confirms_is_an_error(golden_pair, monkeypatch):
    generate = cast.decode.generate

    def broken(pair, prompt, **options):
        out = generate(pair, prompt, **options)
        if options["method"] == "cast":
            out.tokens[-1] += 1
        return out

    monkeypatch.setattr("cast.experiments.exactness.generate", broken)
    with pytest.raises(CastError, match="fp64") as error:
        check_fp32_departure(golden_pair("dflash_tiny_qwen3"), torch.arange(1, 9), 3, 0.0, method="cast", budget=7)
    assert "\n" not in str(error.value)
