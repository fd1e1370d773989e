"""Jobs of the tiny pair, run inside the test's own process."""

import pytest


@pytest.fixture
def tiny_job(tmp_path, monkeypatch):
    """Composes a job on ``tiny_qwen3`` as a script's command line would; records go to the test's folder."""
    from jobs import composition, schema

    schema.register()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def compose(experiment, *overrides, domain="tiny", out="record.parquet"):
        return composition.compose_job(experiment, "tiny_qwen3", domain, [*overrides, f"out={tmp_path / out}"])

    return compose
