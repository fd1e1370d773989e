"""The scripts that compare outputs and laws: records, failures, and a violation that is told after it is written."""

import pytest
from equivalence import equivalence
from total_variation import total_variation

from cast.errors import CastError
from cast.experiments.records import EQUIVALENCE, TOTAL_VARIATION, read_records
from jobs import pairs
from workflow.lib import outcome

COMPARE = ["prompt_limit=2", "max_new_tokens=12", "budgets=[7]"]
DRAW = ["prompt_limit=1", "draws=[20,60]", "floor_samples=20", "budget=7"]
JOBS = [
    (equivalence, "greedy_equivalence", COMPARE, EQUIVALENCE),
    (total_variation, "total_variation", DRAW, TOTAL_VARIATION),
]


@pytest.mark.parametrize(("script", "experiment", "overrides", "schema"), JOBS)
def test_a_record_and_a_failure(tiny_job, monkeypatch, script, experiment, overrides, schema):
    config = tiny_job(experiment, *overrides)
    script(config)
    frame = read_records(config.out, schema)
    assert set(frame["status"]) == {"measured"}
    if schema is TOTAL_VARIATION:
        assert set(frame["dtype"]) == {"float64", "bfloat16"}  # of the rows, not of the setting
        assert set(frame["seed"]) == {0}
    else:
        assert set(frame["method"]) == {"autoregressive", "dflash", "cast"}

    def gated(*_):
        raise pairs.Unavailable("own/gated is gated")

    monkeypatch.setattr(pairs, "load", gated)
    config = tiny_job(experiment, *overrides, out="failed.parquet")
    script(config)
    frame = read_records(config.out, schema)
    assert set(frame["reason"]) == {"own/gated is gated"}


def test_a_violation_is_kept_and_told_and_fails_the_study(tiny_job, monkeypatch, capsys, tmp_path):
    from cast.experiments import greedy_equivalence

    generate = greedy_equivalence.generate

    def broken(pair, input_ids, **options):
        out = generate(pair, input_ids, **options)
        if options["method"] == "dflash":
            out.tokens[3] = (out.tokens[3] + 1) % 90
        return out

    monkeypatch.setattr(greedy_equivalence, "generate", broken)
    config = tiny_job("greedy_equivalence", *COMPARE, out="greedy_equivalence/tiny_qwen3/tiny.parquet")
    equivalence(config)
    assert "violation: 2 outputs break the rule" in capsys.readouterr().err
    frame = read_records(config.out, EQUIVALENCE)
    assert outcome.main(str(tmp_path)) == 1
    assert "greedy_equivalence/tiny_qwen3/tiny: 2 outputs" in capsys.readouterr().err
    assert frame[frame["verdict"] == "violation"]["method"].tolist() == ["dflash"] * 2


def test_gap_edges_are_checked_before_anything_loads(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(CastError, match="gap_edges must ascend from 0"):
        equivalence(tiny_job("greedy_equivalence", *COMPARE, "gap_edges=[1.0,0.5]"))
