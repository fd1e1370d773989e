"""Studies that the figures' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_records import StudyFolder, write_plausible


@pytest.fixture
def folder(tmp_path) -> StudyFolder:
    return StudyFolder(tmp_path / "study")


@pytest.fixture(scope="session")
def full_study(tmp_path_factory) -> Path:
    """Two settings, three domains, five prompts, four widths: everything measured, with its summary."""
    from figures import summary

    root = write_plausible(tmp_path_factory.mktemp("full") / "study")
    summary.write(root, root / "summary" / "cells.parquet")
    return root
