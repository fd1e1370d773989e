"""Prompt lookup: what is proposed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cast
from cast import CastError
from cast.decode.proposers.ngram import PromptLookup


def looked_up(text, budget=3, max_ngram=3, chunk=None):
    """The tokens proposed after `text`, observed at once or chunk by chunk."""
    lookup = PromptLookup(None, budget, max_ngram)
    for start in range(0, len(text), chunk or len(text)):
        lookup.observe(text[start : start + (chunk or len(text))])
    tree = lookup.propose(None, None)
    assert tree is None or tree.is_chain
    return [] if tree is None else tree.tokens.tolist()


def test_what_followed_the_latest_longest_match():
    assert looked_up([1, 2, 3, 4, 9, 1, 2, 3]) == [4, 9, 1]
    assert looked_up([1, 2, 7, 5, 2, 8, 1, 2]) == [7, 5, 2]  # two tokens match further back than one
    assert looked_up([2, 7, 5, 2, 8, 3, 2]) == [8, 3, 2]  # of equal matches the latest
    assert looked_up([1, 2, 3]) == []
    assert looked_up([5, 5]) == [5]
    assert looked_up([1, 2, 3, 1], budget=0) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 5), st.integers(1, 7))
def test_against_a_search_of_the_whole_text(text, budget, max_ngram, chunk):
    expected = []
    for n in range(min(max_ngram, len(text) - 1), 0, -1):
        places = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if places:
            expected = text[places[-1] : places[-1] + budget]
            break
    assert looked_up(text, budget, max_ngram, chunk) == expected


def test_repetitive_text_is_committed_many_tokens_a_round(golden_pair):
    pair, prompt = golden_pair("dflash_tiny_qwen3"), torch.tensor([69, 59, 15, 69, 59, 15])
    plain = cast.generate(pair, prompt, "autoregressive", max_new_tokens=120, stop_token_ids=[])
    out = cast.generate(pair, prompt, "ngram", budget=6, max_new_tokens=120, stop_token_ids=[])
    assert out.tokens.tolist() == plain.tokens.tolist()
    assert out.run.drafter_passes == 0
    assert 1 < max(out.committed) <= 7
    assert sum(out.committed) >= 119


def test_no_drafter_is_needed(golden_pair):
    bare = golden_pair("eagle3_tiny").with_drafter(None)
    assert len(cast.generate(bare, torch.tensor([1, 2, 3]), "ngram", max_new_tokens=8, stop_token_ids=[]).tokens) == 8


@pytest.mark.parametrize("options", [{"budget": -1}, {"max_ngram": 0}, {"max_ngram": 65}])
def test_settings_out_of_range(golden_pair, options):
    with pytest.raises(CastError, match=f"{next(iter(options))} must be"):
        cast.generate(golden_pair("eagle3_tiny"), torch.tensor([1]), "ngram", **options)
