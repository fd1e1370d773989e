"""Sampling at a temperature, and logits processors: every method gives plain decoding's tokens."""

import functools
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, LogitsProcessorList
from transformers.generation.logits_process import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import cast
from cast import CastError
from cast.decode.proposers import top_log_probs

SPECULATIVE = [("dflash", {}), ("cast", {"budget": 1}), ("cast", {"budget": 31})]
EVERY = [("autoregressive", {}), *SPECULATIVE]
SEEDS = 160


@pytest.fixture(scope="module")
def exact(golden_pair):
    """fp64, so that the methods' probabilities agree to far below what one draw resolves."""
    return functools.cache(lambda name: golden_pair(name).to(torch.float64))


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_a_seed_gives_the_sampled_sequence_of_plain_decoding(exact, pair_name, prompts, temperature):
    pair, distinct = exact(pair_name), set()
    for seed in range(3):
        options = {"max_new_tokens": 30, "temperature": temperature, "seed": seed, "stop_token_ids": []}
        plain = cast.generate(pair, prompts[seed], "autoregressive", **options).tokens.tolist()
        distinct.add(tuple(plain))
        for method, shape in SPECULATIVE:
            assert cast.generate(pair, prompts[seed], method, **shape, **options).tokens.tolist() == plain
    assert len(distinct) == 3


def test_plain_sampling_draws_from_the_softmax(exact, pair_name, prompt):
    """The whole sequence by hand: each uniform of the seed's stream inverts the distribution function."""
    target = exact(pair_name).target
    uniforms, sequence = torch.rand(256, generator=torch.Generator().manual_seed(11), dtype=torch.float64), prompt
    for uniform in uniforms[:25]:
        logits = target.forward(
            sequence, torch.arange(len(sequence)), target.new_cache(len(sequence)), causal=True
        ).logits[-1]
        below = (logits / 0.8).softmax(-1).cumsum(-1) <= uniform
        sequence = torch.cat((sequence, below.sum()[None]))
    out = cast.generate(
        exact(pair_name), prompt, "cast", max_new_tokens=25, temperature=0.8, seed=11, stop_token_ids=[]
    )
    assert out.tokens.tolist() == sequence[len(prompt) :].tolist()


@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_sampled_tokens_have_the_targets_law(golden_pair, sampler):
    """The first two tokens over many seeds, against the target's softmax; hot, so that several are likely."""
    pair, prompt, temperature, draws = golden_pair("dflash_tiny_llama"), torch.tensor([3, 5]), 2.0, Counter()
    for seed in range(SEEDS):
        out = cast.generate(
            *(pair, prompt, "cast"),
            budget=7,
            max_new_tokens=2,
            temperature=temperature,
            seed=seed,
            sampler=sampler,
            stop_token_ids=[],
        )
        draws[tuple(out.tokens.tolist())] += 1
    expected, observed = [], []
    firsts = _law(pair, prompt, temperature) * SEEDS
    for first in (firsts > 5).nonzero().flatten().tolist():
        seconds = _law(pair, torch.cat((prompt, torch.tensor([first]))), temperature) * firsts[first]
        for second in (seconds > 5).nonzero().flatten().tolist():
            expected.append(float(seconds[second]))
            observed.append(draws[first, second])
    assert len(expected) > 2
    expected.append(SEEDS - sum(expected))
    observed.append(SEEDS - sum(observed))
    assert chisquare(observed, expected).pvalue > 1e-3


def _law(pair, sequence, temperature):
    target = pair.target
    positions = torch.arange(len(sequence))
    logits = target.forward(sequence, positions, target.new_cache(len(sequence)), causal=True).logits[-1]
    return (logits.double() / temperature).softmax(-1)


def test_temperature_zero_ignores_the_seed(pair, prompt, plain):
    for seed in (0, 1):
        out = cast.generate(pair, prompt, max_new_tokens=20, temperature=0, seed=seed, stop_token_ids=[])
        assert out.tokens.tolist() == plain[:20]


def test_a_seed_fixes_the_recursive_output(pair, prompt):
    options = {"max_new_tokens": 40, "temperature": 1.0, "stop_token_ids": [], "sampler": "recursive"}
    runs = [cast.generate(pair, prompt, budget=31, seed=seed, **options) for seed in (1, 1, 2)]
    outputs = [run.tokens.tolist() for run in runs]
    assert outputs[0] == outputs[1] != outputs[2]
    assert runs[0].committed == runs[1].committed
    assert max(runs[0].committed) > 1


def test_an_unknown_sampler(pair, prompt):
    for temperature in (0.0, 1.0):
        with pytest.raises(CastError, match="walk, recursive") as error:
            cast.generate(pair, prompt, temperature=temperature, sampler="beam")
        assert "\n" not in str(error.value)


# --- logits processors --------------------------------------------------------------------------


