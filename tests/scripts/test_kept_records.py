"""What is finished is kept: a job writes over no other's record, and a retry measures what is missing."""

import os
from pathlib import Path

import pandas as pd
import pytest
from decode import decode
from predict import predict
from probe import probe

from cast.errors import CastError
from jobs import composition, measuring, pairs

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
    ):
        with pytest.raises(CastError, match="is a record of another job; delete it, or name another file with out="):
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
