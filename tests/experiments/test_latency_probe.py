"""The latency probe: its rows, and that every call sees the same prefix."""

import dataclasses
import gc

import pytest
import torch

import cast
from cast import CastError
from cast.decode import loop
from cast.experiments import latency_probe
from cast.experiments.latency_probe import LatencyProbeSpec
from cast.experiments.records import LATENCY
from cast.models import DFlashDrafter, GraphTarget, KVCache


@pytest.fixture(params=["dflash_tiny_qwen3", "dflash_tiny_llama"])
def pair(request, golden_pair):
    return golden_pair(request.param)


def spec_of(**changes):
    return LatencyProbeSpec(
        **{"prefix_tokens": 50, "packed_tokens": (1, 4, 16, 33), "warmups": 2, "iterations": 5, **changes}
    )


def test_rows_are_valid_records(pair, as_records):
    batches = list(latency_probe.run(pair, spec_of()))
    assert len(batches) == 5
    for iteration, batch in enumerate(batches):
        assert [(row["component"], row["packed_tokens"]) for row in batch] == [
            *(("target_forward", n) for n in (1, 4, 16, 33)),
            ("draft", pair.drafter.block_size),
        ]
        assert {row["iteration"] for row in batch} == {iteration}
        assert {row["prefix_tokens"] for row in batch} == {50}
    frame = as_records([row for batch in batches for row in batch], LATENCY)
    assert len(frame) == 25
    assert (frame["latency_ms"] > 0).all()


def test_every_call_sees_the_same_prefix_and_commits_nothing(pair, monkeypatch):
    verify, calls, commits = latency_probe.verify, [], []
    commit = KVCache.commit

    def record_verify(target, cache, root, tree, taps):
        out = verify(target, cache, root, tree, taps)
        calls.append((cache.length, 0 if tree is None else len(tree), tuple(taps), out.logits.shape[0]))
        return out

    def record_commit(self, rows):
        commits.append((self.keys.shape[0], rows))
        commit(self, rows)

    monkeypatch.setattr(latency_probe, "verify", record_verify)
    monkeypatch.setattr(KVCache, "commit", record_commit)
    list(latency_probe.run(pair, spec_of()))
    assert len(calls) == 4 * (2 + 5)
    assert {(length, taps) for length, _, taps, _ in calls} == {(50, pair.drafter.target_layer_ids)}
    # The whole pack is verified and every row gets logits.
    assert {(nodes + 1, logits) for _, nodes, _, logits in calls} == {(n, n) for n in (1, 4, 16, 33)}
    of_target = [rows for layers, rows in commits if layers == pair.target.layers]
    assert of_target == [50]


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_trees_are_where_decoding_has_them(pair, monkeypatch, engine):
    """On the device for captured passes, so that the probe times no copy of the host's that no round makes."""
    if engine == "graph":
        pair = dataclasses.replace(pair, target=GraphTarget(pair.target, lambda: lambda run: run))
    places = {loop: set(), latency_probe: set()}

    def noting(module):
        def verify(target, cache, root, tree, taps):
            if tree is not None:
                places[module].add(tree.visible is None)
            return verify_itself(target, cache, root, tree, taps)

        verify_itself = module.verify
        return verify

    for module in places:
        monkeypatch.setattr(module, "verify", noting(module))
    cast.generate(pair, torch.arange(9), budget=15, max_new_tokens=8, stop_token_ids=[])
    list(latency_probe.run(pair, spec_of(iterations=1)))
    assert places[latency_probe] == places[loop] == {engine == "eager"}


def test_every_draft_takes_in_the_same_few_positions(pair, monkeypatch):
    draft, calls = DFlashDrafter.draft, []

    def record(self, target, features, root, cache, *rest):
        calls.append((len(features), cache.length))
        return draft(self, target, features, root, cache, *rest)

    monkeypatch.setattr(DFlashDrafter, "draft", record)
    list(latency_probe.run(pair, spec_of()))
    assert calls == [(48, 0)] + [(2, 48)] * 7


@pytest.mark.parametrize("prefix", [1, 2, 3])
def test_short_prefixes(pair, prefix):
    rows = [row for batch in latency_probe.run(pair, spec_of(prefix_tokens=prefix)) for row in batch]
    assert len(rows) == 25


def test_trees_are_drawn_once_by_the_seed(pair, monkeypatch):
    verify, trees = latency_probe.verify, []
    monkeypatch.setattr(
        latency_probe, "verify", lambda t, c, r, tree, taps: trees.append(tree) or verify(t, c, r, tree, taps)
    )

    def tokens(seed):
        trees.clear()
        list(latency_probe.run(pair, spec_of(seed=seed)))
        return [tree.tokens.tolist() for tree in trees if tree is not None and len(tree) == 32]

    first = tokens(0)
    assert all(row == first[0] for row in first)
    assert tokens(0) == first
    assert tokens(1) != first


def test_without_a_drafter_nothing_is_drafted(pair):
    rows = [row for batch in latency_probe.run(pair.with_drafter(None), spec_of()) for row in batch]
    assert {row["component"] for row in rows} == {"target_forward"}


@pytest.mark.parametrize(("prefix", "packed"), [(512, (1,)), (500, (1, 13)), (400, (128,))])
def test_past_the_models_maximum(pair, prefix, packed):
    with pytest.raises(CastError, match="512") as error:
        next(latency_probe.run(pair, spec_of(prefix_tokens=prefix, packed_tokens=packed)))
    assert "\n" not in str(error.value)


def test_a_pack_that_exactly_fits(pair):
    assert len(list(latency_probe.run(pair, spec_of(prefix_tokens=400, packed_tokens=(112,))))) == 5


def test_a_probe_left_half_way_leaves_nothing_switched(pair):
    probe = latency_probe.run(pair, spec_of())
    next(probe)
    assert gc.isenabled()
    assert not torch.is_inference_mode_enabled()
    probe.close()
    assert gc.isenabled()
