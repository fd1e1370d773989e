"""What a user does wrong is one line and exit code 2, before any model is loaded."""

import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.singleton import Singleton

ROOT = Path(__file__).resolve().parents[2]
TINY = ["setting=tiny_qwen3", "domain=tiny"]


def run(script, *arguments, tmp_path=None, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if tmp_path:
        environment["XDG_RUNTIME_DIR"] = str(tmp_path)
    command = [sys.executable, f"scripts/{script}.py", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs a script's main part in this process, which has imported what it needs: exit code and what it told."""
    monkeypatch.chdir(ROOT)
    for name in ("CUDA_DEVICE_ORDER", "HYDRA_FULL_ERROR", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back afterwards
    state, handlers, level = Singleton.get_state(), list(logging.root.handlers), logging.root.level

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(f"scripts/{name}.py", run_name="__main__")
        return ended.value.code or 0, capsys.readouterr()

    yield call
    Singleton.set_state(state)
    logging.root.handlers[:], logging.root.level = handlers, level


def test_processes_that_a_launcher_starts_elsewhere_find_the_jobs(script, tmp_path):
    """submitit unpickles the task in one: it begins with a module of submitit, not with our script."""
    script("probe", "setting=absent")
    subprocess.run([sys.executable, "-c", "import jobs.entry"], cwd=tmp_path, check=True)


def test_one_line_in_a_process_of_its_own():
    finished = run("decode", *TINY, "sed=1")
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: unknown key 'sed'; did you mean 'seed'?")
    assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("decode", [*TINY, "seed=abc"], "error: Error merging override seed=abc; Value 'abc' of type 'str'"),
        ("decode", [*TINY, "budgets=[15,-1]"], "error: budgets must be 0 or more, not -1"),
        ("decode", [*TINY, "budgets=[]"], "error: budgets is empty; give at least one value"),
        ("probe", ["setting=tiny_qwen3", "iterations=0"], "error: iterations must be 1 or more, not 0"),
        ("decode", [*TINY, "sed=1"], "error: unknown key 'sed'; did you mean 'seed'?"),
        (
            "decode",
            [*TINY, "method_options.cast={budgets: [3]}"],
            "error: unknown key 'method_options.cast'; '+method_options.cast=...' adds an entry",
        ),
        (
            "decode",
            ["setting=nope", "domain=tiny"],
            "error: unknown setting 'nope'; known: a100-qwen3_8b",
        ),
        ("decode", [*TINY, "setting.dtype=???"], "error: no value for setting.dtype; set it in conf/"),
        ("decode", ["setting=tiny_qwen3"], "error: no domain given; add domain=<name>, one of chat"),
        (
            "decode",
            [*TINY, "methods=[eagle]"],
            "error: Error merging override methods=[eagle]; Invalid value",
        ),
        ("decode", ["-m", "setting=tiny_qwen3", "domain=zz"], "error: unknown domain 'zz'; known: chat"),
        ("replay", [*TINY, "prompt_limit=1"], "error: unknown key 'prompt_limit'; other experiments have it"),
        ("decode", [*TINY, "domain.license=\udcff"], "error: the command line is not UTF-8"),
        (
            "decode",
            [*TINY, "out=README.md/x.parquet"],
            "error: cannot write README.md/x.parquet.partial (",
        ),
        ("preflight", ["study=smoke", "out=."], "error: . is a folder; name a file"),
        (
            "train_drafter",
            ["device=cpu_1thread", "head.block_size=1"],
            "error: head.block_size must be 2 or more, not 1",
        ),
        (
            "train_drafter",
            ["device=cpu_1thread", "training.learning_rate=nan"],
            "error: training.learning_rate must be 0 or more, not nan",
        ),
        ("train_drafter", ["device=cpu_1thread", "generate.worker=[2,2]"], "error: generate.worker [2, 2] is none"),
        (
            "train_drafter",
            ["train=tiny", "training.parts=0"],
            "error: unknown key 'training.parts'; '+training.parts=...'",
        ),
        (
            "train_drafter",
            ["device=cpu_1thread", "training.steps=abc"],
            "error: steps: Value 'abc' of type 'str' could not be",
        ),
        ("train_drafter", ["device=cpu_1thread", "held_out=[]"], "error: held_out is empty"),
        ("train_drafter", ["device.threads=0"], "error: device.threads must be 1 or more, not 0"),
        ("decode", [*TINY, "out=."], "error: out=. is a folder; name a file, such as ./records.parquet"),
        ("probe", ["experiment=width_sweep"], "error: scripts/probe.py does not measure width_sweep"),
        ("predict", ["setting=tiny_qwen3"], "error: no inputs.latency given"),
        ("preflight", ["study=nope"], "error: unknown study 'nope'; known: embedded"),
        ("preflight", ["study=smoke", "overrides=['sed=1']"], "error: unknown key 'sed'"),
    ],
)
def test_one_line(script, name, arguments, message, tmp_path):
    if "-m" in arguments:
        arguments = [*arguments, f"hydra.sweep.dir={tmp_path}"]
    code, told = script(name, *arguments)
    assert code == 2
    assert told.err.startswith(message)
    assert len(told.err.splitlines()) == 1


def test_help_teaches_groups_and_lists(script):
    code, told = script("decode", "--help")
    assert code == 0
    assert told.out.startswith("Decode the prompts of one setting and domain")
    for words in ("setting: a100-qwen3_8b", "domain: chat, code", "-m setting=", "budgets:"):
        assert words in told.out


def test_a_configuration_is_printed_without_running(script, tmp_path):
    code, told = script("decode", "--cfg", "job", *TINY, "budgets=[7]", f"out={tmp_path}/x.parquet")
    assert code == 0
    assert "prompt_limit: 40" in told.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[*TINY, "--cfg", "job"], ["--cfg", "job", *TINY]])
