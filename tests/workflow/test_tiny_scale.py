"""One job of each kind of the paper's study, on tiny random models: every experiment's script really runs."""

import importlib
import json
from pathlib import Path

import pandas as pd
import pytest

from jobs import composition, schema
from jobs.study import expand

STUDY = expand("paper", scale="tiny")
# An experiment after those whose records it reads.
EXPERIMENTS = sorted(STUDY.experiments, key=lambda name: len(STUDY.sources(STUDY.of(name)[0])))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Measures a job in this process, once, after the jobs it reads; returns its record."""
    schema.register()
    folder, found = tmp_path_factory.mktemp("records"), {}

    def measure(job):
        if job not in found:
            inputs = [f"inputs.{key}={measure(source)}" for key, source in STUDY.sources(job).items()]
            found[job] = folder / Path(job.record).relative_to("results/paper-tiny")
            overrides = [*job.overrides, *inputs, f"out={found[job]}"]
            config = composition.compose_job(job.experiment, job.setting, job.composed_domain, overrides)
            script = config.experiment.script
            getattr(importlib.import_module(script), script)(config)
        return found[job]

    return measure


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_job_of_each_experiment_is_measured(experiment, record, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = record(STUDY.of(experiment)[0])
    if path.suffix == ".json":
        assert json.loads(path.read_text())["width"] is not None
    else:
        assert set(pd.read_parquet(path).status) == {"measured"}
