"""The drafter comparison as a job: a setting's baselines, by configuration."""

import json
from pathlib import Path

import pytest
from decode import decode

from cast.errors import CastError
from cast.experiments.records import DECODE, read_records
from jobs import composition, inputs, measuring

METHODS = "methods=[autoregressive,dflash,cast,eagle3,dart,ngram]"
SMALL = ["prompt_limit=1", "max_new_tokens=10", "budgets=[7]", "method_options.dart.budgets=[8]"]


@pytest.fixture
def job(tiny_job, tmp_path):
    def compose(*overrides, setting="tiny_drafters"):
        overrides = [*SMALL, *overrides, f"out={tmp_path / 'record.parquet'}"]
        return composition.compose_job("drafter_comparison", setting, "tiny", overrides)

    return compose


def test_every_method_on_one_target(job):
    config = job(METHODS)
    decode(config)
    frame = read_records(config.out, DECODE)
    assert set(zip(frame.method, frame.drafter, frame.budget, strict=True)) == {
        ("autoregressive", "tiny_dflash_b16", 0), ("dflash", "tiny_dflash_b16", 15), ("cast", "tiny_dflash_b16", 7),
        ("eagle3", "tiny_eagle3", 15), ("eagle3", "tiny_eagle3", 59), ("dart", "tiny_dart", 8),
        ("ngram", "tiny_dflash_b16", 10),
    }  # fmt: skip
    assert (frame.departure == -1).all()
    told = json.loads(Path(config.out).with_suffix(".json").read_text())
    assert sum("golden/eagle3_tiny" in path for path in told["checkpoints"]) >= 4


def test_the_fast_composition_is_hydras(job):
    for setting in ("tiny_drafters", "h100_sxm-qwen3_8b", "a6000-qwen3_8b"):
        fast = composition._merge("drafter_comparison", setting, "tiny", tuple(SMALL), composition.CONF)
        arguments = composition.job_arguments("drafter_comparison", setting, "tiny", SMALL)
        assert composition.plain(fast) == composition.plain(composition.compose_with_hydra("config", arguments))


def test_a_method_whose_head_the_setting_lacks(job):
    with pytest.raises(CastError, match=r"setting tiny_qwen3 has no eagle3 head; give it one in baselines.eagle3"):
        measuring.check_values(job(setting="tiny_qwen3"))


def test_a_head_counts_only_for_the_methods_that_use_it(job):
    used, unused = job(), job("methods=[autoregressive,cast,ngram]")
    assert "baselines" in composition.measured_part(used)
    assert "baselines" not in composition.measured_part(unused)
    assert any("dart_tiny" in path for path in inputs.checkpoint_digests(job(METHODS)))
    assert not any("eagle3_tiny/drafter" in path for path in inputs.checkpoint_digests(unused))
