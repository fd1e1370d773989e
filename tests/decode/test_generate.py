"""`generate`: one output for all methods, its limits, its fields."""

import dataclasses
import functools
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cast

STATELESS = [HealthCheck.function_scoped_fixture]
SPECULATIVE = [("dflash", {}), ("cast", {"budget": 7}), ("cast", {"budget": 63})]
EVERY = [("autoregressive", {}), *SPECULATIVE]


def tokens(out):
    return out.tokens.tolist()


# --- fields -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_fields(pair, prompt, method, shape):
    out = cast.generate(pair, prompt, method, max_new_tokens=30, stop_token_ids=[], **shape)
    assert out.tokens.dtype == torch.int64
    assert out.tokens.shape == (30,)
    assert out.tokens.device.type == "cpu"
    assert isinstance(out.committed, list)
    assert all(isinstance(r, int) and r >= 1 for r in out.committed)
    assert max(out.committed) <= (1 if method == "autoregressive" else pair.drafter.block_size)
    # The prefill's token is not counted; what the last round committed too much is.
    assert 1 + sum(out.committed[:-1]) < 30 <= 1 + sum(out.committed)
    for ms in (out.prefill_ms, out.decode_ms, out.ms_per_token):
        assert isinstance(ms, float)
        assert ms > 0
    assert out.ms_per_token == out.decode_ms / 30
    rounds = len(out.committed)
    assert out.run.target_passes == rounds + 1
    assert out.run.drafter_passes == (0 if method == "autoregressive" else rounds)
    assert out.run.stopped is False
    assert out.run.trace_ms == {}
    assert (out.run.first_draft_ms > 0) is True


def test_the_default_is_a_tree_of_63_nodes(pair, prompt, plain):
    default = cast.generate(pair, prompt, max_new_tokens=20, stop_token_ids=[])
    named = cast.generate(pair, prompt, "cast", budget=63, top_k=8, max_new_tokens=20, stop_token_ids=[])
    assert default.committed == named.committed
    assert tokens(default) == plain[:20]


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_a_pass_finds_the_logits_of_the_last_one_freed(pair, prompt, monkeypatch, method, shape):
    # Both at once is memory that the system takes back and hands out anew, page by page, in every round.
    forward, last = pair.target.forward, []

    def watched(*arguments, **options):
        assert [logits() for logits in last] in ([], [None])
        output = forward(*arguments, **options)
        last[:] = [weakref.ref(output.logits)]
        return output

    monkeypatch.setattr(pair.target, "forward", watched)
    out = cast.generate(pair, prompt, method, max_new_tokens=20, stop_token_ids=[], **shape)
    assert len(out.committed) > 1


# --- one output ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 8, 15, 31, 47, 95, 127, 255])
def test_every_budget_gives_the_plain_output(pair, pair_name, prompts, plain_of, budget):
    index = budget % len(prompts)
    out = cast.generate(pair, prompts[index], budget=budget, max_new_tokens=64, stop_token_ids=[])
    assert tokens(out) == plain_of(pair_name, index, 64)


def test_wider_trees_commit_more(pair, prompts):
    """A sanity check that the drafter is used: rounds fall with the budget."""

    def rounds(method, **shape):
        return sum(
            len(cast.generate(pair, prompt, method, max_new_tokens=40, stop_token_ids=[], **shape).committed)
            for prompt in prompts[:3]
        )

    assert rounds("autoregressive") == rounds("cast", budget=0) == 39 * 3
    assert rounds("dflash") < 30 * 3
    assert rounds("cast", budget=63) < rounds("cast", budget=7) < rounds("cast", budget=1)


@pytest.mark.parametrize("block_size", [2, 4, 5])
@pytest.mark.parametrize(("method", "shape"), SPECULATIVE)
def test_a_shorter_block(pair, prompt, plain, method, shape, block_size):
    out = cast.generate(pair, prompt, method, max_new_tokens=30, stop_token_ids=[], block_size=block_size, **shape)
    assert tokens(out) == plain[:30]
    assert max(out.committed) <= block_size


