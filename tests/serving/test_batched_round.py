"""One batched round against single passes: drafting, both verifiers, and the commit."""

import numpy as np
import pytest
import torch

import cast
from cast import CastError
from cast.serving import (
    Batch,
    BestFirst,
    BucketedVerifier,
    Chain,
    DenseVerifier,
    RaggedVerifier,
    Request,
    Uniform,
    best_first_forest,
)
from cast.verify import verify

VERIFIERS = [RaggedVerifier(), DenseVerifier(), BucketedVerifier(2), BucketedVerifier(9)]
NAMES = ["ragged", "dense", "bucketed_2", "bucketed_9"]
SIZES = np.array([6, 0, 19])


@pytest.fixture(scope="module", params=["dflash_tiny_qwen3", "dflash_tiny_llama"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def exact(golden_pair, name):
    return golden_pair(name).to(torch.float64)


@pytest.fixture(scope="module")
def own_prompts(prompts_of, name):
    return prompts_of(name)


def after_two_rounds(pair, prompts):
    """Three requests of different lengths, after two rounds."""
    batch = Batch(pair, Uniform(5), RaggedVerifier(), slots=4, slot_tokens=120)
    for prompt in prompts[:3]:
        batch.admit(Request(prompt, max_new_tokens=64, stop_token_ids=()))
    for _ in range(2):
        batch.round()
    return batch


@pytest.fixture
def batch(exact, own_prompts):
    return after_two_rounds(exact, own_prompts)


def rebuilt(exact, active):
    """A single cache over everything the request has committed, computed from scratch, and its features."""
    ids = torch.tensor(active.history()[:-1])
    cache = exact.target.new_cache(len(ids) + 40)
    taps = exact.drafter.target_layer_ids
    output = exact.target.forward(ids, torch.arange(len(ids)), cache, causal=True, taps=taps)
    cache.commit(len(ids))
    return cache, torch.cat(output.taps, dim=-1)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=NAMES)
def test_the_caches_are_those_built_from_scratch(exact, own_prompts, verifier):
    batch = Batch(exact, BestFirst(6), verifier, slots=4, slot_tokens=130)
    for prompt in own_prompts[:4]:
        batch.admit(Request(prompt, max_new_tokens=64, stop_token_ids=()))
    for _ in range(3):
        batch.round()
    for slot, active in enumerate(batch.active):
        cache, features = rebuilt(exact, active)
        length = batch._store.lengths[slot]
        assert length == cache.length
        for held, expected in ((batch._store.keys, cache.keys), (batch._store.values, cache.values)):
            torch.testing.assert_close(held[:, slot, :, :length], expected[:, :, :length], atol=1e-9, rtol=0)
        fresh = len(active.features)
        torch.testing.assert_close(active.features, features[-fresh:], atol=1e-9, rtol=0)
        assert batch._features.lengths[slot] + fresh == length


def test_one_draft_serves_every_request(exact, batch):
    from cast.serving.passes import draft

    logits = draft(
        exact.drafter,
        exact.target,
        batch._features,
        [active.features for active in batch.active],
        [active.root for active in batch.active],
    )
    for request, active in enumerate(batch.active):
        _, features = rebuilt(exact, active)
        single = exact.drafter.draft(
            exact.target, features, torch.tensor([active.root]), exact.drafter.new_cache(len(features) + 16)
        )
        torch.testing.assert_close(logits[request], single, atol=1e-9, rtol=0)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=NAMES)
def test_one_pass_verifies_every_pack(exact, batch, random_scores, verifier):
    scores, tokens = random_scores(7, 3, 6, 3)
    forest = best_first_forest(scores, tokens, SIZES)
    taps = exact.drafter.target_layer_ids
    roots = [active.root for active in batch.active]
    verified = verifier.verify(exact.target, batch._store, roots, forest, taps)
    assert len(verified.logits) == SIZES.sum() + 3 + verified.padded_rows
    for request, (active, start) in enumerate(zip(batch.active, verified.starts, strict=True)):
        cache, _ = rebuilt(exact, active)
        single = verify(exact.target, cache, torch.tensor([active.root]), forest.tree(request), taps)
        rows = slice(start, start + SIZES[request] + 1)
        torch.testing.assert_close(verified.logits[rows], single.logits, atol=1e-9, rtol=0)
        for tap, expected in zip(verified.taps, single.taps, strict=True):
            torch.testing.assert_close(tap[rows], expected, atol=1e-9, rtol=0)


