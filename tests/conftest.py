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

# Files with the longest work, longest first. A worker of `make test` takes whole files; were one of these left to the
# end, the others would wait for it.
LONGEST = (
    "workflow/test_smoke_study.py",
    "verify/test_law.py",  # converts the embedded target where no test has before
    "scripts/test_command_line.py",
    "scripts/test_kept_records.py",
    "scripts/test_measuring_jobs.py",
    "workflow/test_tiny_scale.py",
    "workflow/test_configuration.py",
    "serving/test_serve.py",
    "figures/test_rendering.py",
    "figures/test_scorecard.py",
    "training/test_train_script.py",
    "training/test_killed_run.py",
    "trees/test_builders_agree.py",
    "experiments/test_replay.py",
    "experiments/test_total_variation.py",
    "decode/test_generate.py",
    "decode/test_drafter_laws.py",
)


def pytest_collection_modifyitems(items):
    """The longest files first, the others as they were found."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


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
