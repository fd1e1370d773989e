"""The benchmarks run on a tiny pair and report what they say they do; their command line speaks in one line."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cast.decode.proposers import top_log_probs
from cast.errors import CastError
from cast.models import GraphTarget
from cast.trees import best_first_tree_from_topk
from cast.verify.packed import pack_tree
from jobs import resident_memory, speed, timing

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "scripts" / "bench.py"
STUDYS_PACKAGES = ("hydra", "omegaconf", "pandas", "scipy", "pandera", "pyarrow")


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


def test_both_sides_of_the_verification_ratio_do_the_same_work(subject, monkeypatch):
    compared = []

    def noted(ours, theirs, device, repeats):
        compared.append([ours().logits, theirs(), theirs()])  # twice: the first pack must not have become a prefix
        return [1.0] * repeats, [1.0] * repeats

    monkeypatch.setattr(speed, "paired", noted)
    speed.verification(subject, repeats=1)
    assert [len(ours) for ours, *_ in compared] == [16, 64, 128]
    for ours, *theirs in compared:
        for logits in theirs:
            torch.testing.assert_close(ours, logits, atol=1e-4, rtol=0)


def test_the_loop_is_charged_for_everything_but_the_calls_of_its_three_parts(subject, monkeypatch):
    calls = {"target": 0, "draft": 0, "top_k": 0}

    def counted(part, call):
        def counting(*arguments, **options):
            calls[part] += 1
            return call(*arguments, **options)

        return counting

    target, drafter = subject.pair.target, subject.pair.drafter
    monkeypatch.setattr(target, "forward", counted("target", target.forward), raising=False)
    monkeypatch.setattr(drafter, "draft", counted("draft", drafter.draft), raising=False)
    monkeypatch.setattr(speed.block, "top_log_probs", counted("top_k", speed.block.top_log_probs))
    with speed._timed_parts(subject) as parts:
        run = speed.cast.generate(subject.pair, subject.tokens(20), "cast", 127, 30, stop_token_ids=[]).run
    rounds = len(run.committed)
    assert {part: len(times) for part, times in parts.items()} == calls
    assert calls == {
        "target": rounds + 1,
        "draft": rounds,
        "top_k": rounds,
    }  # the prompt's pass, and a draft before each


def test_the_chain_of_a_cpu_is_said_to_take_a_mask(subject):
    result = speed.explicit_mask(subject, repeats=1)
    assert result["autoregressive"]["as_decoded_takes_a_mask"] is False
    assert result["chain"]["as_decoded_takes_a_mask"] is True


def test_a_gpus_tree_is_built_in_one_launch_and_packed(subject, monkeypatch):
    launches = []

    def capture(run):
        def repeat():
            launches.append(run)
            run()

        return repeat

    captured = replace(subject.pair, target=GraphTarget(subject.pair.target, lambda: capture))
    monkeypatch.setattr(speed, "with_engine", lambda pair, engine: {"graph": captured, "eager": pair}[engine])
    rows = 3 * torch.randn(speed.POSITIONS, 96, generator=torch.Generator().manual_seed(0))
    on_host = best_first_tree_from_topk(*top_log_probs(rows, speed.TOP_K), speed.NODES)
    expected = pack_tree(on_host, torch.tensor([0]), speed.PREFIX, torch.float32)
    packing = speed.captured_packing(subject.pair, rows)
    for count in (1, 2):
        assert all(map(torch.equal, packing(), expected))
        assert len(launches) == count


def test_memory_that_a_run_gives_back_between_two_readings_counts():
    def run(read):
        read(None)
        torch.ones(32, resident_memory.MEBIBYTE)  # 128 MiB
        read(None)

    growth, told_by = resident_memory.resident_growth(run)
    assert told_by == resident_memory.KERNELS_PEAK
    assert growth > 100 * resident_memory.MEBIBYTE


def test_where_the_kernel_keeps_no_peak_the_highest_reading_counts(monkeypatch):
    readings = iter([100, 130, 120])
    monkeypatch.setattr(resident_memory, "status_bytes", lambda name: next(readings) if name == "VmRSS" else 0)
    assert resident_memory.resident_growth(lambda read: (read(None), read(None))) == (30, resident_memory.READINGS)


def test_pairs_alternate_and_are_all_timed():
    calls = []
    ours, theirs = timing.paired(lambda: calls.append("o"), lambda: calls.append("t"), torch.device("cpu"), 4)
    assert len(ours) == len(theirs) == 4
    assert "".join(calls) == "toot" * 3


def test_spread_ratio_and_goal():
    assert timing.spread([3.0]) == {"median": 3.0, "q25": 3.0, "q75": 3.0, "repeats": 1}
    # The median of the ratios, not the ratio of the medians.
    assert timing.ratios([1.0, 4.0, 9.0], [2.0, 2.0, 3.0])["median"] == 2.0
    assert timing.goal({"median": 2.0}, 2.0)["met"] is True
    assert timing.goal({"median": 2.1}, 2.0)["met"] is False


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


def test_it_needs_none_of_the_studys_packages():
    """It comes as far as its own refusal: by then it has imported everything."""
    without = f"import sys; sys.modules.update(dict.fromkeys({STUDYS_PACKAGES})); sys.argv[1:] = ['--only', 'speed']"
    done = subprocess.run(
        [sys.executable, "-c", f"{without}; import bench; bench.main()"],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )
    assert done.stderr.startswith("error: unknown benchmark 'speed'"), done.stderr