@pytest.mark.parametrize("top_k", [1, 2, 96, 1000])
def test_rank_caps(pair, prompt, plain, top_k):
    out = cast.generate(pair, prompt, budget=40, top_k=top_k, max_new_tokens=40, stop_token_ids=[])
    assert tokens(out) == plain[:40]
    if top_k == 1:
        chain = cast.generate(pair, prompt, "dflash", max_new_tokens=40, stop_token_ids=[])
        assert out.committed == chain.committed


def test_a_tree_larger_than_the_universe(pair, prompt, plain):
    out = cast.generate(pair, prompt, budget=500, top_k=2, block_size=3, max_new_tokens=40, stop_token_ids=[])
    assert tokens(out) == plain[:40]


@pytest.mark.parametrize("method", ["autoregressive", "dflash", "cast"])
def test_prompt_shapes_and_types(pair, prompt, plain, method):
    array = prompt.numpy()
    ways = prompt, prompt[None], prompt.int(), prompt.tolist(), [prompt.tolist()], array, array.astype(np.uint16)
    for ids in ways:
        assert tokens(cast.generate(pair, ids, method, max_new_tokens=8, stop_token_ids=[])) == plain[:8]
    kept = prompt.clone()
    cast.generate(pair, prompt, method, max_new_tokens=8)
    assert torch.equal(prompt, kept)


def test_a_prompt_of_one_token(pair):
    outputs = [
        tokens(cast.generate(pair, torch.tensor([5]), method, max_new_tokens=40, stop_token_ids=[], **shape))
        for method, shape in EVERY
    ]
    assert outputs == [outputs[0]] * len(outputs)


@settings(deadline=None, max_examples=12, suppress_health_check=STATELESS)
@given(
    ids=st.lists(st.integers(0, 95), min_size=1, max_size=40),
    new_tokens=st.integers(1, 48),
    budget=st.integers(0, 80),
    top_k=st.integers(1, 12),
    block_size=st.one_of(st.none(), st.integers(2, 5)),
)
def test_any_prompt_in_fp64(golden_pair, pair_name, exact, ids, new_tokens, budget, top_k, block_size):
    pair = exact(pair_name)
    reference = cast.generate(pair, ids, "autoregressive", max_new_tokens=new_tokens)
    limits = {"max_new_tokens": new_tokens, "block_size": block_size}
    for method, shape in (("dflash", {}), ("cast", {"budget": budget, "top_k": top_k})):
        out = cast.generate(pair, ids, method, **limits, **shape)
        assert tokens(out) == tokens(reference)
        assert out.run.stopped == reference.run.stopped


@pytest.mark.parametrize(("method", "shape"), SPECULATIVE)
def test_the_drafter_gets_the_features_of_exactly_the_committed_positions(pair, prompt, method, shape, monkeypatch):
    """Wrong features cost acceptance, not exactness, so the output cannot show them."""
    drafter, given = type(pair.drafter), []
    draft = drafter.draft

    def record(self, target, features, root, cache, *rest):
        given.append((cache.length, features.clone()))
        return draft(self, target, features, root, cache, *rest)

    monkeypatch.setattr(drafter, "draft", record)
    out = cast.generate(pair, prompt, method, max_new_tokens=40, stop_token_ids=[], **shape)
    whole = torch.cat((prompt, out.tokens))
    taps = pair.target.forward(
        *(whole, torch.arange(len(whole)), pair.target.new_cache(len(whole))),
        causal=True,
        taps=pair.drafter.target_layer_ids,
    ).taps
    expected = torch.cat(taps, -1)
    for held, features in given:
        torch.testing.assert_close(features, expected[held : held + len(features)], atol=1e-4, rtol=0)
    assert [held for held, _ in given] == [
        0,
        *(len(prompt) + sum(out.committed[:i]) for i in range(len(given) - 1)),
    ]


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_max_new_tokens_cuts_inside_a_path(pair, prompt, plain, method, shape):
    for limit in range(1, 14):
        out = cast.generate(pair, prompt, method, max_new_tokens=limit, stop_token_ids=[], **shape)
        assert tokens(out) == plain[:limit]
        assert out.run.stopped is False


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_one_new_token_is_the_prefills(pair, prompt, plain, method, shape):
    out = cast.generate(pair, prompt, method, max_new_tokens=1, stop_token_ids=[], **shape)
    assert tokens(out) == plain[:1]
    assert out.committed == []
    assert out.run.target_passes == 1
    assert out.run.drafter_passes == 0
    assert out.decode_ms == out.ms_per_token == 0


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_a_stop_token_ends_the_output_wherever_it_stands(pair, prompt, plain, method, shape):
    for token in list(dict.fromkeys(plain))[:6]:
        out = cast.generate(pair, prompt, method, max_new_tokens=64, stop_token_ids=[token], **shape)
        assert tokens(out) == plain[: plain.index(token) + 1]
        assert out.run.stopped is True


