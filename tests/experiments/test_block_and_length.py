"""Sweeps with several block sizes or output lengths in one job."""

import pytest

from cast.experiments import width_sweep
from cast.experiments.records import DECODE
from cast.experiments.width_sweep import WidthSweepSpec

NAME = "dflash_tiny_qwen3"
METHODS = ("autoregressive", "dflash", "cast")


@pytest.fixture
def pair(golden_pair, stopping_at):
    return stopping_at(golden_pair(NAME))


@pytest.fixture
def sweep(pair, golden_prompts, as_records):
    def run(prompts=2, **changes):
        spec = WidthSweepSpec(**{"methods": METHODS, "budgets": (3, 7), "max_new_tokens": 12, "top_k": 4, **changes})
        batches = width_sweep.run(pair, golden_prompts(NAME)[:prompts], spec)
        return as_records([row for batch in batches for row in batch], DECODE)

    return run


def test_every_block_has_its_chain_and_its_trees_and_plain_decoding_is_timed_once(sweep):
    frame = sweep(block_sizes=(4, 8))
    assert sorted(zip(frame["method"], frame["block_size"], frame["budget"], frame["traced"], strict=True)) == sorted(
        (*cell, traced)
        for cell in [
            ("autoregressive", 8, 0),
            *(("dflash", block, block - 1) for block in (4, 8)),
            *(("cast", block, budget) for block in (4, 8) for budget in (3, 7)),
        ]
        for traced in (False, False, True)  # two prompts, and the first once more
    )
    assert (frame["departure"] == -1).all()


def test_a_shorter_block_is_what_generate_makes_of_it(sweep):
    """The same rounds as a sweep with that block alone: nothing of the longer block leaks in."""
    columns = ["method", "budget", "block_size", "prompt_id", "rounds", "committed_tokens", "output_sha256"]

    def drafted(frame):
        timed = frame[~frame["traced"] & (frame["method"] != "autoregressive")]
        return timed[columns].sort_values(columns).reset_index(drop=True)

    both, short, long = (drafted(sweep(block_sizes=blocks)) for blocks in ((4, 8), (4,), (8,)))
    assert (
        both[both["block_size"] == 4].reset_index(drop=True).equals(short.sort_values(columns).reset_index(drop=True))
    )
    assert both[both["block_size"] == 8].reset_index(drop=True).equals(long.sort_values(columns).reset_index(drop=True))
    assert (short["rounds"].sum() >= long["rounds"].sum()) and not short.equals(long)


def test_every_length_has_all_methods_and_its_own_plain_output(sweep):
    frame = sweep(lengths=(6, 14))
    timed = frame[~frame["traced"]]
    assert (timed["new_tokens"] == timed["max_new_tokens"]).all()
    assert timed.groupby(["max_new_tokens", "prompt_id"]).size().eq(4).all()
    assert set(timed["max_new_tokens"]) == {6, 14}
    assert timed.groupby(["max_new_tokens", "prompt_id"])["output_sha256"].nunique().eq(1).all()
    assert (timed["departure"] == -1).all()
    assert frame[frame["traced"]].groupby(["method", "budget"]).size().eq(1).all()


def test_the_longest_output_must_fit_behind_the_prompt(pair, golden_prompts):
    pair.target.max_positions = 40
    spec = WidthSweepSpec(methods=METHODS, budgets=(3,), max_new_tokens=4, lengths=(4, 400))
    with pytest.raises(width_sweep.CastError, match="40"):
        next(width_sweep.run(pair, golden_prompts(NAME)[:1], spec))
