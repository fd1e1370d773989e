"""Departures by gap: real bf16 ones, invented ones in each precision, and what is counted around them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import cast
from cast import CastError
from cast.experiments import exactness, greedy_equivalence
from cast.experiments.exactness import top_two_gap, top_two_gaps
from cast.experiments.greedy_equivalence import GreedyEquivalenceSpec
from cast.experiments.records import EQUIVALENCE

NAME = "dflash_tiny_qwen3"
METHODS = ("autoregressive", "dflash", "cast")
EDGES = (0.0, 0.25, 2.0)


@pytest.fixture
def pair(golden_pair, stopping_at):
    return stopping_at(golden_pair(NAME))


@pytest.fixture
def prompts(golden_prompts):
    return golden_prompts(NAME)


def spec_of(**changes):
    return GreedyEquivalenceSpec(
        **{"methods": METHODS, "budgets": (3, 15), "max_new_tokens": 20, "gap_edges": EDGES} | changes
    )


def rows_of(pair, prompts, spec):
    return [row for _, rows in greedy_equivalence.run(pair, prompts, spec) for row in rows]


def ids_of(prompt):
    return torch.tensor([int(token) for token in prompt.text.split()])


@pytest.mark.parametrize("length", [1, 2, 9])
def test_gaps_of_a_whole_output_are_those_of_each_prefix(pair, prompts, length):
    ids = ids_of(prompts[0])
    tokens = cast.generate(pair, ids, "autoregressive", max_new_tokens=length).tokens
    each = [top_two_gap(pair, torch.cat((ids, tokens[:place]))) for place in range(length)]
    assert top_two_gaps(pair, ids, tokens.tolist()) == pytest.approx(each, abs=1e-4)


def test_equal_outputs_are_counted_by_gap(pair, prompts, as_records):
    frame = as_records(rows_of(pair, prompts[:2], spec_of()), EQUIVALENCE)
    assert len(frame) == 2 * 4 * 3  # prompts, variants, intervals
    assert set(frame["verdict"]) == {"same"}
    assert (frame["departures"] == 0).all()
    assert frame.groupby(["prompt_id", "method", "budget"])["positions"].sum().eq(20).all()
    assert frame.groupby(["prompt_id", "gap_from"])["positions"].nunique().eq(1).all()
    first = frame[(frame["prompt_index"] == 0) & (frame["method"] == "autoregressive")]
    ids = ids_of(prompts[0])
    tokens = cast.generate(pair, ids, "autoregressive", max_new_tokens=20).tokens.tolist()
    expected = np.histogram(top_two_gaps(pair, ids, tokens), [*EDGES, math.inf])[0]
    assert first["positions"].tolist() == expected.tolist()
    assert first["gap_to"].tolist() == [0.25, 2.0, math.inf]


def test_an_interval_holds_its_upper_end():
    found = list(greedy_equivalence._intervals(np.array([0.0, 0.25, 0.26, 2.0, 9.0]), None, EDGES))
    assert [row["positions"] for row in found] == [2, 2, 1]


def alter(monkeypatch, index, dtype, methods=("cast",)):
    """Break one token of these methods' outputs, in one precision."""
    generate = greedy_equivalence.generate

    def broken(pair, input_ids, **options):
        out = generate(pair, input_ids, **options)
        if pair.dtype == dtype and options["method"] in methods and len(out.tokens) > index:
            out.tokens[index] = (out.tokens[index] + 1) % 90
        return out

    monkeypatch.setattr(greedy_equivalence, "generate", broken)


def test_an_fp32_departure_is_a_row_with_its_verdict(pair, prompts, monkeypatch, as_records):
    alter(monkeypatch, 6, torch.float32)
    ids = ids_of(prompts[0])
    gap = top_two_gaps(pair, ids, cast.generate(pair, ids, "autoregressive", max_new_tokens=20).tokens.tolist())[6]
    assert gap > 1e-3
    frame = as_records(rows_of(pair, prompts[:1], spec_of()), EQUIVALENCE)
    departed = frame[frame["departures"] == 1]
    assert set(departed["method"]) == {"cast"}
    assert len(departed) == 2
    assert (departed["verdict"] == "violation").all()
    assert (departed["departure"] == 6).all()
    assert departed["departure_gap"].tolist() == pytest.approx([gap] * 2)
    assert ((departed["gap_from"] <= gap) & (gap <= departed["gap_to"])).all()
    positions = frame.groupby("method")["positions"].sum()
    assert positions["autoregressive"] == positions["dflash"] == 20
    assert positions["cast"] == 2 * 7  # what follows a departure is not compared
    assert (frame[frame["method"] == "dflash"]["verdict"] == "same").all()


