"""The commands around a study: what they say of it, delete and refuse; make's among them."""

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from cast.experiments.failures import ENDED_AT_ONCE
from jobs import composition
from jobs.study import expand, load_study
from workflow import lib
from workflow.lib import estimate, options, outcome, plan, retry

ROOT = Path(__file__).resolve().parents[2]


def test_a_record_of_another_configuration_counts_as_to_be_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = expand("smoke").of("latency_probe")
    assert estimate.to_measure(jobs) == jobs
    record = tmp_path / jobs[0].record
    record.parent.mkdir(parents=True)
    record.touch()
    for digest, left in ((composition.config_digest(jobs[0].compose()), []), ("another", jobs)):
        record.with_suffix(".json").write_text(f'{{"config_digest": "{digest}"}}')
        assert estimate.to_measure(jobs) == left


@pytest.mark.parametrize("experiment", ["replay", "width"])
def test_a_record_computed_from_others_counts_as_done(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (job, *_) = expand("embedded-full").of(experiment)
    told = composition.plain(job.compose())
    told["inputs"] = {key: f"elsewhere/{key}.parquet" for key in told["inputs"]}
    record = tmp_path / job.record
    record.parent.mkdir(parents=True)
    record.touch()
    for changed, left in (({}, []), ({"top_k": 3}, [job])):
        config = told | changed
        digest = composition.config_digest(OmegaConf.create(config))
        record.with_suffix(".json").write_text(json.dumps({"config": config, "config_digest": digest}))
        assert estimate.to_measure([job]) == left


def failed_sweep(path, *rows):
    columns = ["method", "budget", "status", "reason"]
    frame = pd.DataFrame(rows, columns=columns).assign(experiment="width_sweep", setting="a", domain="math")
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)


def test_a_prompt_that_ended_at_once_fails_no_cell_unless_it_was_the_only_one(tmp_path, capsys):
    path = tmp_path / "width_sweep/a/math.parquet"
    ended = ("cast", 7, "failed", ENDED_AT_ONCE)
    failed_sweep(path, ("cast", 7, "measured", ""), ended)
    assert outcome.main(str(tmp_path)) == 0
    failed_sweep(path, ("cast", 15, "measured", ""), ended)
    assert outcome.main(str(tmp_path)) == 1
    failed_sweep(path, ("cast", 7, "measured", ""), ("cast", 7, "failed", "out of memory"))
    assert outcome.main(str(tmp_path)) == 1
    assert "make retry" in capsys.readouterr().err


def test_results_that_are_not_there_have_no_good_outcome(tmp_path, capsys):
    assert outcome.main(str(tmp_path / "nope")) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError(), ValueError("torn\nfile"), OSError("torn")])
def test_a_record_that_cannot_be_read_is_a_failure(error, tmp_path, monkeypatch):
    path = tmp_path / "width_sweep/a/math.parquet"
    failed_sweep(path, ("cast", 7, "measured", ""))
    monkeypatch.setattr(outcome.pd, "read_parquet", lambda _: (_ for _ in ()).throw(error))
    assert outcome.failures(tmp_path) == {path: [f"{path}: {'torn' if str(error) else 'ValueError'}"]}


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("outcome", "<results>"),
        ("retry", "<results>"),
        ("resume", "<results>"),
        ("sync", "<results>"),
        ("plan", "<name> [<overrides>] [<scale>]"),
        ("estimate", "<study> [<overrides>] [<scale>]"),
    ],
)
def test_a_command_by_hand_tells_its_usage(name, usage, monkeypatch, capsys):
    for arguments in ([], ["a", "b", "c", "d"]):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as ended:
            lib.run(importlib.import_module(f"workflow.lib.{name}").main)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"usage: python -m workflow.lib.{name} {usage}\n"


