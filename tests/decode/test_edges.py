"""The ends of what `generate` allows that the other files of this folder leave out; every sampler at each of them.

Elsewhere: stop tokens first and inside a path, limits inside a path, one-token prompts, budgets from 0, K = 1,
V < K and trees larger than the universe for greedy decoding (test_generate.py), overlapping generations
(test_interleaving.py).
"""

import copy
import dataclasses
import gc

import pytest
import torch
from transformers import Qwen3Config
from transformers.generation.logits_process import TopKLogitsWarper

import cast
from cast.models import Pair, Target
from cast.models.random_models import FAMILIES, dflash_head, random_model

METHODS = [("autoregressive", {}), ("dflash", {}), ("cast", {"budget": 31})]
WALK = {"temperature": 0.9, "sampler": "walk"}
SAMPLERS = [{}, WALK, {"temperature": 0.9, "sampler": "recursive"}]


@pytest.fixture(params=SAMPLERS, ids=["greedy", "walk", "recursive"])
def rule(request):
    return request.param


@pytest.fixture(scope="module")
def roomy(golden_pair):
    """A golden pair that takes 8,192 tokens."""
    pair = golden_pair("dflash_tiny_qwen3")
    target = copy.copy(pair.target)
    target.max_positions, target._rotary_table = 8192, None
    return dataclasses.replace(pair, target=target)


@pytest.fixture(scope="module")
def four_tokens():
    """A random pair of so few tokens that a draft of two positions holds all that can follow, in 20 nodes."""
    sizes = {"vocab_size": 4, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(**FAMILIES["qwen3"][1] | sizes)
    torch.manual_seed(0)
    head = dflash_head(config, block_size=3, layers=1).eval().requires_grad_(False)
    return Pair(Target.of(random_model(config))).with_drafter(head)


def assert_among_the_best(target, prompt, tokens, count):
    """Every token is one of the `count` most likely after all those before it, by one pass over the whole sequence."""
    whole = torch.cat((prompt, tokens))
    cache = target.new_cache(len(whole))
    logits = target.forward(whole, torch.arange(len(whole)), cache, causal=True).logits[len(prompt) - 1 : -1]
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    assert (logits.topk(count).values[:, -1] - chosen).max() < 1e-3


@pytest.mark.parametrize(("method", "shape"), METHODS)
def test_a_prompt_and_its_output_of_4096_tokens(roomy, method, shape, rule):
    prompt = torch.randint(90, (4064,), generator=torch.Generator().manual_seed(0))
    count, processor = (3, TopKLogitsWarper(3)) if rule else (1, None)
    options = {"max_new_tokens": 32, "stop_token_ids": [], "logits_processor": processor}
    out = cast.generate(roomy, prompt, method, **options, **shape, **rule)
    assert len(prompt) + len(out.tokens) == 4096
    assert_among_the_best(roomy.target, prompt, out.tokens, count)


@pytest.mark.parametrize("sampling", [{}, WALK], ids=["greedy", "walk"])
def test_4096_new_tokens_are_those_of_plain_decoding(four_tokens, sampling):
    options = {"max_new_tokens": 4096, "stop_token_ids": [], **sampling}
    tree = cast.generate(four_tokens, [1, 2, 0], "cast", budget=31, **options)
    assert tree.committed == [3] * 1365  # and the prefill's one
    assert tree.tokens.tolist() == cast.generate(four_tokens, [1, 2, 0], "autoregressive", **options).tokens.tolist()


@pytest.mark.parametrize(("method", "shape"), METHODS)
def test_an_exception_in_on_tokens_leaves_the_pair_as_it_was(pair, prompt, method, shape, rule):
    options = {"max_new_tokens": 30, "stop_token_ids": [], **shape, **rule}
    before = cast.generate(pair, prompt, method, **options)
    state = {part: set(vars(part)) for part in (pair.target, pair.drafter)}

    class Hangup(Exception):
        pass

    for fails_at in (0, 1, 3):
        calls = []

        def hang_up(piece, calls=calls, fails_at=fails_at):
            calls.append(piece)
            if len(calls) > fails_at:
                raise Hangup

        with pytest.raises(Hangup):
            cast.generate(pair, prompt, method, on_tokens=hang_up, **options)
        assert len(calls) == fails_at + 1
        received = [token for piece in calls for token in piece]
        assert received == before.tokens[: len(received)].tolist()  # what was delivered is the output's beginning
        assert gc.isenabled()
    after = cast.generate(pair, prompt, method, **options)
    assert after.tokens.tolist() == before.tokens.tolist()
    assert after.committed == before.committed
    assert {part: set(vars(part)) for part in (pair.target, pair.drafter)} == state


@pytest.mark.parametrize(
    "shape",
    [
        {"budget": 1},
        {"budget": 0},
        {"budget": 40, "top_k": 1},
        {"budget": 40, "top_k": 1000},  # V < K
        {"budget": 500, "top_k": 2, "block_size": 3},  # a universe of six nodes
    ],
    ids=str,
)
@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_sampling_from_trees_of_any_shape(pair, shape, sampler):
    """From a one-token prompt; tokens stay possible ones, and the walk's are those of plain sampling."""
    options = {"max_new_tokens": 14, "temperature": 1.1, "seed": 3, "stop_token_ids": [], "sampler": sampler}
    out = cast.generate(pair, [5], **shape, **options)
    assert len(out.tokens) == 14
    assert max(out.committed) <= min(shape["budget"], pair.drafter.block_size - 1) + 1
    if sampler == "walk":
        plain = cast.generate(pair, [5], "autoregressive", **options)
        assert out.tokens.tolist() == plain.tokens.tolist()


@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_limits_and_stop_tokens_cut_a_sampled_output(pair, prompt, sampler):
    """The same seed with another limit or stop token gives the same stream, cut."""
    options = {"temperature": 0.6, "seed": 1, "sampler": sampler, "budget": 31}
    whole = cast.generate(pair, prompt, max_new_tokens=40, stop_token_ids=[], **options)
    tokens = whole.tokens.tolist()
    assert max(whole.committed) > 2
    for limit in (1, 2, 3, 5, 8, 13, 21):
        out = cast.generate(pair, prompt, max_new_tokens=limit, stop_token_ids=[], **options)
        assert out.tokens.tolist() == tokens[:limit]
    cut_inside = 0
    for token in list(dict.fromkeys(tokens))[:12]:
        out = cast.generate(pair, prompt, max_new_tokens=40, stop_token_ids=[token], **options)
        assert out.tokens.tolist() == tokens[: tokens.index(token) + 1]
        cut_inside += 1 + sum(out.committed) > len(out.tokens)
    assert cut_inside > 0


def test_two_samplers_interleaved(pair, prompts):
    """A generation inside another one's callback, each with its own stream of draws."""
    options = {"max_new_tokens": 20, "temperature": 1.0, "stop_token_ids": [], "budget": 15}
    alone = [cast.generate(pair, prompts[i], seed=i, sampler="recursive", **options).tokens.tolist() for i in (0, 1)]
    inner = []

    def nested(piece):
        if not inner:
            inner.append(cast.generate(pair, prompts[1], seed=1, sampler="recursive", **options).tokens.tolist())

    outer = cast.generate(pair, prompts[0], seed=0, sampler="recursive", on_tokens=nested, **options)
    assert [outer.tokens.tolist(), *inner] == alone