def test_an_fp32_near_tie_that_fp64_resolves(pair, prompts, monkeypatch, as_records):
    alter(monkeypatch, 6, torch.float32)
    monkeypatch.setattr(exactness, "FP32_NEAR_TIE", math.inf)
    frame = as_records(rows_of(pair, prompts[:1], spec_of(budgets=(3,))), EQUIVALENCE)
    assert set(frame[frame["departures"] == 1]["verdict"]) == {"near_tie"}


@pytest.mark.parametrize(("also_fp32", "verdict"), [(False, "departure"), (True, "violation")])
def test_a_bf16_departure_is_held_against_fp32(pair, prompts, monkeypatch, as_records, also_fp32, verdict):
    alter(monkeypatch, 2, torch.bfloat16)
    if also_fp32:
        alter(monkeypatch, 4, torch.float32)
    spec = spec_of(methods=("cast",), budgets=(3,))
    frame = as_records(rows_of(pair.to(torch.bfloat16), prompts[:1], spec), EQUIVALENCE)
    assert set(frame["method"]) == {"autoregressive", "cast"}
    (departed,) = frame[frame["departures"] == 1].itertuples()
    assert departed.method == "cast"
    assert departed.departure <= 2
    assert departed.verdict == verdict
    assert departed.fp32_agrees is not also_fp32
    assert frame[frame["departures"] == 0]["fp32_agrees"].isna().all()


def test_bf16_departures_of_the_tiny_pair_are_near_ties(pair, prompts, as_records):
    """Shapes decide bf16 roundings; where they decide a token, its rival is as near as bf16 can tell."""
    spec = spec_of(methods=("cast",), budgets=(15,), max_new_tokens=36)
    frame = as_records(rows_of(pair.to(torch.bfloat16), prompts[1:3], spec), EQUIVALENCE)
    departed = frame[frame["departures"] == 1]
    assert len(departed) > 0
    assert set(departed["verdict"]) == {"departure"}
    assert (departed["departure_gap"] <= 0.25).all()
    assert departed["fp32_agrees"].all()


def test_an_output_that_goes_on_where_the_plain_one_stopped(pair, prompts, monkeypatch, stopping_at):
    tokens = cast.generate(pair, ids_of(prompts[0]), "autoregressive", max_new_tokens=20).tokens.tolist()
    generate = greedy_equivalence.generate

    def goes_on(pair, input_ids, **options):
        return generate(pair, input_ids, **options, **({} if options["method"] != "cast" else {"stop_token_ids": []}))

    monkeypatch.setattr(greedy_equivalence, "generate", goes_on)
    rows = rows_of(stopping_at(pair, tokens[9]), prompts[:1], spec_of(methods=("cast",), budgets=(3,)))
    (departed,) = [row for row in rows if row["departures"]]
    assert departed["departure"] == tokens.index(tokens[9]) + 1
    assert departed["departure_gap"] >= 0


def test_finished_prompts_a_time_limit_and_edges(pair, prompts):
    spec = spec_of(methods=("dflash",), max_new_tokens=2)
    keys = [key for key, _ in greedy_equivalence.run(pair, prompts[:3], spec, done={prompts[0].id})]
    assert keys == [prompts[1].id, prompts[2].id]
    limited = spec_of(methods=("dflash",), max_new_tokens=2, time_limit_s=0)
    assert len(list(greedy_equivalence.run(pair, prompts[:3], limited))) == 1
    least = dataclasses.replace(limited, min_prompts=2)
    assert len(list(greedy_equivalence.run(pair, prompts[:3], least))) == 2
    assert len(list(greedy_equivalence.run(pair, prompts[:3], least, done={prompts[0].id}))) == 1
    for edges in ((), (0.1, 0.2), (0.0, 0.3, 0.2), (0.0, 0.1, 0.1)):
        with pytest.raises(CastError, match="ascend from 0"):
            spec_of(gap_edges=edges)