def test_a_command_by_hand_finds_the_jobs():
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    told = subprocess.run(
        [sys.executable, "-m", "workflow.lib.plan", "nope"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert told.returncode == 2
    assert told.stderr.startswith("error: ") and len(told.stderr.splitlines()) == 1


def test_retry_deletes_the_records_with_failed_cells_only(tmp_path):
    whole, broken = tmp_path / "width_sweep/a/math.parquet", tmp_path / "width_sweep/a/code.parquet"
    failed_sweep(whole, ("cast", 7, "measured", ""))
    failed_sweep(broken, ("cast", 7, "failed", "out of memory"))
    assert retry.main(str(tmp_path)) == 0
    assert whole.exists()
    assert not broken.exists()


@pytest.mark.parametrize(
    ("told", "warning"),
    [
        ({"other_users_before": [{"pid": 1}]}, "warning: other processes used the device beside 1 record(s)"),
        ({"readings_after": {"slowed_by": ["power brake"]}}, "warning: the GPU's clocks were lowered during 1 record"),
        ({"readings_after": {"slowed_by": ["power cap"]}, "other_users_after": []}, ""),
    ],
)
def test_a_device_that_was_shared_or_slowed_is_a_warning(told, warning, tmp_path, capsys):
    path = tmp_path / "width_sweep/a/math.parquet"
    failed_sweep(path, ("cast", 7, "measured", ""))
    path.with_suffix(".json").write_text(json.dumps(told))
    assert outcome.main(str(tmp_path)) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(warning)
    assert not warning or lines[0].startswith(warning)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (["STUDY="], "no study ''; known: embedded"),
        (["STUDY=nope"], "no study 'nope'"),
        (["STUDY=../study/smoke"], "no study '../study/smoke'"),
        (["STUDY=smoke /"], "no study 'smoke /'"),
        (["STUDY=smoke", "SCALE=tiny /"], "no scale 'tiny /'; known: tiny"),
    ],
)
@pytest.mark.parametrize("target", ["clean-study", "reproduce"])
def test_make_takes_only_the_names_there_are(target, variables, told):
    finished = subprocess.run(
        ["make", "--no-print-directory", "-n", target, *variables],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert len(finished.stderr.splitlines()) == 1
    assert told in finished.stderr


@pytest.mark.parametrize("target", ["reproduce", "report", "resume", "retry"])
def test_make_n_runs_nothing(target):
    # Were a line of it run, it would not find its program.
    finished = subprocess.run(
        ["make", "-n", target, "BIN=/there/is/no/such"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "/there/is/no/such/" in finished.stdout


def test_make_passes_overrides_on_as_they_are():
    variables = ["STUDY=smoke", "OVERRIDES=['data.root=/x']"]
    finished = subprocess.run(
        ["make", "--no-print-directory", "-n", "plan", *variables],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    asked = finished.stdout.splitlines()[-1].split("workflow.lib.plan ", 1)[1]
    words = shlex.split(asked)
    assert words == ["smoke", "['data.root=/x']", ""]
    assert options.strings("overrides", words[1]) == ("data.root=/x",)


def test_the_estimate_counts_time_limits():
    embedded = expand("embedded")
    sweep = embedded.of("width_sweep")[0]
    assert estimate.seconds(sweep) == sweep.compose().time_limit_s + sweep.estimate_s
    told = estimate.tell("embedded", embedded.jobs)
    assert "6 x width_sweep" in told
    assert told.endswith(" min")


def test_every_measurement_of_the_paper_has_jobs_or_a_reason():
    study, content = expand("paper"), load_study("paper")
    yielding = plan.jobs_of(study, "paper")
    assert not set(yielding) & set(content.not_here)
    assert sorted([*yielding, *content.not_here]) == plan.INVENTORY
    # No job is measured for nothing, and an experiment yields what its own file says.
    assert {job for jobs in yielding.values() for job in jobs} == set(study.jobs)
    for measurement, jobs in yielding.items():
        assert any(measurement in job.compose().experiment.yields for job in jobs), measurement


def test_the_plan_has_a_line_for_each_measurement_and_device(capsys):
    assert plan.main("paper") == 0
    told = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in told if line.startswith("E09")] == ["E09"]
    assert {line[:3] for line in told} >= set(plan.INVENTORY)
    assert any(line.startswith("a6000: ") and "jobs, about" in line for line in told)
    assert any(line.startswith("downloads: ") for line in told)
