"""The timed window: what is inside it, what is not, and the trace of its stages."""

import gc
import time

import pytest
import torch

import cast
from cast.decode.timer import Trace, garbage_collection_off, now_ms

CPU = torch.device("cpu")
EVERY = [("autoregressive", {}), ("dflash", {}), ("cast", {"budget": 15})]


def test_collection_is_off_inside_and_back_after_an_exception():
    with pytest.raises(ZeroDivisionError), garbage_collection_off():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        with garbage_collection_off():
            with garbage_collection_off():
                pass
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_trace_charges_the_time_between_laps():
    trace = Trace(CPU)
    time.sleep(0.01)
    trace.lap("draft")
    time.sleep(0.02)
    trace.lap("verify")
    time.sleep(0.01)
    trace.lap("draft")
    assert set(trace.stage_ms) == {"draft", "verify"}
    assert trace.stage_ms["draft"] >= 20
    assert trace.stage_ms["verify"] >= 20


def test_the_clock_is_in_ms():
    started = now_ms(CPU)
    time.sleep(0.02)
    assert 19 < now_ms(CPU) - started < 5000


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_a_traced_run_fills_its_stages(pair, prompt, plain, method, shape):
    out = cast.generate(pair, prompt, method, max_new_tokens=50, stop_token_ids=[], traced=True, **shape)
    assert out.tokens.tolist() == plain[:50]
    stages = {"verify", "other"} | ({"draft"} if method != "autoregressive" else set())
    assert set(out.run.trace_ms) == stages
    assert all(ms > 0 for ms in out.run.trace_ms.values())
    assert sum(out.run.trace_ms.values()) == pytest.approx(out.decode_ms, rel=0.1, abs=5.0)


@pytest.mark.parametrize(("method", "shape"), EVERY)
def test_the_window_opens_after_the_first_draft_and_closes_after_the_output(pair, prompt, method, shape, monkeypatch):
    """Delays put into each stage show where it is charged."""
    target, drafter = type(pair.target), type(pair.drafter)
    forward, draft = target.forward, drafter.draft
    passes = {"target": 0, "drafter": 0}

    def slow_forward(self, *args, **kwargs):
        passes["target"] += 1
        time.sleep(0.4 if passes["target"] == 1 else 0.001)
        return forward(self, *args, **kwargs)

    def slow_draft(self, *args, **kwargs):
        passes["drafter"] += 1
        time.sleep(0.5 if passes["drafter"] == 1 else 0.001)
        return draft(self, *args, **kwargs)

    monkeypatch.setattr(target, "forward", slow_forward)
    monkeypatch.setattr(drafter, "draft", slow_draft)
    out = cast.generate(pair, prompt, method, max_new_tokens=6, stop_token_ids=[], **shape)
    assert out.prefill_ms >= 400
    assert out.decode_ms < 390
    if method == "autoregressive":
        assert out.run.first_draft_ms < 390
    else:
        assert out.run.first_draft_ms >= 500
    assert out.ms_per_token == out.decode_ms / 6


def test_the_window_holds_every_round(pair, prompt, monkeypatch):
    forward = type(pair.target).forward

    def slow(self, *args, **kwargs):
        time.sleep(0.005)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(pair.target), "forward", slow)
    out = cast.generate(pair, prompt, "autoregressive", max_new_tokens=9, stop_token_ids=[])
    assert len(out.committed) == 8
    assert out.decode_ms >= 8 * 5


def test_collection_is_off_while_decoding(pair, prompt):
    states = []
    cast.generate(
        pair,
        prompt,
        max_new_tokens=20,
        stop_token_ids=[],
        on_tokens=lambda piece: states.append(gc.isenabled()),
    )
    assert states[0] is True  # prefill is outside the window
    assert not any(states[1:])
    assert gc.isenabled()


@pytest.mark.parametrize("method", ["autoregressive", "cast"])
def test_the_loops_own_work_is_not_charged_to_verification(golden_pair, method, monkeypatch):
    """A slow walk, and for a tree a slow builder, are the loop's: neither drafting nor verifying."""
    from cast.decode.proposers import block
    from cast.verify import select

    def slowed(call):
        return lambda *arguments: time.sleep(0.02) or call(*arguments)

    monkeypatch.setattr(select, "walk", slowed(select.walk))
    monkeypatch.setattr(block, "best_first_tree_from_topk", slowed(block.best_first_tree_from_topk))
    out = cast.generate(
        golden_pair("dflash_tiny_qwen3"),
        torch.tensor([69, 59, 15]),
        method,
        budget=7,
        max_new_tokens=12,
        stop_token_ids=[],
        traced=True,
    )
    slow_calls = len(out.committed) * (1 if method == "autoregressive" else 2) - (method == "cast")
    assert out.run.trace_ms["other"] >= 20 * slow_calls
    assert out.run.decode_ms - out.run.trace_ms["other"] < 20 * slow_calls
