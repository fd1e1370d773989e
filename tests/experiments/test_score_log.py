"""The score log: marginals at every root equal the live drafter's, and what the target wanted is its own output."""

import dataclasses

import numpy as np
import pytest
import torch

import cast
from cast.decode.proposers import top_log_probs
from cast.errors import CastError
from cast.experiments import score_log
from cast.experiments.records import SCORE_LOG, read_records, write_records
from cast.experiments.replay_log import ARRAYS, read_log, write_arrays
from cast.experiments.score_log import ScoreLogSpec
from cast.models.root_drafts import drafts_at_roots

NAMES = ("dflash_tiny_qwen3", "dflash_tiny_llama")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def pair(golden_pair, name, stopping_at):
    return stopping_at(golden_pair(name))


@pytest.fixture
def prompts(golden_prompts, name):
    return golden_prompts(name)


def ids_of(prompt):
    return torch.tensor([int(token) for token in prompt.text.split()])


def features_of(pair, tokens):
    taps = pair.drafter.target_layer_ids
    out = pair.target.forward(
        tokens, torch.arange(len(tokens)), pair.target.new_cache(len(tokens)), causal=True, taps=taps
    )
    return torch.cat(out.taps, -1)


@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("roots_at_once", [1, 5, 64])
def test_drafts_at_roots_are_the_live_drafters(pair, prompts, block_size, roots_at_once):
    tokens = torch.cat([ids_of(prompt) for prompt in prompts])[:40]
    features = features_of(pair, tokens)
    roots = torch.tensor([1, 2, 7, 8, 9, 20, 33, 39, 40])
    root_tokens = torch.arange(len(roots)) + 3  # any token may stand at a root
    drafts = drafts_at_roots(
        pair.drafter, pair.target, features, root_tokens, roots, block_size=block_size, roots_at_once=roots_at_once
    )
    together = torch.cat(list(drafts))
    for root, token, ours in zip(roots, root_tokens, together, strict=True):
        cache = pair.drafter.new_cache(64)
        live = pair.drafter.draft(pair.target, features[:root], token[None], cache, block_size)
        torch.testing.assert_close(ours, live, atol=1e-4, rtol=0)


def test_the_log_of_a_prompt(pair, prompts):
    """Output, continuation, and at every root the live decoder's top marginals."""
    spec = ScoreLogSpec(max_new_tokens=20, top=12)
    log, prompt_tokens = score_log.log_prompt(pair, prompts[0], spec)
    ids, length = ids_of(prompts[0]), pair.drafter.block_size - 1
    plain = cast.generate(pair, ids, "autoregressive", max_new_tokens=20 + length).tokens.numpy()
    assert (prompt_tokens, log.new_tokens, log.departures) == (len(ids), 20, 0)
    np.testing.assert_array_equal(log.output, plain)
    np.testing.assert_array_equal(log.target_tokens, plain)
    assert (log.target_gaps > 0).all()
    assert log.tokens.shape == log.log_probs.shape == (19, length, 12)
    tokens = torch.cat((ids, torch.from_numpy(plain).long()))
    features = features_of(pair, tokens)
    for root in (0, 7, 18):
        at = len(ids) + root
        live = pair.drafter.draft(pair.target, features[:at], tokens[at][None], pair.drafter.new_cache(at + 64))
        values, chosen = top_log_probs(live, 12)
        np.testing.assert_allclose(log.log_probs[root], values.numpy(), atol=1e-4)
        same = log.tokens[root] == chosen.numpy()
        assert same.mean() > 0.99  # a near-tie may swap two ranks
        assert (np.diff(log.log_probs[root], axis=-1) <= 0).all()


def test_an_output_that_stops_goes_on_for_the_last_rounds(pair, prompts, stopping_at):
    spec = ScoreLogSpec(max_new_tokens=20, top=4)
    whole, _ = score_log.log_prompt(pair, prompts[0], spec)
    stop = int(whole.output[9])
    ended, _ = score_log.log_prompt(stopping_at(pair, stop), prompts[0], spec)
    assert ended.new_tokens == whole.output.tolist().index(stop) + 1
    np.testing.assert_array_equal(ended.output, whole.output[: len(ended.output)])
    assert len(ended.output) == ended.new_tokens + pair.drafter.block_size - 1


