"""A golden pair, its prompts, plain decoding of mixed requests, and random ragged layouts."""

import functools
import json

import numpy as np
import pytest
import torch

import cast
from cast.serving import Request, best_first_forest
from cast.serving.attention import RaggedLayout

PAIR = "dflash_tiny_qwen3"


@pytest.fixture(scope="session")
def pair(golden_pair):
    return golden_pair(PAIR)


@pytest.fixture(scope="session")
def prompts_of(golden):
    """Name of a golden pair to its prompts, lists of token ids."""
    return lambda name: json.loads((golden / name / "prompts.json").read_text())


@pytest.fixture(scope="session")
def prompts(prompts_of):
    return prompts_of(PAIR)


@pytest.fixture(scope="session")
def plain_of(pair):
    """A request's output by plain decoding, one request alone."""

    @functools.cache
    def decode(prompt, temperature, seed, new_tokens, stops):
        out = cast.generate(
            pair,
            torch.tensor(prompt),
            "autoregressive",
            max_new_tokens=new_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=stops,
        )
        return out.tokens.tolist()

    def plain(request: Request):
        longest = 12  # a shorter output is the start of a longer one
        tokens = decode(tuple(request.prompt), request.temperature, request.seed, longest, ())
        assert request.max_new_tokens <= longest
        tokens = tokens[: request.max_new_tokens]
        stop = next((i for i, token in enumerate(tokens) if token in (request.stop_token_ids or ())), None)
        return tokens if stop is None else tokens[: stop + 1]

    return plain


@pytest.fixture(scope="session")
def random_scores():
    """(seed, requests, length, top_k) to top-K scores, descending, and token ids, both [B, L, K]."""

    def draw(seed, requests, length, top_k, coarse=False):
        generator = np.random.default_rng(seed)
        logits = generator.normal(0, 2, (requests, length, 2 * top_k))
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        if coarse:  # many ties
            log_probs = np.round(log_probs)
        order = np.argsort(-log_probs, axis=-1, kind="stable")[..., :top_k]
        return np.take_along_axis(log_probs, order, -1).astype(np.float32), order

    return draw


@pytest.fixture(scope="session")
def ragged_case(random_scores):
    """(sizes, prefixes, heads, kv_heads, head_dim, dtype) to a layout of packed trees and its tensors."""

    def build(sizes, prefixes, heads, kv_heads, head_dim, dtype=torch.float32, seed=0):
        forest = best_first_forest(*random_scores(seed, len(sizes), 15, 8), np.array(sizes))
        rows = forest.sizes + 1
        layout = RaggedLayout(
            starts=[0, *np.cumsum(rows).tolist()],
            slots=list(range(len(sizes)))[::-1],
            prefix=list(prefixes),
            ends=(np.array(prefixes) + rows).tolist(),
            visible=forest.visible(),
        )
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator).to(dtype)

        cache = len(sizes), kv_heads, max(layout.ends) + 3, head_dim
        return layout, normal(layout.starts[-1], heads, head_dim), normal(*cache), normal(*cache)

    return build
