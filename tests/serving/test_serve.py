"""Continuous batching: outputs do not depend on the company, and nobody waits, starves or leaks."""

import dataclasses
import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cast
from cast import CastError
from cast.serving import (
    BestFirst,
    Chain,
    DenseVerifier,
    RaggedVerifier,
    Request,
    RoundClock,
    Uniform,
    WallClock,
    poisson_arrivals,
    serve,
)


def mixed(count, prompts, seed):
    """Requests of every kind: greedy and sampled, short and long, with and without stop tokens."""
    draw = np.random.default_rng(seed)
    arrivals = poisson_arrivals(count, rate=9, seed=seed)
    return [
        Request(
            prompts[draw.integers(len(prompts))],
            max_new_tokens=int(draw.integers(1, 13)),
            temperature=float(draw.choice([0, 0, 0.8])),
            seed=int(draw.integers(2)),
            stop_token_ids=(int(draw.integers(96)),) * int(draw.integers(2)),
            arrival=arrivals[index],
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("verifier", "count"), [(RaggedVerifier(), 200), (DenseVerifier(), 60)], ids=["ragged", "dense"]
)
def test_mixed_requests_are_served_as_if_alone(pair, prompts, plain_of, verifier, count):
    requests = mixed(count, prompts, seed=3)
    run = serve(pair, requests, allocator=BestFirst(6), verifier=verifier, max_active=16, clock=RoundClock())
    assert [result.tokens for result in run.results] == [plain_of(request) for request in requests]
    assert {result.end for result in run.results} == {"stop", "length"}
    assert max(report.active for report in run.rounds) == 16  # there was company
    assert sum(report.emitted for report in run.rounds) + len(requests) == run.tokens


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    allocator=st.sampled_from([Chain(7), Uniform(0), Uniform(9), BestFirst(3)]),
    active=st.integers(1, 5),
)
def test_whatever_the_company(pair, prompts, plain_of, seed, allocator, active):
    requests = mixed(6, prompts, seed)
    run = serve(pair, requests, allocator=allocator, max_active=active, clock=RoundClock())
    assert [result.tokens for result in run.results] == [plain_of(request) for request in requests]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_serves_what_the_cpu_decodes_one_by_one(golden, prompts, plain_of):
    """Drafting and verifying by the Triton kernel."""
    from cast.serving.kernel import covers

    folder = golden / "dflash_tiny_qwen3"
    pair = cast.load_pair(folder / "target", folder / "drafter", device="cuda")
    assert all(covers(part.head_dim, pair.dtype) for part in (pair.target, pair.drafter.config))
    requests = mixed(40, prompts, seed=3)
    run = serve(pair, requests, allocator=BestFirst(6), verifier=RaggedVerifier(), max_active=8, clock=RoundClock())
    assert [result.tokens for result in run.results] == [plain_of(request) for request in requests]
    assert max(report.active for report in run.rounds) == 8


def test_the_impossible_is_refused_alone_with_its_reason(pair, prompts, plain_of):
    possible = Request(prompts[0], max_new_tokens=5)
    requests = [
        Request([], max_new_tokens=5),
        possible,
        Request([1, 2, 960], max_new_tokens=5),
        Request([1] * 500, max_new_tokens=60),
        Request(prompts[1], max_new_tokens=0),
        Request(prompts[1], max_new_tokens=5, temperature=float("nan")),
        Request(prompts[1], max_new_tokens=300),
        possible,
    ]
    run = serve(pair, requests, max_active=2, memory_tokens=150, allocator=Uniform(8))
    assert [result.end == "refused" for result in run.results] == [True, False, *[True] * 5, False]
    reasons = [result.reason for result in run.results]
    words = ("empty", "", "vocabulary", "maximum", "max_new", "temperature", "memory", "")
    for reason, word in zip(reasons, words, strict=True):
        assert word in reason
        assert "\n" not in reason
        assert bool(word) == bool(reason)
    assert run.results[1].tokens == run.results[7].tokens == plain_of(possible)


def test_memory_bounds_how_many_are_active(pair, prompts):
    requests = [Request(prompts[0], max_new_tokens=8, stop_token_ids=())] * 5
    free = serve(pair, requests, allocator=Uniform(4), clock=RoundClock())
    assert free.slots == 8
    tight = serve(pair, requests, allocator=Uniform(4), memory_tokens=2 * free.slot_tokens + 1, clock=RoundClock())
    assert tight.slots == 2
    assert max(report.active for report in tight.rounds) == 2
    assert [r.tokens for r in tight.results] == [r.tokens for r in free.results]


def test_first_come_first_served(pair, prompts):
    requests = [Request(prompts[0], max_new_tokens=6, arrival=arrival) for arrival in (3, 0, 40, 1)]
    run = serve(pair, requests, allocator=Uniform(2), max_active=1, clock=RoundClock())
    admitted = [result.admitted for result in run.results]
    assert sorted(range(4), key=admitted.__getitem__) == [1, 3, 0, 2]
    assert admitted[2] == 40  # the server idled until it came
    for request, result in zip(requests, run.results, strict=True):
        assert request.arrival <= result.admitted <= result.first_token <= result.finished <= run.elapsed


