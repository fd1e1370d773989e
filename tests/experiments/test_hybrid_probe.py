"""The probe of hybrid targets: its rows, and that every pass gets a copy of the prefix of its own."""

import pytest
import torch

from cast import CastError
from cast.experiments import hybrid_probe, latency_probe
from cast.experiments.latency_probe import LatencyProbeSpec
from cast.experiments.records import HYBRID_LATENCY
from cast.models.hybrid import HybridTarget, load_hybrid

SPEC = LatencyProbeSpec(prefix_tokens=(20, 40), packed_tokens=(1, 2, 16), warmups=2, iterations=3)


@pytest.fixture(scope="module")
def target():
    return load_hybrid("random:qwen3_5", device="cpu")


def test_rows_are_valid_records(target, as_records):
    batches = list(hybrid_probe.run(target, SPEC))
    assert [(row["prefix_tokens"], row["packed_tokens"]) for row in batches[0]] == [
        (prefix, n) for prefix in (20, 40) for n in (1, 2, 16)
    ]
    frame = as_records([row for batch in batches for row in batch], HYBRID_LATENCY)
    assert len(frame) == 18
    assert set(frame["weights"]) == {"random"}
    assert set(frame["fused_kernels"]) == {"none"}
    assert set(frame["component"]) == {"target_forward"}


def test_every_pass_sees_the_same_prefix_and_gives_the_same_logits(target, monkeypatch):
    forward, seen = HybridTarget.forward, {}

    def record(self, token_ids, cache):
        logits = forward(self, token_ids, cache)
        seen.setdefault(tuple(token_ids.tolist()), []).append((id(cache), logits))
        return logits

    monkeypatch.setattr(HybridTarget, "forward", record)
    list(hybrid_probe.run(target, SPEC))
    assert len(seen) == 6  # a pack of its own for each prefix and size
    for passes in seen.values():
        assert len(passes) == 1 + 2 + 3  # the look at what runs, warm-ups, timed
        assert all(torch.equal(logits, passes[0][1]) for _, logits in passes)


def test_copies_are_made_outside_the_timer(target, monkeypatch):
    timed, copies = [], []
    copy_of, now = hybrid_probe.copy_of, latency_probe.now_ms
    monkeypatch.setattr(hybrid_probe, "copy_of", lambda cache: copies.append(len(timed)) or copy_of(cache))
    monkeypatch.setattr(latency_probe, "now_ms", lambda device: timed.append(0) or now(device))
    list(hybrid_probe.run(target, SPEC))
    assert len(timed) == 2 * 18
    assert all(clock_reads % 2 == 0 for clock_reads in copies)  # never between the two reads of a call


def test_past_the_models_maximum(target):
    spec = LatencyProbeSpec(prefix_tokens=(8, 32760), packed_tokens=(1, 16))
    with pytest.raises(CastError, match="32768"):
        hybrid_probe.run(target, spec)
