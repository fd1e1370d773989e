"""Fixtures shared by the whole suite."""

import functools
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden pairs and their reference traces."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_pair():
    """Loads a golden pair by name, in fp32 on the CPU, once per session."""
    from cast import load_pair

    return functools.cache(lambda name: load_pair(GOLDEN / name / "target", GOLDEN / name / "drafter", device="cpu"))
