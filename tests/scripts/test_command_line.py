"""What a user does wrong is one line and exit code 2, before any model is loaded."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

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


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
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
        ("decode", ["setting=tiny_qwen3"], "error: no domain given; add domain=<name>, one of chat"),
        (
            "decode",
            [*TINY, "methods=[eagle]"],
            "error: Error merging override methods=[eagle]; Invalid value",
        ),
        ("decode", ["-m", "setting=tiny_qwen3", "domain=zz"], "error: unknown domain 'zz'; known: chat"),
        ("replay", [*TINY, "prompt_limit=1"], "error: unknown key 'prompt_limit'; other experiments have it"),
        ("decode", [*TINY, "out=."], "error: out=. is a folder; name a file, such as ./records.parquet"),
        ("probe", ["experiment=width_sweep"], "error: scripts/probe.py does not measure width_sweep"),
        ("predict", ["setting=tiny_qwen3"], "error: no inputs.latency given"),
        ("preflight", ["study=nope"], "error: unknown study 'nope'; known: embedded"),
        ("preflight", ["study=smoke", "overrides=['sed=1']"], "error: unknown key 'sed'"),
    ],
)
def test_one_line(script, arguments, message, tmp_path):
    if "-m" in arguments:
        arguments = [*arguments, f"hydra.sweep.dir={tmp_path}"]
    finished = run(script, *arguments)
    assert finished.returncode == 2
    assert finished.stderr.startswith(message)
    assert len(finished.stderr.splitlines()) == 1


def test_help_teaches_groups_and_lists():
    finished = run("decode", "--help")
    assert finished.returncode == 0
    for words in ("setting: a100-qwen3_8b", "domain: chat, code", "-m setting=", "budgets:"):
        assert words in finished.stdout


def test_a_configuration_is_printed_without_running(tmp_path):
    finished = run("decode", "--cfg", "job", *TINY, "budgets=[7]", f"out={tmp_path}/x.parquet")
    assert finished.returncode == 0
    assert "prompt_limit: 40" in finished.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[*TINY, "--cfg", "job"], ["--cfg", "job", *TINY]])
def test_flags_may_stand_on_either_side_of_the_overrides(arguments):
    result = run("decode", *arguments)
    assert result.returncode == 0, result.stderr
    assert "name: width_sweep" in result.stdout


def test_interrupted_then_continued(tmp_path):
    """Ctrl-C after the first prompt: one line, exit 130; the same command continues, and no pair mixes
    sessions."""
    out = tmp_path / "record.parquet"
    arguments = [*TINY, f"out={out}", "max_new_tokens=48", "repeats=2", "traced=false", "budgets=[7,31]"]
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
    assert len(frame) == 6 * 4 * 2
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
