"""Cells that cannot be measured here: a record says why, and a mistake of the program or of the user is none."""

import json
from pathlib import Path

import pytest
from decode import decode
from predict import predict
from probe import probe
from scores import scores

from cast.errors import CastError, HubUnavailable
from cast.experiments.records import DECODE, LATENCY, SCORES, read_records
from jobs import pairs

SWEEP = ["prompt_limit=2", "max_new_tokens=12", "budgets=[7,15]"]
PROBE = ["prefix_tokens=16", "packed_tokens=[1,4,16,32,64,128]", "warmups=1", "iterations=2"]
SCORE = ["rounds=10", "max_new_tokens=24"]


def test_a_checkpoint_the_hub_does_not_serve_is_a_record_and_not_an_error(tiny_job, monkeypatch):
    def gated(*_):
        raise pairs.Unavailable("own/gated is gated")

    monkeypatch.setattr(pairs, "load", gated)
    for job, schema, config in (
        (decode, DECODE, tiny_job("width_sweep", *SWEEP)),
        (probe, LATENCY, tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet")),
        (scores, SCORES, tiny_job("drafter_scores", *SCORE, out="s.parquet")),
    ):
        job(config)
        frame = read_records(config.out, schema)
        assert set(frame.status) == {"failed"}
        assert set(frame.reason) == {"own/gated is gated"}
        assert json.loads(Path(config.out).with_suffix(".json").read_text())["records"] == len(frame)


def test_a_width_without_its_probe_says_why(tiny_job, monkeypatch, tmp_path):
    scored = tiny_job("drafter_scores", *SCORE, out="s.parquet")
    scores(scored)
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    probed = tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet")
    probe(probed)
    inputs = [f"inputs.latency={probed.out}", f"inputs.scores={scored.out}"]
    predict(tiny_job("width", *inputs, out="w.json"))
    width = json.loads((tmp_path / "w.json").read_text())
    assert width["width"] is None
    assert "no such GPU" in width["reason"]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried ...")],
)
def test_memory_that_does_not_suffice_keeps_what_was_measured(tiny_job, monkeypatch, error):
    from cast.experiments import width_sweep

    whole = width_sweep.run

    def runs_out(*arguments, **options):
        yield next(whole(*arguments, **options))
        raise error

    monkeypatch.setattr(width_sweep, "run", runs_out)
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    assert set(frame[frame.status == "measured"].prompt_id) == {"tiny/0"}
    assert frame[frame.status == "failed"].reason.str.startswith("out of memory").all()


def test_memory_that_does_not_suffice_at_one_width_costs_the_others_nothing(tiny_job, monkeypatch):
    from cast.experiments import width_sweep

    whole = width_sweep.generate

    def runs_out(*arguments, **options):
        if options.get("budget") == 15:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried ...")
        return whole(*arguments, **options)

    monkeypatch.setattr(width_sweep, "generate", runs_out)
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    failed = frame[frame.status == "failed"]
    assert set(failed.budget) == {15}
    assert failed.reason.str.startswith("out of memory").all()
    assert set(failed.prompt_id) == set(frame.prompt_id)
    assert len(frame[frame.budget == 7]) == len(failed) * 2  # the chain of block 8, and the tree


def test_a_failed_row_names_the_device_of_its_setting(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    assert set(read_records(config.out, DECODE).device) == {"cpu_1thread"}


def test_a_mistake_of_the_program_is_no_record(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: 1 / 0)
    config = tiny_job("width_sweep", *SWEEP)
    with pytest.raises(ZeroDivisionError):
        decode(config)
    assert not Path(config.out).exists()
    assert not Path(f"{config.out}.partial").exists()


def test_a_missing_local_checkpoint_is_an_error(tiny_job):
    with pytest.raises(CastError, match="no/such/folder"):
        decode(tiny_job("width_sweep", *SWEEP, "drafter.source=no/such/folder"))


def test_a_broken_prompt_file_names_its_line(tiny_job, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "1 2"}\n{"id": \n')
    with pytest.raises(CastError, match=r"prompts.jsonl:2"):
        decode(tiny_job("width_sweep", *SWEEP, f"domain.path={tmp_path}/prompts.jsonl"))


def test_a_drafter_that_does_not_fit_is_no_unavailable_checkpoint(tiny_job, monkeypatch):
    from cast.models import loading

    def loads(error):
        def load(*_, **__):
            raise error("no")

        return load

    config = tiny_job("width_sweep", "drafter.source=owner/name")
    monkeypatch.setattr(loading, "load_pair", loads(CastError))
    with pytest.raises(CastError):
        pairs.load(config, "cpu")
    monkeypatch.setattr(loading, "load_pair", loads(HubUnavailable))
    with pytest.raises(pairs.Unavailable):
        pairs.load(config, "cpu")


def test_what_is_unavailable_is_one_line(capsys):
    from jobs import entry

    def unavailable():
        raise pairs.Unavailable("own/gated is gated")

    assert entry._exit_code(unavailable) == 2
    assert capsys.readouterr().err == "error: own/gated is gated\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GatedRepoError", HubUnavailable),
        ("LocalEntryNotFoundError", HubUnavailable),
        ("RepositoryNotFoundError", CastError),
        ("RevisionNotFoundError", CastError),
        ("HFValidationError", CastError),
    ],
)
def test_a_misnamed_repository_is_an_error_and_a_gated_one_unavailable(name, kind, monkeypatch):
    import huggingface_hub
    from huggingface_hub import errors

    from cast.models.checkpoint import checkpoint_folder

    error_type = getattr(errors, name)

    def download(*_, **__):
        raise error_type.__new__(error_type)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CastError) as caught:
        checkpoint_folder("owner/name")
    assert type(caught.value) is kind


def test_scores_of_outputs_that_end_at_once_are_an_error_and_no_record(tiny_job, tmp_path):
    with pytest.raises(CastError, match="no prompt has a round to log"):
        scores(tiny_job("drafter_scores", "max_new_tokens=1", "rounds=3"))
    assert list(tmp_path.glob("record*")) == []
