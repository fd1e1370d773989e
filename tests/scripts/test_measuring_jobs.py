"""The measuring scripts on the tiny pair: records, provenance, checkpoints and places."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from decode import decode
from omegaconf import OmegaConf
from predict import predict
from probe import probe
from scores import scores

from cast.errors import CastError
from cast.experiments.partial import Partial
from cast.experiments.records import DECODE, LATENCY, SCORES, read_records, write_records
from jobs import inputs, measuring

SWEEP = ["prompt_limit=2", "max_new_tokens=12", "budgets=[7,15]"]
PROBE = ["prefix_tokens=16", "packed_tokens=[1,4,16,32,64,128]", "warmups=1", "iterations=2"]
SCORE = ["rounds=10", "max_new_tokens=24"]


def provenance(record):
    return json.loads(Path(record).with_suffix(".json").read_text())


def test_a_sweep_has_every_method_on_every_prompt_and_says_where_it_comes_from(tiny_job):
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    timed = frame[~frame.traced]
    assert set(zip(timed.method, timed.budget, strict=True)) == {
        ("autoregressive", 0), ("dflash", 7), ("cast", 7), ("cast", 15),
    }  # fmt: skip
    assert timed.groupby(["method", "budget"]).prompt_id.nunique().eq(2).all()
    assert (frame[["setting", "domain", "dtype", "status"]].drop_duplicates().to_numpy() == [
        ["tiny_qwen3", "tiny", "float32", "measured"]
    ]).all()  # fmt: skip
    told = provenance(config.out)
    assert told["records"] == len(frame)
    assert told["config"]["budgets"] == [7, 15]
    assert told["sessions"] == list(frame.session.unique())
    assert not Path(f"{config.out}.partial").exists()


def test_a_time_limit_ends_a_sweep_between_prompts_and_a_higher_one_goes_on(tiny_job):
    sweep = ["width_sweep", "max_new_tokens=12", "budgets=[7]", "prompt_limit=3"]
    config = tiny_job(*sweep, "time_limit_s=0.001")
    decode(config)
    first = read_records(config.out, DECODE)
    assert first.prompt_id.unique().tolist() == ["tiny/0"]
    config = tiny_job(*sweep, "time_limit_s=1000")
    for kept in (True, False):
        Path(config.out).unlink()  # as Snakemake does before a job
        decode(config)
        frame = read_records(config.out, DECODE)
        assert frame.prompt_id.nunique() == 3
        assert (first.session[0] in set(frame.session)) == kept
    assert not Path(f"{config.out}.partial").exists()


def test_a_record_that_a_time_limit_ended_is_measured_anew_once_it_is_deleted(tiny_job):
    config = tiny_job("width_sweep", "max_new_tokens=12", "budgets=[7]", "time_limit_s=0.001")
    sessions = []
    for _ in range(2):
        decode(config)
        sessions += read_records(config.out, DECODE).session.unique().tolist()
        Path(config.out).unlink()
    assert len(set(sessions)) == len(sessions) == 2


def test_a_probe_that_was_interrupted_starts_over(tiny_job):
    config = tiny_job("latency_probe", *PROBE, domain=None)
    digest = measuring.resume_digest(config, "cpu")
    with Partial(config.out, digest, lambda _: None) as partial:
        partial.append("0", [{"component": "draft"}], 1.0)
    probe(config)
    frame = read_records(config.out, LATENCY)
    assert frame.session.nunique() == 1
    assert frame.groupby(["component", "packed_tokens"]).size().eq(2).all()
    assert set(frame.domain) == {"random"}


def test_scores_and_probe_give_a_width_in_every_mode(tiny_job, tmp_path):
    probed, scored = (
        tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet"),
        tiny_job("drafter_scores", *SCORE, out="s.parquet"),
    )
    probe(probed)
    scores(scored)
    curve = read_records(scored.out, SCORES)
    masses = np.load(tmp_path / "s.npz")["masses"]
    assert masses.dtype == np.float32
    assert masses.shape[1] == 512
    assert len(masses) >= 10
    np.testing.assert_allclose(curve.mass, masses.mean(axis=0, dtype=np.float64))
    assert set(curve["rounds"]) == {len(masses)}

    inputs = [f"inputs.latency={probed.out}", f"inputs.scores={scored.out}", "budgets=[7,15,31]"]
    predict(tiny_job("width", *inputs, out="w.json"))
    width = json.loads((tmp_path / "w.json").read_text())
    assert width["width"] in (7, 15, 31)
    assert width["predictions"][width["default"]]["cost"] == "affine"
    assert width["scores_source"] == "tiny_qwen3/tiny"
    assert width["scores_rounds"] == len(masses)
    assert width["probe_wall_s"] > 0
    assert len(width["masses"]) == 512


def test_another_machine_weights_or_prompts_do_not_continue(tiny_job, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "1 2"}\n')
    weights = tmp_path / "drafter"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    config = tiny_job("width_sweep", f"domain.path={prompts}", f"drafter.source={weights}")

    def digest(kind="cpu"):
        inputs.file_digest.cache_clear()
        return measuring.resume_digest(config, kind)

    found = [digest(), digest("cuda")]
    prompts.write_text('{"id": "a", "prompt": "1 3"}\n')
    found.append(digest())
    (weights / "config.json").write_text('{"a": 1}')
    found.append(digest())
    monkeypatch.setattr(measuring.socket, "gethostname", lambda: "elsewhere")
    found.append(digest())
    assert len(set(found)) == len(found)
    assert digest() == found[-1]


def test_the_provenance_names_weights_prompts_and_code(tiny_job):
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    told = provenance(config.out)
    assert any(path.endswith("model.safetensors") for path in told["checkpoints"])
    assert told["prompts_sha256"] == inputs.file_digest("conf/prompts/tiny.jsonl")
    assert told["code_version"] == measuring.code_version()


def test_digests_are_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").mkdir()
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"1")
    read = []
    monkeypatch.setattr(inputs, "sha256_file", lambda path: read.append(path) or f"digest {len(read)}")
    for expected, change in (("digest 1", None), ("digest 1", None), ("digest 2", b"22")):
        if change:
            file.write_bytes(change)
        inputs.file_digest.cache_clear()
        assert inputs.file_digest(str(file)) == expected
    inputs.file_digest.cache_clear()


def test_a_column_the_schema_does_not_know_is_refused(tiny_job, tmp_path):
    config = tiny_job("latency_probe", *PROBE, domain=None)
    row = {"component": "draft", "prefix_tokens": 1, "packed_tokens": 1, "iteration": 0, "latency": 3.0}
    frame = measuring.framed([row], LATENCY)
    assert "latency_ms" in frame
    with pytest.raises(CastError, match="column latency is unknown"):
        measuring.write(Path(config.out), frame, LATENCY, {})


def test_a_prediction_refuses_records_of_another_setting_or_drafter(tiny_job, tmp_path):
    identity = {
        "experiment": "x", "setting": "tiny_qwen3", "device": "d", "target": "t", "drafter": "tiny_qwen3",
        "domain": "tiny",
        "dtype": "float32", "engine": "eager", "threads": 1, "host": "h", "session": "s",
        "status": "failed", "reason": "r",
    }  # fmt: skip
    place = {"component": "draft", "prefix_tokens": 1, "packed_tokens": 1, "iteration": 0}
    latency = {**identity, **place, "latency_ms": None}
    curve = {**identity, "rank": 1, "mass": None, "rounds": None}
    inputs_given = [f"inputs.latency={tmp_path}/p.parquet", f"inputs.scores={tmp_path}/s.parquet"]

    def attempt(setting="tiny_qwen3", drafter="tiny_qwen3"):
        write_records(pd.DataFrame([latency | {"setting": setting}]), tmp_path / "p.parquet", LATENCY)
        write_records(pd.DataFrame([curve | {"drafter": drafter}]), tmp_path / "s.parquet", SCORES)
        predict(tiny_job("width", *inputs_given, out="w.json"))

    with pytest.raises(CastError, match=r"setting other, but .* tiny_qwen3"):
        attempt(setting="other")
    with pytest.raises(CastError, match=r"drafter other, but .* tiny_qwen3"):
        attempt(drafter="other")
    attempt()
    told = json.loads((tmp_path / "w.json").read_text())
    assert {"host", "device", "git_commit"} <= set(told)
    assert all(len(digest) == 64 for digest in told["inputs"].values())
    assert len(told["inputs"]) == 2


def test_a_record_has_a_name_of_its_own(tiny_job):
    for out in ("r.json", "r"):
        with pytest.raises(CastError, match=r"give one that ends in \.parquet"):
            measuring.output_path(tiny_job("width_sweep", out=out), "decode")
    probed = tiny_job("latency_probe", domain=None, out="p.parquet").out
    over_its_provenance = tiny_job("width", f"inputs.latency={probed}", f"inputs.scores={probed}", out="p.json")
    with pytest.raises(CastError, match=r"would overwrite inputs\.latency"):
        measuring.output_path(over_its_provenance, "predict", ".json")


def test_a_place_named_by_long_overrides_fits_a_file_system(tiny_job, monkeypatch):
    named = OmegaConf.create({"job": {"override_dirname": "domain.path=" + "中" * 100}})
    monkeypatch.setattr(measuring.HydraConfig, "get", lambda: named)
    config = tiny_job("width_sweep")
    config.out = None
    assert len(measuring.output_path(config, "decode").parent.name.encode()) < 140
