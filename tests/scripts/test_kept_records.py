"""What is finished is kept: a job writes over no other's record, and a retry measures what is missing."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from decode import decode
from predict import predict
from probe import probe
from score_log import score_log
from scores import scores

from cast.errors import CastError
from cast.experiments import width_sweep
from cast.experiments.partial import Partial
from cast.experiments.prompts import load_prompts
from cast.experiments.records import DECODE, SCORE_LOG, SCORES, read_records
from jobs import composition, inputs, measuring, pairs
from workflow.lib import retry

SWEEP = ["prompt_limit=2", "max_new_tokens=8", "budgets=[7]"]
PROBE = ["prefix_tokens=16", "packed_tokens=[1,4]", "warmups=1", "iterations=2"]


def test_a_finished_record_is_found_and_no_other_job_writes_over_it(tiny_job, monkeypatch, capsys):
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    before = {path: path.read_bytes() for path in Path(config.out).parent.glob("record.*")}
    monkeypatch.setattr(pairs, "load", lambda *_: pytest.fail("it was measured again"))
    capsys.readouterr()
    decode(config)
    assert capsys.readouterr().out == f"records: {config.out}, measured before; delete it to measure again\n"
    for job, other in (
        (decode, tiny_job("width_sweep", *SWEEP, "seed=1")),
        (probe, tiny_job("latency_probe", *PROBE, domain=None)),
        (decode, config),
    ):
        if other is config:  # the same words, and other prompts behind them
            monkeypatch.setattr(inputs, "prompt_digest", lambda _: "edited")
        with pytest.raises(CastError, match=r"is a record of another job.*; delete it, or name another file with out="):
            job(other)
    assert {path: path.read_bytes() for path in Path(config.out).parent.glob("record.*")} == before


def test_a_record_of_the_moment_between_look_and_claim_is_kept(tiny_job):
    """Two jobs that start together: the second finds no record, and then the first has finished."""
    config = tiny_job("width_sweep", *SWEEP)
    digest = composition.config_digest(config)
    Path(config.out).with_suffix(".json").write_text(f'{{"config_digest": "{digest}"}}')
    pd.DataFrame({"status": ["measured"]}).to_parquet(config.out)
    with pytest.raises(CastError, match="delete it"), measuring.measurement(config, Path(config.out)):
        pytest.fail("it was claimed")


@pytest.mark.parametrize("reads", [True, False])
def test_a_record_with_failed_cells_is_tried_again(tiny_job, monkeypatch, reads):
    config = tiny_job("latency_probe", *PROBE, domain=None)
    with monkeypatch.context() as patched:
        patched.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
        probe(config)
        with pytest.raises(CastError, match="another job"):
            probe(tiny_job("latency_probe", *PROBE, "seed=1", domain=None))
    if not reads:
        os.truncate(config.out, 100)
    probe(config)
    assert set(pd.read_parquet(config.out).status) == {"measured"}


def test_what_is_computed_from_records_is_computed_again_for_the_same_configuration(tiny_job):
    config = tiny_job("width", "inputs.latency=p.parquet", "inputs.scores=s.parquet", out="w.json")
    for digest, message in (
        ("other", "another job"),
        (composition.config_digest(config), r"p\.parquet: no such record"),
    ):
        Path(config.out).write_text(f'{{"config_digest": "{digest}"}}')
        with pytest.raises(CastError, match=message):
            predict(config)


def test_a_retry_measures_what_lacked_memory_and_nothing_that_is_finished(tiny_job, tmp_path, monkeypatch, capsys):
    """Width 15 does not fit for the second prompt, still does not, and then does."""
    config = tiny_job("width_sweep", "prompt_limit=2", "max_new_tokens=8", "budgets=[7,15]", out="a/b/c.parquet")
    whole, decoded, memory = width_sweep.generate, [], {}
    second = [int(number) for number in load_prompts(config.domain)[1].text.split()]

    def runs_out(pair, input_ids, **options):
        if options["max_new_tokens"] == 8 and "traced" not in options:
            decoded.append(input_ids.tolist() == second)
        if options.get("budget") == 15 and input_ids.tolist() == second and not memory["suffices"]:
            raise MemoryError
        return whole(pair, input_ids, **options)

    monkeypatch.setattr(width_sweep, "generate", runs_out)
    monkeypatch.setattr(width_sweep, "WARM_UP_TOKENS", 4)
    found = []
    for suffices in (False, False, True):
        memory["suffices"] = suffices
        decoded.clear()
        decode(config)
        found.append((pd.read_parquet(config.out).set_index("prompt_id"), list(decoded)))
        retry.main(str(tmp_path))
    (first, one), (still, two), (now, three) = found
    assert one == [False] * 4 + [True] * 4
    assert two == [True]  # tried, and nothing measured
    pd.testing.assert_frame_equal(still, first)
    assert three == [True] * 5
    assert set(now.status) == {"measured"}
    assert len(now) == len(first)
    pd.testing.assert_frame_equal(now.loc["tiny/0"], first.loc["tiny/0"])
    assert now.session.groupby("prompt_id").nunique().eq(1).all()
    assert now.session.nunique() == 2
    assert not Path(f"{config.out}.partial").exists()
    told = capsys.readouterr().err.splitlines()
    assert f"deleted {config.out}; what failed is measured again" in told
    assert f"no failed cell in {tmp_path}" in told


def test_a_served_unit_that_failed_is_not_done(tiny_job):
    config = tiny_job("width_sweep", *SWEEP)
    with Partial(config.out, measuring.resume_digest(config, "cpu")) as partial:
        partial.append("2/0", [{"status": "failed", "reason": "refused"}, {"goodput": 1.0}], 3.0)
        partial.append("2/1", [{"goodput": 1.0}], 4.0)
        partial.append("masses", np.zeros(2), 5.0)
    with measuring.measurement(config, Path(config.out)) as job:
        assert job.done == {"2/1", "masses"}
        assert job.lacking == {"2/0": [{"status": "failed", "reason": "refused"}]}
        job.partial.append("2/0", [{"goodput": 2.0}], 6.0)
        assert [unit.key for unit in job.partial.units] == ["2/0", "2/1", "masses"]
    with measuring.measurement(config, Path(config.out)) as job:
        assert job.done == {"2/0", "2/1", "masses"}


@pytest.mark.parametrize(
    ("experiment", "job", "schema", "overrides"),
    [
        ("width_sweep", decode, DECODE, ["prompt_limit=2", "max_new_tokens=8", "budgets=[7]"]),
        ("drafter_scores", scores, SCORES, ["prompt_limit=2", "max_new_tokens=8"]),
        ("score_log", score_log, SCORE_LOG, ["prompt_limit=2", "max_new_tokens=8", "top=40"]),
    ],
)
def test_a_retry_goes_on_where_memory_did_not_suffice(tiny_job, monkeypatch, experiment, job, schema, overrides):
    protocol = importlib.import_module(f"cast.experiments.{experiment}")
    whole, done_before = protocol.run, []

    def runs_out(*arguments, done, **options):
        done_before.append(set(done))
        yield next(whole(*arguments, done=done, **options))
        raise MemoryError

    config = tiny_job(experiment, *overrides)
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "run", runs_out)
        job(config)
        assert "failed" in set(read_records(config.out, schema).status)
        Path(config.out).unlink()  # as make retry does
        job(config)
        assert done_before == [set(), {"tiny/0"}]
    Path(config.out).unlink()
    job(config)
    assert set(read_records(config.out, schema).status) == {"measured"}
    assert len(json.loads(Path(config.out).with_suffix(".json").read_text())["sessions"]) == 3
    assert not Path(f"{config.out}.partial").exists()