def test_the_kernel_verifies_every_pack(golden, prompts, random_scores, monkeypatch):
    """By Triton's interpreter where there is no GPU; the other pair's heads are of a size that it does not cover."""
    pytest.importorskip("triton", reason="the kernel's tests need triton: pip install triton")
    from cast.serving.kernel import TreeAttention

    folder, device = golden / "dflash_tiny_qwen3", "cuda" if torch.cuda.is_available() else "cpu"
    pair = cast.load_pair(folder / "target", folder / "drafter", device=device)
    batch = after_two_rounds(pair, prompts)
    forest = best_first_forest(*random_scores(7, 3, 6, 3), SIZES)
    roots = [active.root for active in batch.active]
    dense = DenseVerifier().verify(pair.target, batch._store, roots, forest)
    monkeypatch.setattr("cast.serving.passes.ragged_attention", TreeAttention)
    ragged = RaggedVerifier().verify(pair.target, batch._store, roots, forest)
    for size, start, padded in zip(SIZES + 1, ragged.starts, dense.starts, strict=True):
        rows, same = ragged.logits[start : start + size], dense.logits[padded : padded + size]
        torch.testing.assert_close(rows, same, atol=1e-4, rtol=1e-4)


def test_only_the_dense_pass_pads(exact, batch, random_scores):
    forest = best_first_forest(*random_scores(7, 3, 6, 3), SIZES)
    roots = [active.root for active in batch.active]
    padded = [verifier.verify(exact.target, batch._store, roots, forest).padded_rows for verifier in VERIFIERS]
    assert padded == [0, 13 + 19, 6, 0]  # nothing, up to 19, pairs (0, 6) and (19), each its own


def test_a_request_that_leaves_takes_nobody_along(pair, prompts, plain_of):
    requests = [Request(prompts[i], max_new_tokens=n, stop_token_ids=()) for i, n in enumerate((3, 12, 6, 9))]
    batch = Batch(pair, Uniform(4), RaggedVerifier(), slots=4, slot_tokens=80)
    for request in requests:
        batch.admit(request)
    finished = []
    while batch.active:
        batch.round()
        finished += batch.retire()
    assert [active.request for active in finished] != requests  # the shorter ones left first
    for active in finished:
        assert active.tokens == plain_of(active.request)


def test_what_a_round_reports(pair, prompts):
    batch = Batch(pair, BestFirst(8), DenseVerifier(), slots=3, slot_tokens=100, traced=True)
    for prompt in prompts[:3]:
        batch.admit(Request(prompt, max_new_tokens=40, stop_token_ids=()))
    report, emitted = batch.round()
    assert (report.active, report.nodes) == (3, 24)
    assert report.padded_rows == 3 * (1 + report.widest) - 27
    assert report.committed == sum(map(len, emitted)) == sum(active.committed[0] for active in batch.active)
    assert 0 < report.draft_ms + report.verify_ms < report.ms
    untraced = Batch(pair, BestFirst(8), DenseVerifier(), slots=1, slot_tokens=100)
    untraced.admit(Request(prompts[0], max_new_tokens=40))
    assert np.isnan(untraced.round()[0].verify_ms)


def test_a_request_without_room_is_refused_and_the_others_go_on(pair, prompts, plain_of):
    need = Batch.tokens_needed(pair, Uniform(4), len(prompts[0]), 6, 1)
    batch = Batch(pair, Uniform(4), RaggedVerifier(), slots=1, slot_tokens=need)
    fitting = Request(prompts[0], max_new_tokens=6, stop_token_ids=())
    for refused in (Request(prompts[0], max_new_tokens=7), fitting):
        with pytest.raises(CastError, match="no slot"):
            batch.admit(refused)
        if not batch.active:
            batch.admit(fitting)
    finished = []
    while not finished:
        batch.round()
        finished = batch.retire()
    assert finished[0].tokens == plain_of(fitting)


def test_serving_needs_a_block_drafter(pair):
    with pytest.raises(CastError, match="DFlash drafter"):
        Batch(pair.with_drafter(None), Chain(7), RaggedVerifier(), slots=1, slot_tokens=9)
    assert cast.serving.Batch is Batch


def test_a_verifier_has_a_bucket():
    with pytest.raises(CastError, match="at least 1"):
        BucketedVerifier(0)
