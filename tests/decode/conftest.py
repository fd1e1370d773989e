"""Prompts of the golden pairs, and plain decoding of them as the reference."""

import functools
import json

import pytest
import torch

import cast


@pytest.fixture(params=["dflash_tiny_qwen3", "dflash_tiny_llama"])
def pair_name(request):
    return request.param


@pytest.fixture
def pair(golden_pair, pair_name):
    return golden_pair(pair_name)


@pytest.fixture(scope="session")
def prompts_of(golden):
    """Name of a golden pair to its prompts, LongTensors [T]."""
    return functools.cache(
        lambda name: [torch.tensor(ids) for ids in json.loads((golden / name / "prompts.json").read_text())]
    )


@pytest.fixture
def prompts(prompts_of, pair_name):
    return prompts_of(pair_name)


@pytest.fixture
def prompt(prompts):
    return prompts[0]


@pytest.fixture(scope="session")
def plain_of(golden_pair, prompts_of):
    """(pair name, prompt index, new tokens) to the greedy tokens of plain decoding, stop tokens ignored."""

    @functools.cache
    def plain(name, index, new_tokens):
        out = cast.generate(
            golden_pair(name),
            prompts_of(name)[index],
            "autoregressive",
            max_new_tokens=new_tokens,
            stop_token_ids=[],
        )
        return out.tokens.tolist()

    return plain


@pytest.fixture
def plain(plain_of, pair_name):
    """The first 64 greedy tokens after `prompt`."""
    return plain_of(pair_name, 0, 64)