def test_departures_count_what_the_target_would_not_have_emitted(pair, prompts):
    log, _ = score_log.log_prompt(pair, prompts[0], ScoreLogSpec(max_new_tokens=8, top=4))
    wrong = log.output.copy()
    wrong[[2, 5, -1]] += 1  # the last lies behind the emitted tokens
    assert dataclasses.replace(log, output=wrong).departures == 2


def test_prompts_resume_and_round_trip(pair, prompts, as_records, tmp_path):
    spec = ScoreLogSpec(max_new_tokens=6, top=5)
    units = dict(score_log.run(pair, prompts[:3], spec, done={prompts[1].id}))
    assert list(units) == [prompts[0].id, prompts[2].id]
    frame = as_records([unit["row"] for unit in units.values()], SCORE_LOG)
    assert frame["prompt_index"].tolist() == [0, 2]
    record = tmp_path / "log.parquet"
    write_records(frame, record, SCORE_LOG)
    write_arrays(record, list(units.values()))
    rows, logs = read_log(record)
    assert len(rows) == 2
    for log, unit in zip(logs, units.values(), strict=True):
        assert log.new_tokens == 6
        for array in ARRAYS:
            np.testing.assert_array_equal(getattr(log, array), unit[array])


def test_the_time_limit_lets_the_first_prompt_run(pair, prompts):
    spec = ScoreLogSpec(max_new_tokens=4, top=4, time_limit_s=0.0)
    assert [key for key, _ in score_log.run(pair, prompts[:3], spec)] == [prompts[0].id]
    rest = score_log.run(pair, prompts[:3], spec, done={prompts[0].id})
    assert [key for key, _ in rest] == [prompts[1].id]


def test_a_prompt_that_ends_at_its_first_token_has_no_roots(pair, prompts, stopping_at):
    first = int(cast.generate(pair, ids_of(prompts[0]), "autoregressive", max_new_tokens=1).tokens[0])
    ((_, unit),) = score_log.run(stopping_at(pair, first), prompts[:1], ScoreLogSpec(max_new_tokens=9, top=4))
    assert (unit["row"]["new_tokens"], unit["row"]["roots"]) == (1, 0)
    assert unit["tokens"].shape == (0, pair.drafter.block_size - 1, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"block_size": 1}, "between 2 and"), ({"block_size": 99}, "between 2 and")],
)
def test_a_block_the_head_cannot_draft(pair, prompts, change, message):
    with pytest.raises(CastError, match=message):
        next(score_log.run(pair, prompts, ScoreLogSpec(max_new_tokens=4, **change)))


def test_a_pair_without_drafter(pair, prompts):
    with pytest.raises(CastError, match="needs a DFlash drafter, or a DART one"):
        next(score_log.run(pair.with_drafter(None), prompts, ScoreLogSpec(max_new_tokens=4)))


def test_arrays_of_another_job_or_none_are_one_line(pair, prompts, as_records, tmp_path):
    ((_, unit),) = score_log.run(pair, prompts[:1], ScoreLogSpec(max_new_tokens=6, top=5))
    record = tmp_path / "log.parquet"
    write_records(as_records([unit["row"]], SCORE_LOG), record, SCORE_LOG)
    with pytest.raises(CastError, match="are missing; run its score_log job again"):
        read_log(record)
    write_arrays(record, [unit, unit])
    with pytest.raises(CastError, match="does not belong to"):
        read_log(record)
    whole = record.with_suffix(".npz").read_bytes()
    spoilt = whole[:80] + bytes(40) + whole[120:]
    for damaged in (b"PK", b"", whole[: len(whole) // 2], whole[:-1], spoilt):
        record.with_suffix(".npz").write_bytes(damaged)
        with pytest.raises(CastError, match="not a readable score log"):
            read_log(record)


def test_a_failed_log_has_rows_and_no_prompts(as_records, tmp_path):
    row = {"prompt_id": "", "prompt_index": 0, "status": "failed", "reason": "no such GPU"}
    write_records(as_records([row], SCORE_LOG), tmp_path / "log.parquet", SCORE_LOG)
    rows, logs = read_log(tmp_path / "log.parquet")
    assert logs == []
    assert rows["reason"].tolist() == ["no such GPU"]
    assert read_records(tmp_path / "log.parquet", SCORE_LOG)["roots"].isna().all()
