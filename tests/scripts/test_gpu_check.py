"""The check for machines with a GPU, where there is none: why it does nothing, what it would run and how long."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


@pytest.fixture
def bare_python(tmp_path):
    """An interpreter without site packages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return python


def function(name):
    """The text of one of the script's functions."""
    return re.search(rf"^{name}\(\) \{{\n.*?^\}}\n", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)[0]


def runnable_tests(python):
    """What the script's function of that name prints: the files, and a line for each that is left out."""
    done = subprocess.run(
        ["bash", "-c", f"{function('runnable_tests')}runnable_tests"],
        cwd=ROOT,
        env=os.environ | {"python": str(python), "PYTHONPATH": "src:scripts"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr.splitlines()


def skipped(python, out, **environment):
    """Exit status and standard output."""
    done = subprocess.run(
        [SCRIPT, out], env=os.environ | {"PYTHON": str(python)} | environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_without_torch_it_says_so_and_succeeds(bare_python, tmp_path):
    assert skipped(bare_python, tmp_path / "out") == (0, "gpu_check: skipped: torch is not installed\n")


def test_without_a_gpu_it_says_so_and_succeeds(tmp_path):
    outcome = skipped(sys.executable, tmp_path / "out", CUDA_VISIBLE_DEVICES="")
    assert outcome == (0, "gpu_check: skipped: torch sees no CUDA device\n")


def test_its_steps_end_within_ten_minutes():
    """By their time limits, each with the time until a process that ignores its limit is killed."""
    script = SCRIPT.read_text()
    limits = [int(limit) for limit in re.findall(r"^ *step \w+ (\S+) ", script, re.MULTILINE)]
    until_killed = int(re.search(r'^ *timeout -k (\d+) "\$limit" ', script, re.MULTILINE)[1])
    outside_of_steps = 30
    assert len(limits) == 5
    assert sum(limits) + len(limits) * until_killed + outside_of_steps < 600


def test_the_files_that_hold_gpu_tests_run_where_their_imports_are(bare_python):
    files, left_out = runnable_tests(sys.executable)
    assert {"tests/decode/test_gpu.py", "tests/models/test_graph.py", "tests/trees/test_builders_agree.py"} <= set(
        files
    )
    assert left_out == []
    none, each = runnable_tests(bare_python)
    assert none == []
    assert len(each) == len(files)
    assert "gpu_check: tests/decode/test_gpu.py is left out: pytest is not installed" in each


@pytest.mark.parametrize(
    ("files", "steps"),
    [
        ("", ["kernel tests/serving/test_tree_kernel.py"]),
        ("a.py b.py", ["tests a.py b.py", "kernel tests/serving/test_tree_kernel.py"]),
    ],
)
def test_where_no_file_can_be_imported_pytest_does_not_collect_them_all(files, steps, tmp_path):
    played = f"""
        runnable_tests() {{ echo {files}; }}
        step() {{
          name=$1
          while [[ $1 != *.py ]]; do shift; done
          echo "$name $*"
          echo of pytest >"$out/$name.json"
        }}
        python={sys.executable} out={tmp_path} pytest_alone=(pytest)
        {function("step_tests")}
        step_tests"""
    done = subprocess.run(["bash", "-c", played], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*steps, *["of pytest"] * len(steps)]
