"""The benchmarks run on a tiny pair and report what they say they do; their command line speaks in one line."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cast.errors import CastError
from jobs import speed

BENCH = Path(__file__).parents[2] / "scripts" / "bench.py"


@pytest.fixture(scope="module")
def subject(golden, golden_pair):
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(golden / "dflash_tiny_qwen3" / "target", dtype=torch.float32)
    return speed.Subject(golden_pair("dflash_tiny_qwen3"), stock.eval())


def numbers(value):
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    ("name", "settings", "figures"),
    [
        ("autoregressive", {"repeats": 2, "tokens": 5}, ("over_the_better_one", "over_the_floor")),
        ("explicit_mask", {"repeats": 2}, ("autoregressive", "chain")),
        ("tree_building", {"repeats": 2}, ("from_bfloat16_logits_ms", "from_top_scores_ms")),
        ("loop_overhead", {"repeats": 1, "tokens": 12}, ("overhead_ms", "overhead_share")),
        ("memory", {"tokens": 60}, ("growth_beside_caches_mebibytes",)),
        ("probe", {"repeats": 2}, ("eager n=1", "eager n=256", "draft")),
        ("verification", {"repeats": 2}, ("n=16", "n=64", "n=128")),
    ],
)
def test_a_benchmark_reports_its_figures(subject, name, settings, figures):
    result = speed.BENCHES[name](subject, **settings)
    assert set(figures) <= set(result)
    assert numbers(result)
    assert all(math.isfinite(number) for number in numbers(result))
    assert json.loads(json.dumps(result)) == result


def test_every_benchmark_is_tried_here():
    tried = {case[0] for case in test_a_benchmark_reports_its_figures.pytestmark[0].args[1]}
    assert tried == set(speed.BENCHES)


def test_pairs_alternate_and_are_all_timed():
    calls = []
    ours, theirs = speed.paired(lambda: calls.append("o"), lambda: calls.append("t"), torch.device("cpu"), 4)
    assert len(ours) == len(theirs) == 4
    assert "".join(calls) == "toot" * 3


def test_spread_ratio_and_goal():
    assert speed.spread([3.0]) == {"median": 3.0, "q25": 3.0, "q75": 3.0, "repeats": 1}
    # The median of the ratios, not the ratio of the medians.
    assert speed.ratios([1.0, 4.0, 9.0], [2.0, 2.0, 3.0])["median"] == 2.0
    assert speed.goal({"median": 2.0}, 2.0)["met"] is True
    assert speed.goal({"median": 2.1}, 2.0)["met"] is False


def test_the_weights_of_a_token_are_all_but_the_embedding_table(subject):
    target = subject.pair.target
    parameters = sum(parameter.numel() for parameter in subject.stock.model.layers.parameters())
    expected = parameters + target.vocab_size * target.hidden_size + target.hidden_size
    assert speed.weight_bytes(target) == 4 * expected


def test_a_wrong_name_is_one_line():
    done = subprocess.run([sys.executable, BENCH, "--only", "speed"], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown")
    assert done.stderr.count("\n") == 1
    with pytest.raises(CastError, match="unknown model 'gpt'"):
        speed.load("gpt", "cpu", "float32")


def test_help_names_every_benchmark():
    done = subprocess.run([sys.executable, BENCH, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(name in done.stdout for name in speed.BENCHES)


def test_no_threads_are_one_line():
    done = subprocess.run([sys.executable, BENCH, "--threads", "0"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: --threads must be 1 or more, not 0\n")
