"""Summarise the width sweep of a study once, so that figures and tables need not resample again.

Writes <out> (one row per setting, domain, method, budget and drafter) and, beside it, averages.parquet (one row
per setting, method, budget and drafter: gains averaged over domains) and gaps.parquet (one row per setting: the
predicted width against the sweep oracle).
"""

from __future__ import annotations

from pathlib import Path

from . import data
from .files import complete_or_absent


def write(records: Path, out: Path) -> list[Path]:
    """Compute the three summaries and write them, all or none. Returns the paths written."""
    study = data.load(records, summarise=False)
    paths = data.summary_paths(out)
    with complete_or_absent(out.parent) as scratch:
        for name, frame in data.summaries(study.decode, study.widths).items():
            frame.to_parquet(scratch / paths[name].name, index=False)
    return list(paths.values())