def test_tokens_stream_as_they_come(pair, prompts):
    requests = mixed(6, prompts, seed=1)
    heard = [[] for _ in requests]
    calls = []

    def listen(index, tokens):
        calls.append(index)
        heard[index] += tokens

    run = serve(pair, requests, max_active=3, on_tokens=listen, clock=RoundClock())
    assert heard == [result.tokens for result in run.results]
    assert len(calls) > len(requests)


def test_arrivals_are_poisson_and_seeded():
    arrivals = poisson_arrivals(4000, rate=5, seed=1)
    assert arrivals == poisson_arrivals(4000, rate=5, seed=1) != poisson_arrivals(4000, rate=5, seed=2)
    gaps = np.diff([0, *arrivals])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(0.2, rel=0.08)


def test_a_wall_clock_waits():
    clock = WallClock()
    clock.wait_until(0.02)
    assert clock.now() >= 0.02
    clock.wait_until(0.0)


@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_the_law_is_kept_under_load(pair, prompts, sampler):
    """The second token of requests served together, against the target's own law, by total variation."""
    prompt, draws = prompts[2], 200
    requests = [
        Request(prompt, max_new_tokens=2, temperature=1.0, seed=seed, sampler=sampler, stop_token_ids=())
        for seed in range(draws)
    ]
    run = serve(pair, requests, allocator=BestFirst(6), max_active=32, clock=RoundClock())
    outputs = torch.tensor([result.tokens for result in run.results])
    exact = pair.to(torch.float64).target
    first = int(outputs[:, 0].mode().values)
    served = outputs[outputs[:, 0] == first, 1]
    ids = torch.tensor([*prompt, first])
    cache = exact.new_cache(len(ids))
    logits = exact.forward(ids, torch.arange(len(ids)), cache, causal=True, last_logits_only=True).logits[0]
    law = logits.softmax(-1)
    counts = torch.bincount(served, minlength=len(law)).double()
    distance = 0.5 * (counts / counts.sum() - law).abs().sum().item()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(law.expand(200, -1), len(served), True, generator=generator)
    distances = [0.5 * (torch.bincount(row, minlength=len(law)) / len(row) - law).abs().sum().item() for row in drawn]
    assert len(served) > 50
    assert distance <= max(distances)


@pytest.mark.slow
def test_memory_stays_flat_over_two_thousand_requests(pair, prompts):
    psutil = pytest.importorskip("psutil")
    process, seen = psutil.Process(), []
    requests = [Request(prompts[index % 4][:6], max_new_tokens=2, stop_token_ids=()) for index in range(2000)]
    finished = 0

    def listen(index, tokens):
        nonlocal finished
        finished += 1
        if finished % 800 == 0:
            gc.collect()
            seen.append(process.memory_info().rss / 2**20)

    run = serve(pair, requests, max_active=32, allocator=Uniform(3), on_tokens=listen, clock=RoundClock())
    assert all(result.end == "length" for result in run.results)
    assert max(seen) - seen[0] < 8  # MiB


def test_nonsense_is_refused(pair, prompts):
    request = Request(prompts[0], max_new_tokens=2)
    for options, what in (({"max_active": 0}, "max_active"), ({"memory_tokens": 0}, "memory_tokens")):
        with pytest.raises(CastError, match=what):
            serve(pair, [request], **options)
    with pytest.raises(CastError, match="rate"):
        poisson_arrivals(3, 0, 1)
    with pytest.raises(CastError, match="drafter"):
        serve(pair.with_drafter(None), [request])
    assert serve(pair, []).results == []


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"prompt": "text"}, "token ids"),
        ({"prompt": None}, "token ids"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 2**70}, "seed"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"arrival": float("nan")}, "arrival"),
        ({"arrival": "now"}, "arrival"),
    ],
    ids=str,
)
def test_one_malformed_request_does_not_take_the_others_down(pair, prompts, values, word):
    bad = dataclasses.replace(Request(prompts[0], max_new_tokens=2), **values)
    refused, served = serve(pair, [bad, Request(prompts[0], max_new_tokens=2)], clock=RoundClock()).results
    assert (refused.end, served.end) == ("refused", "length")
    assert word in refused.reason
    assert "\n" not in refused.reason


def test_what_is_no_request_allocator_or_verifier(pair, prompts):
    request = Request(prompts[0], max_new_tokens=2)
    assert "not a Request" in serve(pair, [prompts[0]]).results[0].reason
    for name, value in (
        ("allocator", "best_first"),
        ("verifier", "ragged"),
        ("clock", "wall"),
        ("on_tokens", 5),
        ("max_active", 1.5),
        ("memory_tokens", "x"),
    ):
        with pytest.raises(CastError, match=name):
            serve(pair, [request], **{name: value})
    with pytest.raises(CastError, match="requests must be"):
        serve(pair, request)
    with pytest.raises(CastError, match="a pair is needed"):
        serve(pair.target, [request])


def test_requests_may_be_a_generator(pair, prompts):
    run = serve(pair, (Request(prompt, max_new_tokens=2) for prompt in prompts[:2]))
    assert [result.end for result in run.results] == ["length", "length"]
