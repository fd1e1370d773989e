"""The smoke study, run once for all tests of this folder, in a copy of the tree."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tree:
    """A copy of what the pipeline needs, with its own results."""

    root: Path

    @property
    def environment(self):
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "XDG_RUNTIME_DIR": str(self.root),
        }

    def command(self, *arguments):
        return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]

    def snakemake(self, *arguments, environment=None):
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env=self.environment | (environment or {}),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def planned(self, *arguments):
        """Rule -> number of jobs that a run would start."""
        finished = self.snakemake("-n", "-q", "rules", *arguments)
        assert finished.returncode == 0, finished.stderr
        counts = {}
        for line in (finished.stdout + finished.stderr).splitlines():
            words = line.split()
            if len(words) == 2 and words[1].isdigit() and words[0] not in ("total", "all"):
                counts[words[0]] = int(words[1])
        return counts

    def mtimes(self, pattern):
        return {path: path.stat().st_mtime_ns for path in self.root.glob(pattern)}


@pytest.fixture(scope="session")
def fresh_tree(tmp_path_factory):
    """Makes copies of the tree; ``with_results`` of another one brings its records and Snakemake's memory."""

    def make(with_results=None):
        root = tmp_path_factory.mktemp("tree")
        for name in ("conf", "figures", "profiles", "scripts", "workflow"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "Snakefile", root)
        (root / "tests").mkdir()
        (root / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
        if with_results:
            shutil.copytree(with_results.root / "results", root / "results")
            shutil.copytree(with_results.root / ".snakemake", root / ".snakemake")
        return Tree(root)

    return make


@pytest.fixture(scope="session")
def untimed():
    """Reads a record without the columns in which two runs of the same job differ."""

    def read(path):
        frame = pd.read_parquet(path)
        return frame.loc[:, ~frame.columns.str.contains("_ms|^ms_|^host$|^session$")]

    return read


@pytest.fixture(scope="session")
def smoke(fresh_tree):
    """A finished smoke study; read it, change copies of it only."""
    tree = fresh_tree()
    finished = tree.snakemake("--config", "study=smoke", environment={"PYTHONDONTWRITEBYTECODE": "1"})
    (tree.root / "told.txt").write_text(finished.stdout + finished.stderr)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return tree
