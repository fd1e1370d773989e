"""One job of each kind of the paper's study, on tiny random models: every measuring script really runs."""

import importlib
import json
from pathlib import Path

import pandas as pd
import pytest

from jobs import composition, schema
from jobs.study import expand

STUDY = expand("paper", scale="tiny")
# The first job of each script, in the order of the study: sources come before what is computed from them.
KINDS = {STUDY.of(name)[0].compose().experiment.script: STUDY.of(name)[0] for name in reversed(STUDY.experiments)}


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


@pytest.mark.parametrize("script", reversed(KINDS))
def test_one_job_of_each_script_is_measured(script, record, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = record(KINDS[script])
    if path.suffix == ".json":
        assert json.loads(path.read_text())["width"] is not None
    else:
        assert set(pd.read_parquet(path).status) == {"measured"}
