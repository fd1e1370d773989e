"""The width sweep's rows, rotation, resumption, time limit and exactness check."""

import hashlib
from types import SimpleNamespace

import pytest
import torch

import cast
from cast import CastError
from cast.experiments import width_sweep
from cast.experiments.exactness import repeat_share
from cast.experiments.prompts import Prompt
from cast.experiments.records import DECODE
from cast.experiments.width_sweep import WidthSweepSpec

NAME = "dflash_tiny_qwen3"
METHODS = ("autoregressive", "dflash", "cast")
VARIANTS = [("autoregressive", 0), ("dflash", 7), ("cast", 3), ("cast", 15)]


@pytest.fixture
def pair(golden_pair, stopping_at):
    return stopping_at(golden_pair(NAME))


@pytest.fixture
def prompts(golden_prompts):
    return golden_prompts(NAME)


def spec_of(**changes):
    return WidthSweepSpec(**{"methods": METHODS, "budgets": (3, 15), "max_new_tokens": 20, **changes})


def order_of(rows):
    return [(row["method"], row["budget"]) for row in rows if not row["traced"] and row["repeat"] == 0]


def test_rows_are_valid_records(pair, prompts, as_records):
    batches = list(width_sweep.run(pair, prompts[:3], spec_of(repeats=2)))
    assert [len(batch) for batch in batches] == [12, 8, 8]
    frame = as_records([row for batch in batches for row in batch], DECODE)
    assert set(zip(frame["method"], frame["budget"], strict=True)) == set(VARIANTS)
    assert (frame["departure"] == -1).all()
    assert frame["departure_gap"].isna().all()
    timed, traced = frame[~frame["traced"]], frame[frame["traced"]]
    assert (timed["new_tokens"] == 20).all()
    assert (traced["new_tokens"] == width_sweep.TRACED_TOKENS).all()
    assert (frame["stop_reason"] == "length").all()
    assert timed.groupby("prompt_id")["output_sha256"].nunique().eq(1).all()
    plain = timed[timed["method"] == "autoregressive"]
    assert (plain["rounds"] == 19).all()
    assert (plain["drafter_passes"] == 0).all()
    assert plain["first_draft_ms"].isna().all()
    assert (frame[frame["method"] != "autoregressive"]["first_draft_ms"] > 0).all()
    assert sorted(frame[~frame["traced"]]["repeat"].unique()) == [0, 1]
    assert frame["prompt_tokens"].tolist() == [len(prompts[i].text.split()) for i in frame["prompt_index"]]


def test_a_row_says_what_generate_says(pair, prompts):
    (batch,) = width_sweep.run(pair, prompts[:1], spec_of(traced=False))
    ids = torch.tensor([int(token) for token in prompts[0].text.split()])
    for row in batch:
        out = cast.generate(pair, ids, row["method"], budget=row["budget"], max_new_tokens=20)
        tokens = out.tokens.tolist()
        assert row["rounds"] == len(out.committed)
        assert row["committed_tokens"] == sum(out.committed)
        assert row["target_passes"] == out.run.target_passes
        assert row["repeat_share"] == repeat_share(tokens)
        assert row["output_sha256"] == hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()
        assert row["ms_per_token"] == row["decode_ms"] / 20
        assert row["block_size"] == 8


def test_the_order_rotates_by_prompt(pair, prompts):
    batches = list(width_sweep.run(pair, prompts[:5], spec_of(max_new_tokens=4, traced=False)))
    for index, batch in enumerate(batches):
        turn = index % 4
        assert order_of(batch) == VARIANTS[turn:] + VARIANTS[:turn]
        assert [row["order"] for row in batch] == [0, 1, 2, 3]
        assert {row["prompt_index"] for row in batch} == {index}


def test_done_prompts_are_skipped_and_keep_their_place(pair, prompts):
    spec = spec_of(max_new_tokens=4)
    whole = list(width_sweep.run(pair, prompts[:5], spec))
    done = {prompts[0].id, prompts[2].id}
    rest = list(width_sweep.run(pair, prompts[:5], spec, done))
    assert [batch[0]["prompt_id"] for batch in rest] == [prompts[i].id for i in (1, 3, 4)]
    for batch in rest:
        assert order_of(batch) == order_of(whole[batch[0]["prompt_index"]])
    assert not any(row["traced"] for batch in rest for row in batch)  # the first prompt had its traced runs
    assert list(width_sweep.run(pair, prompts[:5], spec, {prompt.id for prompt in prompts})) == []