def test_a_stop_token_inside_an_accepted_path_is_covered(pair, prompt, plain):
    """Guards the test above: some stop falls inside a path, and `committed` is not cut there."""
    cut_inside = 0
    for token in dict.fromkeys(plain):
        out = cast.generate(pair, prompt, "dflash", max_new_tokens=64, stop_token_ids=[token])
        cut_inside += 1 + sum(out.committed) > len(out.tokens)
    assert cut_inside > 0


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_a_stop_token_first(pair, prompt, plain, method, shape):
    out = cast.generate(pair, prompt, method, max_new_tokens=64, stop_token_ids={plain[0], 3}, **shape)
    assert tokens(out) == plain[:1]
    assert out.committed == []
    assert out.run.stopped is True


def test_the_models_own_stop_tokens_are_the_default(pair, prompt, plain):
    other = dataclasses.replace(pair, target=pair.target.to(pair.dtype))
    other.target.stop_token_ids = (plain[9],)
    first = plain.index(plain[9])
    assert tokens(cast.generate(other, prompt, max_new_tokens=64)) == plain[: first + 1]
    assert tokens(cast.generate(other, prompt, max_new_tokens=64, stop_token_ids=[])) == plain
    assert len(cast.generate(other, prompt, max_new_tokens=64, stop_token_ids=[]).tokens) == 64


def test_a_stop_token_on_the_last_allowed_token(pair, prompt, plain):
    last = next(i for i in range(5, 64) if plain[i] not in plain[:i])
    out = cast.generate(pair, prompt, max_new_tokens=last + 1, stop_token_ids=[plain[last]])
    assert tokens(out) == plain[: last + 1]
    assert out.run.stopped is True


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_up_to_the_models_maximum(pair, method, shape):
    """A sequence that exactly fills the model is allowed, drafting beyond the end included."""
    ids = torch.arange(1, 500).remainder(90)
    room = pair.target.max_positions - len(ids)
    out = cast.generate(pair, ids, method, max_new_tokens=room, stop_token_ids=[], **shape)
    assert len(out.tokens) == room


# --- callbacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "shape"), EVERY)
@pytest.mark.parametrize("stop", [None, 20])
def test_on_tokens_receives_exactly_the_output(pair, prompt, plain, method, shape, stop):
    stops = [] if stop is None else [plain[stop]]
    pieces = []
    out = cast.generate(pair, prompt, method, max_new_tokens=37, stop_token_ids=stops, on_tokens=pieces.append, **shape)
    assert all(isinstance(piece, list) and piece for piece in pieces)
    assert all(isinstance(token, int) for piece in pieces for token in piece)
    assert [token for piece in pieces for token in piece] == tokens(out)
    assert len(pieces) == 1 + len(out.committed)


def test_on_tokens_may_change_its_list(pair, prompt, plain):
    out = cast.generate(pair, prompt, max_new_tokens=30, stop_token_ids=[], on_tokens=lambda piece: piece.clear())
    assert tokens(out) == plain[:30]


# --- bf16 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_bf16_runs_and_is_deterministic(pair, pair_name, prompt, method, shape, low):
    outs = [
        cast.generate(low(pair_name), prompt, method, max_new_tokens=40, stop_token_ids=[], **shape) for _ in range(2)
    ]
    assert tokens(outs[0]) == tokens(outs[1])
    assert outs[0].committed == outs[1].committed
    assert len(outs[0].tokens) == 40


@pytest.fixture(scope="module")
def exact(golden_pair):
    return functools.cache(lambda name: golden_pair(name).to(torch.float64))


@pytest.fixture(scope="module")
def low(golden_pair):
    return functools.cache(lambda name: golden_pair(name).to(torch.bfloat16))
