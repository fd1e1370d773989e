"""The probes behind several prefixes and of hybrid targets, as jobs: records, slopes, failures that are expected."""

import json
from pathlib import Path

import numpy as np
import pytest
from decode import decode
from probe import probe

from cast.errors import CastError
from cast.experiments.records import DECODE, HYBRID_LATENCY, LATENCY, read_records
from jobs import composition, pairs

VALUES = ["prefixes=[16,40]", "packed_tokens=[1,16,32,64]", "warmups=1", "iterations=2"]
HYBRID = ["prefixes=[16,40]", "packed_tokens=[1,2,16,64]", "warmups=1", "iterations=2"]


def provenance(record):
    return json.loads(Path(record).with_suffix(".json").read_text())


@pytest.fixture
def hybrid_job(tiny_job, tmp_path):
    def compose(*overrides):
        return composition.compose_job(
            "hybrid_probe", "tiny_qwen3_5", None, [*HYBRID, *overrides, f"out={tmp_path / 'h.parquet'}"]
        )

    return compose


def test_prefixes_take_turns_in_one_record_with_their_slopes(tiny_job):
    config = tiny_job("prefix_probe", *VALUES, domain=None)
    probe(config)
    frame = read_records(config.out, LATENCY)
    forward = frame[frame.component == "target_forward"]
    assert forward.groupby(["prefix_tokens", "packed_tokens"]).size().to_dict() == {
        (prefix, n): 2 for prefix in (16, 40) for n in (1, 16, 32, 64)
    }
    assert set(frame[frame.component == "draft"].prefix_tokens) == {16, 40}
    told = provenance(config.out)["slopes_ms_per_token"]
    assert [slope["prefix_tokens"] for slope in told] == [16, 40]
    for slope in told:
        own = forward[forward.prefix_tokens == slope["prefix_tokens"]]
        median = own.groupby("packed_tokens").latency_ms.median()
        assert slope["endpoints"] == pytest.approx((median[64] - median[16]) / 48)
        assert slope["least_squares"] == pytest.approx(np.polyfit([16, 32, 64], median[[16, 32, 64]], 1)[0])


def test_a_hybrid_target_is_probed_and_marked_as_random(hybrid_job):
    config = hybrid_job()
    probe(config)
    frame = read_records(config.out, HYBRID_LATENCY)
    assert frame.groupby(["prefix_tokens", "packed_tokens"]).size().eq(2).all()
    assert len(frame) == 16
    assert set(frame.weights) == {"random"}
    assert set(frame.drafter) == {"none"}
    assert len(provenance(config.out)["slopes_ms_per_token"]) == 2


def test_a_hybrid_checkpoint_that_is_not_served_is_a_record(hybrid_job, monkeypatch):
    def gated(*_):
        raise pairs.Unavailable("own/gated is gated")

    monkeypatch.setattr(pairs, "load_hybrid", gated)
    config = hybrid_job()
    probe(config)
    frame = read_records(config.out, HYBRID_LATENCY)
    assert set(frame.status) == {"failed"}
    assert len(frame) == 8
    assert frame.fused_kernels.isna().all()


def test_a_hybrid_target_is_not_decoded(tiny_job, tmp_path):
    config = composition.compose_job("width_sweep", "tiny_qwen3_5", "tiny", [f"out={tmp_path / 'd.parquet'}"])
    with pytest.raises(CastError, match="hybrid_probe"):
        decode(config)


def test_blocks_and_lengths_are_columns_of_one_record(tiny_job):
    block = tiny_job(
        "block_length", "block_sizes=[4,8]", "budgets=[3]", "max_new_tokens=6", "prompt_limit=1", "top_k=4"
    )
    decode(block)
    frame = read_records(block.out, DECODE)
    assert set(zip(frame.method, frame.block_size, frame.budget, strict=True)) == {
        ("autoregressive", 8, 0), ("dflash", 4, 3), ("dflash", 8, 7), ("cast", 4, 3), ("cast", 8, 3),
    }  # fmt: skip
    length = tiny_job("generation_length", "lengths=[4,9]", "budgets=[3]", "prompt_limit=1", out="length.parquet")
    decode(length)
    frame = read_records(length.out, DECODE)
    assert frame.groupby("max_new_tokens").size().to_dict() == {4: 3, 9: 3}


def test_a_failed_cell_names_every_block_and_length(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    config = tiny_job("block_length", "block_sizes=[4,8]", "lengths=[4,9]", "budgets=[3]")
    decode(config)
    frame = read_records(config.out, DECODE)
    assert len(frame) == 2 * (1 + 2 * 2)
    assert set(frame.reason) == {"no such GPU"}


@pytest.mark.parametrize("wrong", ["lengths=[0]", "block_sizes=[1]", "lengths=[]"])
def test_values_are_checked_before_anything_loads(tiny_job, wrong):
    with pytest.raises(CastError, match=wrong.split("=")[0]):
        decode(tiny_job("block_length", wrong))