def test_traced_rows(pair, prompts, as_records):
    first, second = width_sweep.run(pair, prompts[:2], spec_of())
    assert not any(row["traced"] for row in second)
    frame = as_records(first, DECODE)
    traced, timed = frame[frame["traced"]], frame[~frame["traced"]]
    assert len(traced) == len(timed) == 4
    parts = ["draft_ms_per_round", "verify_ms_per_round", "overhead_ms_per_round"]
    assert timed[parts].isna().all(axis=None)
    whole = traced[parts].sum(axis=1) * traced["rounds"].astype(float)
    assert whole.tolist() == pytest.approx(traced["decode_ms"].tolist())
    assert (traced[parts[1:]] > 0).all(axis=None)
    assert ((traced["draft_ms_per_round"] > 0) == (traced["method"] != "autoregressive")).all()


def test_without_traced_rows(pair, prompts):
    (batch,) = width_sweep.run(pair, prompts[:1], spec_of(traced=False))
    assert len(batch) == 4


class Clock:
    """Each decoding takes one second."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(width_sweep, "time", SimpleNamespace(monotonic=lambda: self.now))
        generate = width_sweep.generate

        def timed(*arguments, **options):
            self.now += 1
            return generate(*arguments, **options)

        monkeypatch.setattr(width_sweep, "generate", timed)


@pytest.mark.parametrize(
    ("limit", "prompts_run"),
    [(0, 1), (1, 1), (11.9, 1), (12, 2), (15.9, 2), (16, 3), (None, 5), (1000, 5)],
)
def test_no_prompt_starts_that_will_not_end_in_time(pair, prompts, monkeypatch, limit, prompts_run):
    """Four seconds of warm-up, then four for each prompt."""
    Clock(monkeypatch)
    spec = spec_of(max_new_tokens=2, traced=False, time_limit_s=limit)
    assert len(list(width_sweep.run(pair, prompts[:5], spec))) == prompts_run


@pytest.mark.parametrize(("limit", "done", "prompts_run"), [(0, 0, 3), (0, 1, 2), (0, 2, 1), (0, 3, 1), (20, 0, 4)])
def test_the_least_number_of_prompts_is_measured_however_long_it_takes(
    pair, prompts, monkeypatch, limit, done, prompts_run
):
    """Those of earlier sessions count; without time left each session still takes one."""
    Clock(monkeypatch)
    spec = spec_of(max_new_tokens=2, traced=False, time_limit_s=limit, min_prompts=3)
    earlier = {prompt.id for prompt in prompts[:done]}
    assert len(list(width_sweep.run(pair, prompts[:5], spec, done=earlier))) == prompts_run


def test_the_traced_runs_of_the_first_prompt_are_not_expected_again(pair, prompts, monkeypatch):
    Clock(monkeypatch)
    spec = spec_of(max_new_tokens=2, time_limit_s=16)  # 4 warm-up, 8 for the first prompt, 4 for the second
    assert len(list(width_sweep.run(pair, prompts[:5], spec))) == 2


def test_a_first_token_that_stops_is_a_failed_row(pair, prompts, as_records, stopping_at):
    ids = [int(token) for token in prompts[1].text.split()]
    first = int(cast.generate(pair, ids, "autoregressive", max_new_tokens=1).tokens[0])
    batches = list(width_sweep.run(stopping_at(pair, first), prompts[:2], spec_of()))
    frame = as_records([row for batch in batches for row in batch], DECODE)
    failed = frame[frame["prompt_index"] == 1]
    assert (failed["status"] == "failed").all()
    assert (failed["reason"] != "").all()
    assert len(failed) == 4


def test_a_stop_token_is_recorded(pair, prompts, stopping_at):
    ids = [int(token) for token in prompts[0].text.split()]
    tokens = cast.generate(pair, ids, "autoregressive", max_new_tokens=20).tokens.tolist()
    (batch,) = width_sweep.run(stopping_at(pair, tokens[9]), prompts[:1], spec_of(traced=False))
    assert {row["stop_reason"] for row in batch} == {"stop"}
    assert {row["new_tokens"] for row in batch} == {tokens.index(tokens[9]) + 1}


def test_a_pair_without_drafter_runs_plain_decoding(pair, prompts, as_records):
    (batch,) = width_sweep.run(pair.with_drafter(None), prompts[:1], spec_of(methods=("autoregressive",)))
    assert len(as_records(batch, DECODE)) == 2


def test_a_shorter_block_is_recorded(pair, prompts):
    (batch,) = width_sweep.run(pair, prompts[:1], spec_of(block_size=4, traced=False))
    assert {row["block_size"] for row in batch} == {4}
    assert [row["budget"] for row in batch if row["method"] == "dflash"] == [3]


def test_sampled_outputs_are_compared_with_nothing(pair, prompts, as_records):
    (batch,) = width_sweep.run(pair, prompts[:1], spec_of(temperature=1.0, traced=False))
    frame = as_records(batch, DECODE)
    assert frame["departure"].isna().all()
    assert (frame["temperature"] == 1.0).all()


def test_a_sweep_without_plain_decoding_compares_nothing(pair, prompts, as_records):
    (batch,) = width_sweep.run(pair, prompts[:1], spec_of(methods=("dflash",), max_new_tokens=4, traced=False))
    assert as_records(batch, DECODE)["departure"].isna().all()


def alter(monkeypatch, index):
    """Break one token of every tree's output."""
    generate = width_sweep.generate

    def broken(pair, input_ids, **options):
        out = generate(pair, input_ids, **options)
        if options["method"] == "cast" and len(out.tokens) > index:
            out.tokens[index] = (out.tokens[index] + 1) % 90
        return out

    monkeypatch.setattr(width_sweep, "generate", broken)


