"""The drafter-score log against a computation by hand, its padding and its limits."""

import itertools

import numpy as np
import pytest
import torch

import cast
from cast.experiments import drafter_scores
from cast.experiments.drafter_scores import ScoresSpec


@pytest.fixture(params=["dflash_tiny_qwen3", "dflash_tiny_llama"])
def name(request):
    return request.param


@pytest.fixture
def pair(golden_pair, name, stopping_at):
    return stopping_at(golden_pair(name))


@pytest.fixture
def prompts(golden_prompts, name):
    return golden_prompts(name)


def spec_of(**changes):
    return ScoresSpec(**{"rounds": 10_000, "max_new_tokens": 24, **changes})


def first_round_masses(pair, ids, top_k):
    """All masses of the first round, descending: products of softmax probabilities along every path."""
    target, taps = pair.target, pair.drafter.target_layer_ids
    prefill = target.forward(ids, torch.arange(len(ids)), target.new_cache(len(ids)), causal=True, taps=taps)
    root = prefill.logits[-1:].argmax(-1)
    cache = pair.drafter.new_cache(len(ids) + pair.drafter.block_size)
    logits = pair.drafter.draft(target, torch.cat(prefill.taps, -1), root, cache)
    top = logits.double().softmax(-1).topk(top_k).values.numpy()
    masses = []
    for depth in range(1, len(top) + 1):
        masses += [np.prod(path) for path in itertools.product(*top[:depth])]
    return np.sort(masses)[::-1]


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_the_first_round_by_hand(pair, prompts, top_k):
    ids = torch.tensor([int(token) for token in prompts[0].text.split()])
    expected = first_round_masses(pair, ids, top_k)
    ((prompt_id, masses),) = drafter_scores.run(pair, prompts[:1], spec_of(top_k=top_k))
    assert prompt_id == prompts[0].id
    assert masses.dtype == np.float32
    assert masses.shape[1] == 512
    kept = min(512, len(expected))
    np.testing.assert_allclose(masses[0, :kept], expected[:kept], rtol=2e-5, atol=1e-12)
    assert (masses[0, kept:] == 0).all()


def test_masses_descend_and_rounds_are_those_of_chain_decoding(pair, prompts):
    for prompt, (prompt_id, masses) in zip(prompts, drafter_scores.run(pair, prompts, spec_of()), strict=True):
        assert prompt_id == prompt.id
        ids = [int(token) for token in prompt.text.split()]
        out = cast.generate(pair, ids, "dflash", max_new_tokens=24, stop_token_ids=[])
        assert len(masses) == len(out.committed)
        assert (np.diff(masses, axis=1) <= 0).all()
        assert (masses >= 0).all()
        assert (masses[:, 0] <= 1).all()
        assert (masses.sum(axis=1) <= pair.drafter.block_size - 1 + 1e-5).all()


def test_the_rank_cap_of_eight_fills_512_masses(pair, prompts):
    ((_, masses),) = drafter_scores.run(pair, prompts[:1], spec_of())
    assert (masses > 0).all()
    ((_, fewer),) = drafter_scores.run(pair, prompts[:1], spec_of(masses=40))
    np.testing.assert_array_equal(fewer, masses[:, :40])


def test_it_stops_after_the_prompt_that_completes_the_rounds(pair, prompts):
    whole = list(drafter_scores.run(pair, prompts, spec_of(masses=8)))
    counts = [len(masses) for _, masses in whole]
    for rounds, prompts_run in ((1, 1), (counts[0], 1), (counts[0] + 1, 2), (sum(counts[:3]), 3)):
        assert len(list(drafter_scores.run(pair, prompts, spec_of(masses=8, rounds=rounds)))) == prompts_run


def test_done_prompts_are_skipped(pair, prompts):
    done = {prompts[0].id, prompts[3].id}
    ids = [prompt_id for prompt_id, _ in drafter_scores.run(pair, prompts, spec_of(masses=8), done)]
    assert ids == [prompt.id for prompt in prompts if prompt.id not in done]


def test_the_time_limit_lets_the_first_prompt_run(pair, prompts):
    assert len(list(drafter_scores.run(pair, prompts, spec_of(masses=8, time_limit_s=0.0)))) == 1


def test_a_prompt_that_ends_at_its_first_token_logs_nothing(pair, prompts, stopping_at):
    ids = [int(token) for token in prompts[0].text.split()]
    first = int(cast.generate(pair, ids, "autoregressive", max_new_tokens=1).tokens[0])
    ended = [prompt_id for prompt_id, _ in drafter_scores.run(stopping_at(pair, first), prompts[:2], spec_of(masses=8))]
    assert prompts[0].id not in ended