def no_repeat(input_ids, scores):
    """Bans the last three tokens: depends on the history, so on every accepted token of a path."""
    return scores.index_fill(1, input_ids[0, -3:], float("-inf"))


@pytest.mark.parametrize(("method", "shape"), SPECULATIVE)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_methods_agree_under_a_processor(exact, pair_name, prompts, method, shape, temperature):
    options = {
        "max_new_tokens": 25,
        "temperature": temperature,
        "stop_token_ids": [],
        "logits_processor": no_repeat,
    }
    for prompt in prompts[:2]:
        plain = cast.generate(exact(pair_name), prompt, "autoregressive", **options).tokens.tolist()
        out = cast.generate(exact(pair_name), prompt, method, **shape, **options)
        assert out.tokens.tolist() == plain
        whole = prompt.tolist() + plain
        assert all(whole[i] not in whole[max(0, i - 3) : i] for i in range(len(prompt), len(whole)))


@pytest.mark.parametrize(("method", "shape"), EVERY)
@pytest.mark.parametrize(
    "processors",
    [
        LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.4)]),
        LogitsProcessorList([NoRepeatNGramLogitsProcessor(2), RepetitionPenaltyLogitsProcessor(1.1)]),
    ],
    ids=["penalty", "ngram"],
)
def test_processors_of_transformers(golden, pair, pair_name, prompt, method, shape, processors):
    stock = AutoModelForCausalLM.from_pretrained(golden / pair_name / "target", dtype=torch.float32)
    reference = stock.generate(
        prompt[None],
        max_new_tokens=30,
        do_sample=False,
        eos_token_id=None,
        logits_processor=processors,
        attention_mask=torch.ones_like(prompt[None]),
    )
    out = cast.generate(
        pair, prompt, method, max_new_tokens=30, stop_token_ids=[], logits_processor=processors, **shape
    )
    assert out.tokens.tolist() == reference[0, len(prompt) :].tolist()


@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_a_warper_of_transformers_while_sampling(pair, prompt, plain, sampler):
    """Top 1 at any temperature is greedy."""
    out = cast.generate(
        pair,
        prompt,
        sampler=sampler,
        max_new_tokens=30,
        temperature=1.3,
        seed=5,
        stop_token_ids=[],
        logits_processor=LogitsProcessorList([TopKLogitsWarper(1)]),
    )
    assert out.tokens.tolist() == plain[:30]


@pytest.mark.parametrize(("method", "shape"), EVERY)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_processor_sees_prompt_and_output_so_far(pair, prompt, method, shape, temperature):
    histories = []

    def record(input_ids, scores):
        histories.append(input_ids[0].tolist())
        assert scores.shape == (1, pair.target.vocab_size)
        return scores

    out = cast.generate(
        pair,
        prompt,
        method,
        max_new_tokens=20,
        temperature=temperature,
        stop_token_ids=[],
        logits_processor=record,
        **shape,
    )
    whole = prompt.tolist() + out.tokens.tolist()
    # One call per token selected, in order; the last round may select some that are cut off.
    assert len(histories) == 1 + sum(out.committed)
    for index, history in enumerate(histories[: len(out.tokens)]):
        assert history == whole[: len(prompt) + index]


@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_a_warper_bans_what_it_bans(pair, prompt, sampler):
    """Every sampled token is in the top-p set of its own prefix, penalty included."""
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3), TopPLogitsWarper(0.7)])
    options = {"temperature": 1.2, "sampler": sampler, "logits_processor": processors}
    out = cast.generate(pair, prompt, budget=31, max_new_tokens=25, stop_token_ids=[], **options)
    whole = torch.cat((prompt, out.tokens))
    target = pair.target
    logits = target.forward(whole, torch.arange(len(whole)), target.new_cache(len(whole)), causal=True).logits
    for place in range(len(prompt), len(whole)):
        scores = processors(whole[None, :place], logits[place - 1][None] / 1.2)
        assert scores[0, whole[place]].isfinite()


def test_the_processor_gets_scores_after_the_temperature(pair, prompt):
    seen = []

    def record(input_ids, scores):
        seen.append(scores.clone())
        return scores

    options = {"max_new_tokens": 1, "logits_processor": record}
    cast.generate(pair, prompt, "autoregressive", temperature=0.0, **options)
    cast.generate(pair, prompt, "autoregressive", temperature=0.5, **options)
    torch.testing.assert_close(seen[1], seen[0] / 0.5)


# --- marginals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_log_probs_are_those_of_the_full_softmax(dtype):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    scores, tokens = top_log_probs(logits, 8)
    assert scores.dtype == torch.float32
    full = logits.float().log_softmax(-1)
    torch.testing.assert_close(scores, full.gather(1, tokens), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores, full.topk(8).values, atol=1e-5, rtol=0)
    assert (scores.exp().sum(-1) < 1).all()