def test_an_inexact_fp32_output_stops_the_sweep(pair, prompts, monkeypatch):
    alter(monkeypatch, 6)
    with pytest.raises(CastError, match="departs") as error:
        list(width_sweep.run(pair, prompts[:1], spec_of(traced=False)))
    assert "\n" not in str(error.value)
    assert "new token 6" in str(error.value)


def test_a_bf16_departure_is_recorded_with_its_gap(pair, prompts, monkeypatch, as_records):
    alter(monkeypatch, 6)
    low = pair.to(torch.bfloat16)
    (batch,) = width_sweep.run(low, prompts[:1], spec_of(traced=False))
    frame = as_records(batch, DECODE)
    trees = frame[frame["method"] == "cast"]
    assert (trees["departure"].between(0, 6)).all()
    assert (trees["departure_gap"] >= 0).all()
    assert (frame[frame["method"] == "autoregressive"]["departure"] == -1).all()


def test_a_prompt_that_just_fits_runs(pair, as_records):
    """Prompt and new tokens fill the model exactly; the warm-up must not ask for more."""
    ids = [str(i % 90) for i in range(pair.target.max_positions - 4)]
    prompt = Prompt(id="golden/long", text=" ".join(ids), domain="golden")
    (batch,) = width_sweep.run(pair, [prompt], spec_of(max_new_tokens=4, traced=False))
    assert len(as_records(batch, DECODE)) == 4


def test_every_seed_runs_every_method(pair, prompts, as_records):
    spec = spec_of(temperature=1.0, sampler="recursive", seeds=(4, 9), max_new_tokens=12)
    (batch,) = width_sweep.run(pair, prompts[:1], spec)
    frame = as_records(batch, DECODE)
    timed = frame[~frame["traced"]]
    assert timed["seed"].tolist() == [4] * 4 + [9] * 4
    assert len(frame) == 12
    assert set(frame[frame["traced"]]["seed"]) == {4}
    samplers = timed.groupby("method")["sampler"].unique().map(list).to_dict()
    assert samplers == {"autoregressive": ["walk"], "dflash": ["walk"], "cast": ["recursive"]}
    ids = torch.tensor([int(token) for token in prompts[0].text.split()])
    for row in batch:
        out = cast.generate(
            *(pair, ids, row["method"]),
            **({"budget": row["budget"]} if row["method"] == "cast" else {}),
            max_new_tokens=12,
            temperature=1.0,
            seed=row["seed"],
            sampler=row["sampler"],
        )
        assert row["output_sha256"] == hashlib.sha256(",".join(map(str, out.tokens.tolist())).encode()).hexdigest()
    assert timed["output_sha256"].nunique() > 1