def test_flags_may_stand_on_either_side_of_the_overrides(script, arguments):
    code, told = script("decode", *arguments)
    assert code == 0, told.err
    assert "name: width_sweep" in told.out


def test_interrupted_then_continued(tmp_path):
    """Ctrl-C after the first prompt: one line, exit 130; the same command continues, and no pair mixes
    sessions."""
    out = tmp_path / "record.parquet"
    counts = ["prompt_limit=4", "max_new_tokens=48", "repeats=1", "traced=false", "budgets=[7,31]"]
    arguments = [*TINY, f"out={out}", *counts]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(tmp_path)}
    checkpoint = Path(f"{out}.partial")
    with subprocess.Popen(
        [sys.executable, "scripts/decode.py", *arguments],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore the signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        deadline = time.monotonic() + 100
        while (not checkpoint.exists() or checkpoint.stat().st_size <= 512) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == 130
    assert told.splitlines()[-1].startswith("interrupted; what was finished is kept")
    assert not out.exists()

    second = run("decode", *arguments, tmp_path=tmp_path)
    assert second.returncode == 0
    assert second.stderr.startswith(f"continuing {checkpoint}")
    frame = pd.read_parquet(out)
    assert frame.groupby("prompt_id")["session"].nunique().max() == 1
    assert frame["session"].nunique() == 2
    assert len(frame) == 4 * 4
    assert not checkpoint.exists()


UNSHARE = shutil.which("unshare")


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("mount --bind {0} {0} && mount -o remount,bind,ro {0}", "(Read-only file system)"),
        ("mount -t tmpfs -o size=4k none {0}", "disk full"),
    ],
)
def test_a_place_that_takes_no_records_is_one_line(mount, message, tmp_path):
    place = tmp_path / "results"
    place.mkdir()
    mounted = f'{mount.format(place)} || exit 77; exec "$@"'
    command = [UNSHARE or "false", "-m", "sh", "-c", mounted, "sh", sys.executable, "scripts/decode.py"]
    finished = subprocess.run(
        [*command, *TINY, f"out={place}/record.parquet", "prompt_limit=1", "max_new_tokens=4", "budgets=[7]"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode in (1, 77) and "Traceback" not in finished.stderr:
        pytest.skip("no file system can be mounted here")
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.splitlines()[-1].startswith("error: ")
    assert message in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr
