"""The check for machines with a GPU, where there is none: it says why it does nothing, and which tests it would run."""

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


def runnable_tests(python):
    """What the script's function of that name prints: the files, and a line for each that is left out."""
    function = re.search(r"^runnable_tests\(\) \{\n.*?^\}\n", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)[0]
    done = subprocess.run(
        ["bash", "-c", f"{function}runnable_tests"],
        cwd=ROOT,
        env=os.environ | {"python": str(python), "PYTHONPATH": "src:scripts"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr.splitlines()


def test_without_torch_it_says_so_and_succeeds(bare_python, tmp_path):
    done = subprocess.run(
        [SCRIPT, tmp_path / "out"], env=os.environ | {"PYTHON": str(bare_python)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "gpu_check: skipped: torch is not installed\n")


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
