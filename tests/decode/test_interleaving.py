"""Generations that overlap on one pair do not see each other."""

import gc
import threading

import pytest
import torch

import cast

SHAPES = [("autoregressive", {}), ("dflash", {}), ("cast", {"budget": 31})]


@pytest.mark.parametrize(("outer", "outer_shape"), SHAPES)
@pytest.mark.parametrize(("inner", "inner_shape"), SHAPES)
def test_a_generation_inside_another_ones_callback(
    pair, pair_name, prompts, plain_of, outer, outer_shape, inner, inner_shape
):
    """The inner one is longer than the outer, so shared tables must grow under the outer one's feet."""
    inner_outputs = []

    def nested(piece):
        if len(inner_outputs) < 2:
            out = cast.generate(pair, prompts[5], inner, max_new_tokens=40, stop_token_ids=[], **inner_shape)
            inner_outputs.append(out.tokens.tolist())

    out = cast.generate(pair, prompts[0], outer, max_new_tokens=16, stop_token_ids=[], on_tokens=nested, **outer_shape)
    assert out.tokens.tolist() == plain_of(pair_name, 0, 16)
    assert inner_outputs == [plain_of(pair_name, 5, 40)] * 2
    assert gc.isenabled()


def test_two_threads(pair, pair_name, prompts, plain_of):
    results, failures = {}, []

    def work(index):
        try:
            for length in (20, 64):
                method, shape = SHAPES[index % len(SHAPES)]
                out = cast.generate(pair, prompts[index], method, max_new_tokens=length, stop_token_ids=[], **shape)
                results[index, length] = out.tokens.tolist()
        except Exception as error:
            failures.append(error)

    expected = {(i, n): plain_of(pair_name, i, n) for i in range(4) for n in (20, 64)}
    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert results == expected
    assert gc.isenabled()


def test_a_table_set_by_a_shorter_generation_in_between(golden_pair, monkeypatch):
    """The race of two first generations: both see no table, and the shorter one stores its own last."""
    from cast.models import target as module

    pair = golden_pair("dflash_tiny_qwen3")
    target = pair.target.to(torch.float32)  # a copy without a rotary table
    table, waiting = module.RotaryTable, []

    class Racing(table):
        def __init__(self, inv_freq, scaling, positions, dtype):
            super().__init__(inv_freq, scaling, positions, dtype)
            if positions == 5 and not waiting:
                waiting.append(True)
                target.new_cache(50)  # the other thread runs here, between the check and the store

    monkeypatch.setattr(module, "RotaryTable", Racing)
    cache = target.new_cache(5)
    assert cache.capacity == 5
    tokens = torch.arange(50)
    target.forward(tokens, tokens, pair.target.new_cache(50), causal=True)  # the longer generation goes on


def test_a_pair_survives_many_generations_without_growing(pair, prompt):
    """Nothing is kept per generation: the same objects serve, and a second run is the first one again."""
    first = cast.generate(pair, prompt, max_new_tokens=30, stop_token_ids=[])
    state = set(vars(pair.target)), set(vars(pair.drafter))
    for _ in range(3):
        again = cast.generate(pair, prompt, max_new_tokens=30, stop_token_ids=[])
        assert again.tokens.tolist() == first.tokens.tolist()
        assert again.committed == first.committed
    assert (set(vars(pair.target)), set(vars(pair.drafter))) == state
