"""The paired comparison of plain decoding with transformers' own."""

import pytest

from cast.experiments import baseline
from cast.experiments.prompts import Prompt


def test_both_decode_the_same_tokens_and_are_timed(golden_pair):
    pair = golden_pair("dflash_tiny_qwen3")
    prompts = [Prompt("a", "69 59 15 67 13", "tiny"), Prompt("b", "34 19 74 34", "tiny")]
    rows = list(baseline.run(pair, baseline.stock_model(pair), prompts, max_new_tokens=12))
    assert [row["prompt_id"] for row in rows] == ["a", "b"]
    for row in rows:
        assert row["same_tokens"]
        assert row["ratio"] == pytest.approx(row["ours_ms_per_token"] / row["transformers_ms_per_token"])


def test_geometric_mean_of_ratios():
    assert baseline.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
