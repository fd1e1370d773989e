"""Fixtures shared by the whole suite."""

import functools
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers share the cores
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden pairs and their reference traces."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_pair():
    """Loads a golden pair by name, in fp32 on the CPU, once per session."""
    from cast import load_pair

    @functools.cache
    def load(name):
        target = "eagle3_tiny" if name == "dart_tiny" else name  # one target serves both heads
        return load_pair(GOLDEN / target / "target", GOLDEN / name / "drafter", device="cpu")

    return load
