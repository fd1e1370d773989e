"""Summarise an experiment of a study once, so that figures and tables need not resample again.

Of the width sweep: <out> (one row per setting, domain, method, budget and drafter) and, beside it, averages.parquet
(one row per setting, method, budget and drafter: gains averaged over domains) and gaps.parquet (one row per setting:
the predicted width against the sweep oracle). Of one of `SUMMARISED`: <out>, the cells that its artefacts show.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from cast.experiments.records import DECODE

from . import data
from .files import complete_or_absent
from .inputs import SUMMARISED
from .panels import cells_of


def write(records: Path, out: Path, experiment: str = data.SWEEP) -> list[Path]:
    """Compute the summary of an experiment and write its files, all or none. Returns the paths written."""
    data.check_folder(records)
    of = data.summary_of(records, experiment)  # before they are read: a record written meanwhile makes it stale
    frames = _of_sweep(records, out) if experiment == data.SWEEP else {out: _of_cells(records, experiment)}
    with complete_or_absent(out.parent) as scratch:
        for path, frame in frames.items():
            data.write_summary(frame, scratch / path.name, of)
    return list(frames)


def _of_sweep(records: Path, cells: Path) -> dict[Path, pd.DataFrame]:
    study = data.load(records, summarise=False)
    paths = data.summary_paths(cells)
    return {paths[name]: frame for name, frame in data.summaries(study.decode, study.widths).items()}


def _of_cells(records: Path, experiment: str) -> pd.DataFrame:
    return cells_of(data.read_rows(records, experiment, DECODE), *SUMMARISED[experiment])
