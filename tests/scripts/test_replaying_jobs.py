"""The scripts of the score log and its replay on the tiny pair: records, resuming, and inputs that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
from replay import replay
from score_log import score_log

import cast
from cast.errors import CastError
from cast.experiments.partial import Partial
from cast.experiments.records import REPLAY, SCORE_LOG, read_records
from cast.experiments.replay_log import read_log
from jobs import measuring, pairs

LOG = ["prompt_limit=3", "max_new_tokens=16", "top=40"]
REPLAYED = ["resamples=50", "batches=20", "batch_size=4", "budgets=[15,31]", "largest_budget=31", "shape_budget=12"]


@pytest.fixture
def logged(tiny_job):
    config = tiny_job("score_log", *LOG, out="log.parquet")
    score_log(config)
    return config.out


def test_a_log_is_replayed_to_what_live_decoding_commits(tiny_job, logged, capsys):
    rows = read_records(logged, SCORE_LOG)
    assert rows["roots"].tolist() == [15, 15, 15]
    config = tiny_job("replay", *REPLAYED, f"inputs.score_log={logged}", out="replay.parquet")
    replay(config)
    frame = read_records(config.out, REPLAY)
    assert set(frame["experiment"]) == {"replay"}
    assert (frame["setting"].iloc[0], frame["target"].iloc[0], frame["dtype"].iloc[0]) == (
        "tiny_qwen3", "tiny_qwen3", "float32",
    )  # fmt: skip
    told = json.loads(Path(config.out).with_suffix(".json").read_text())
    assert told["records"] == len(frame)
    assert sorted(map(len, told["inputs"].values())) == [64, 64]
    assert "R by shape, dflash N = 7: " in capsys.readouterr().out

    pair = pairs.load(config, "cpu")
    prompts = [json.loads(line)["prompt"] for line in Path("conf/prompts/tiny.jsonl").read_text().splitlines()[:3]]
    live = [
        cast.generate(pair, [int(token) for token in text.split()], "cast", budget=15, max_new_tokens=16).committed
        for text in prompts
    ]
    chosen = (frame["analysis"] == "budget_sweep") & (frame["roots"] == "own") & (frame["budget"] == 15)
    found = frame[chosen & (frame["top_k"] == 8) & (frame["quantity"] == "r_pooled")].iloc[0]
    assert found["n"] == sum(map(len, live))
    assert found["value"] == pytest.approx(sum(map(sum, live)) / found["n"])


def test_a_log_goes_on_where_it_was_interrupted(tiny_job, logged):
    _, whole = read_log(logged)
    config = tiny_job("score_log", *LOG, out="again.parquet")
    from cast.experiments import score_log as protocol
    from cast.experiments.prompts import load_prompts

    pair = pairs.load(config, "cpu")
    units = protocol.run(pair, load_prompts(config.domain, limit=1), protocol.ScoreLogSpec(16, top=40))
    with Partial(config.out, measuring.resume_digest(config, "cpu"), lambda _: None) as partial:
        for key, content in units:
            partial.append(key, content, 1.0)
    score_log(config)
    rows, logs = read_log(config.out)
    assert rows["session"].nunique() == 2
    for ours, theirs in zip(logs, whole, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_array_equal(ours.log_probs, theirs.log_probs)


def test_a_log_that_could_not_be_made_is_a_failed_replay(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    log = tiny_job("score_log", *LOG, out="log.parquet")
    score_log(log)
    config = tiny_job("replay", f"inputs.score_log={log.out}", out="replay.parquet")
    replay(config)
    frame = read_records(config.out, REPLAY)
    assert frame["reason"].tolist() == ["the score log failed (no such GPU)"]


def test_a_replay_without_its_log_or_of_another_domain_is_refused(tiny_job, logged):
    with pytest.raises(CastError, match=r"no inputs\.score_log given"):
        replay(tiny_job("replay"))
    with pytest.raises(CastError, match="measured for domain tiny, but this job is for chat"):
        replay(tiny_job("replay", f"inputs.score_log={logged}", domain="chat"))
    with pytest.raises(CastError, match="batch_size must be 2 or more"):
        replay(tiny_job("replay", f"inputs.score_log={logged}", "batch_size=1"))


@pytest.fixture
def dart_job(tmp_path, monkeypatch):
    """A job on the tiny target that has a head of every kind."""
    from jobs import composition, schema

    schema.register()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return lambda experiment, *overrides, out: composition.compose_job(
        experiment, "tiny_drafters", "tiny", [*overrides, f"out={tmp_path / out}"]
    )


def test_a_dart_head_is_logged_and_replayed_under_its_own_name(dart_job):
    log = dart_job("dart_score_log", "prompt_limit=2", "max_new_tokens=12", out="log.parquet")
    score_log(log)
    assert set(read_records(log.out, SCORE_LOG)["drafter"]) == {"tiny_dart"}
    config = dart_job(
        "dart_replay", "resamples=20", "batches=5", "batch_size=2", f"inputs.score_log={log.out}", out="replay.parquet"
    )
    replay(config)
    frame = read_records(config.out, REPLAY)
    assert set(frame["drafter"]) == {"tiny_dart"}
    assert set(frame["experiment"]) == {"dart_replay"}
    every = frame[(frame["analysis"] == "budget_sweep") & (frame["roots"] == "every") & (frame["budget"] == 8)]
    assert set(every["n"]) == {22}


def test_a_score_log_is_of_one_method_that_drafts_in_one_pass(dart_job):
    for methods in ("[dflash,dart]", "[eagle3]"):
        with pytest.raises(CastError, match="a score log is of one method"):
            score_log(dart_job("score_log", f"methods={methods}", out="log.parquet"))
