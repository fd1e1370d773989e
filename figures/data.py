"""Records of one study, loaded once and read by every figure and table.

A study that is incomplete, failed or empty is a normal input: whatever is missing is answered by
``Study.reason``, which says why in words fit for a table cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cast.errors import CastError
from cast.experiments import records
from cast.experiments.files import sha256_file
from cast.width.oracle import sweep_oracle

from .inputs import SUMMARISED

NO_RECORDS = "the study holds no records"
# Tables and panels list domains in this order, then any other by name.
DOMAIN_ORDER = [
    "math", "code", "chat", "longdoc", "gsm8k", "humaneval", "mtbench", "math500", "mbpp", "govreport",
]  # fmt: skip
SUMMARIES = ("cells", "averages", "gaps")
CHAIN, TREE, PLAIN = "dflash", "cast", "autoregressive"
SWEEP, PROBE = "width_sweep", "latency_probe"
_SCHEMAS = {SWEEP: records.DECODE, PROBE: records.LATENCY}


# One row of a summary table: column -> value.
Summary = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What one study holds on disk.

    decode, latency: validated rows of the width sweep and the latency probe, failed ones included.
    widths: setting -> the width prediction of results/<study>/width/<setting>.json; where none could be made
        its width is None and its reason says why.
    wall_s: (setting, domain) -> wall seconds of that width sweep, from its provenance.
    cells, averages, gaps: ``cell_summary``, ``setting_summary`` and ``width_gap`` of
        cast.experiments.statistics.
    summary: the folder that holds summaries of other experiments, those of `SUMMARISED`; None to read none.
    settings, domains: in the order in which tables list them.
    """

    root: Path
    decode: pd.DataFrame
    latency: pd.DataFrame
    widths: dict[str, dict] = field(default_factory=dict)
    wall_s: dict[tuple[str, str], float] = field(default_factory=dict)
    cells: pd.DataFrame = field(default_factory=pd.DataFrame)
    averages: pd.DataFrame = field(default_factory=pd.DataFrame)
    gaps: pd.DataFrame = field(default_factory=pd.DataFrame)
    summary: Path | None = None
    settings: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)

    def cell(self, setting: str, domain: str, method: str, budget: int) -> Summary | None:
        """The summary of one cell, or None where no prompt of it was measured."""
        cell = self._cells.get((setting, domain, method, budget))
        return cell if cell is not None and cell["prompts"] > 0 else None

    def average(self, setting: str, method: str, budget: int) -> Summary | None:
        """Gain of a setting averaged over its domains, with its interval; None where not measured."""
        average = self._averages.get((setting, method, budget))
        return average if average is not None and pd.notna(average["gain"]) else None

    def gap(self, setting: str) -> Summary | None:
        """The predicted width's gain against the oracle's, on common prompts; None where not measured."""
        gap = self._gaps.get((setting,))
        return gap if gap is not None and pd.notna(gap["gap_points"]) else None

    @cached_property
    def _cells(self) -> dict[tuple, Summary]:
        return _indexed(self.cells, "setting", "domain", "method", "budget")

    @cached_property
    def _averages(self) -> dict[tuple, Summary]:
        return _indexed(self.averages, "setting", "method", "budget")

    @cached_property
    def _gaps(self) -> dict[tuple, Summary]:
        return _indexed(self.gaps, "setting")

    @cached_property
    def median_runs(self) -> dict[tuple, Summary]:
        """(setting, domain, method, budget) -> the cell in its run of the median gain; of sweeps with several runs."""
        if not len(self.decode):
            return {}
        timed = self.decode[~self.decode["traced"].astype(bool)]
        runs = timed.groupby("setting")["repeat"].nunique()
        repeated = timed[timed["setting"].isin(runs.index[runs > 1])]
        if not len(repeated):
            return {}
        from cast.experiments.statistics import median_runs  # scipy, and seconds that a sweep of one run does not pay

        found = median_runs(repeated)
        found = found[found["median_run_of"] > 1] if len(found) else found
        return _indexed(found, "setting", "domain", "method", "budget")

    def measured_domains(self, setting: str) -> list[str]:
        """Domains of the study in which this setting has at least one measured cell."""
        have = set(self._measured(setting=setting)["domain"]) if len(self.cells) else set()
        return [domain for domain in self.domains if domain in have]

    def tree_widths(self, setting: str | None = None) -> list[int]:
        """Widths N at which CAST was measured, ascending; of one setting or of all."""
        keys = {} if setting is None else {"setting": setting}
        rows = self._measured(method=TREE, **keys) if len(self.cells) else self.cells
        return sorted({int(budget) for budget in rows["budget"]}) if len(rows) else []

    def tried_widths(self, setting: str, domain: str) -> list[int]:
        """Widths N that one sweep tried, ascending, whether they were measured or failed."""
        if not len(self.decode):
            return []
        rows = _where(self.decode, setting=setting, domain=domain, method=TREE)
        return sorted({int(budget) for budget in rows["budget"]})

    def chain_budget(self, setting: str) -> int | None:
        """Draft nodes of the chain (block size minus one), or None where no chain was measured."""
        rows = self._measured(setting=setting, method=CHAIN) if len(self.cells) else self.cells
        return int(rows["budget"].max()) if len(rows) else None

    def predicted(self, setting: str) -> int | None:
        """N* of the mode the study deploys, or None where no prediction was made."""
        width = self.widths.get(setting, {}).get("width")
        return None if width is None else int(width)

    def oracle(self, setting: str) -> int | None:
        """The width with the largest gain averaged over domains, among those measured in the most domains."""
        gap = self.gap(setting)
        if gap is not None:
            return int(gap["oracle_width"])
        averages = {width: self.average(setting, TREE, width) for width in self.tree_widths(setting)}
        averages = {width: average for width, average in averages.items() if average is not None}
        most = max((average["domains"] for average in averages.values()), default=0)
        gains = {width: float(average["gain"]) for width, average in averages.items() if average["domains"] == most}
        return sweep_oracle(gains) if gains else None

    def prediction_seconds(self, setting: str) -> float | None:
        """Wall seconds of the probe and the score log that the predicted width rests on."""
        content = self.widths.get(setting, {})
        parts = [content.get("probe_wall_s"), content.get("scores_wall_s")]
        return None if None in parts else float(sum(parts))

    def sweep_seconds(self, setting: str) -> float | None:
        """Wall seconds of the whole width sweep of a setting, all domains."""
        parts = [self.wall_s.get((setting, domain)) for domain in self.measured_domains(setting)]
        return None if None in parts or not parts else float(sum(parts))

    def target(self, setting: str) -> str:
        """The target a setting's records name ("" where there is no record)."""
        return self._identity(setting, "target")

    def device(self, setting: str) -> str:
        """The device a setting's records name ("" where there is no record)."""
        return self._identity(setting, "device")

    def records(self, experiment: str, schema) -> pd.DataFrame:
        """Validated rows of any experiment of the study, failed ones included; empty without a record."""
        return self.once((experiment, schema.name), lambda: read_rows(self.root, experiment, schema))

    def summarised(self, experiment: str, statistic: str, split: str | None) -> pd.DataFrame | None:
        """The cells that a summary holds, by this statistic; None where it has none of these records."""
        if (experiment, statistic, split) == (SWEEP, "cell_summary", None):
            return self.cells if len(self.cells) else None
        if self.summary is None or SUMMARISED.get(experiment) != (statistic, split):
            return None
        return _read_summary(self.summary / f"{experiment}.parquet", summary_of(self.root, experiment))

    def once(self, key: tuple, compute: Callable[[], Any]) -> Any:
        """What ``compute`` gives, computed once for this study; many claims rest on the same numbers."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    @cached_property
    def _computed(self) -> dict[tuple, Any]:
        return {}

    def reason(self, setting: str, experiment: str = SWEEP, rows: pd.DataFrame | None = None, **keys) -> str:
        """Why a cell is not measured: the reason of the failed record that covers it, or that there is none.

        rows: those of the experiment, where it is neither the width sweep nor the probe.
        keys: record columns that name the cell (domain, method, budget, packed_tokens, ...); None is ignored.
        """
        frame = rows if rows is not None else self.latency if experiment == PROBE else self.decode
        if not len(frame):
            return f"no {experiment} record"
        keys = {column: value for column, value in keys.items() if value is not None}
        rows = _where(frame, setting=setting, **keys)
        failed = rows[rows["status"] == "failed"]
        if not len(failed):
            # A job that failed as a whole may have left a single row, which then speaks for all its cells.
            job = _where(frame, setting=setting, **{c: v for c, v in keys.items() if c == "domain"})
            failed = job if (job["status"] == "failed").all() else job[:0]
        if len(failed):
            return "; ".join(failed["reason"].unique())
        domain = keys.get("domain")
        if len(_where(frame, setting=setting, **({"domain": domain} if domain else {}))):
            return f"not part of this {experiment}"
        return f"no {experiment} record"

    def missing_width(self, setting: str) -> str:
        """Why the cells at N* of a setting are not measured."""
        predicted = self.predicted(setting)
        if predicted is None:
            return self.widths.get(setting, {}).get("reason") or "no width prediction"
        if not self.tree_widths(setting):
            return self.reason(setting)
        return f"N* = {predicted} is not among the swept widths"

    def _measured(self, **keys) -> pd.DataFrame:
        return _where(self.cells[self.cells["prompts"] > 0], **keys)

    def _identity(self, setting: str, column: str) -> str:
        for frame in (self.decode, self.latency):
            if len(frame):
                values = frame.loc[frame["setting"] == setting, column].dropna()
                if len(values):
                    return str(values.iloc[0])
        return ""


def load(
    root: Path,
    cells: Path | None = None,
    settings: list[str] | None = None,
    domains: list[str] | None = None,
    summarise: bool = True,
) -> Study:
    """Read the records of a study.

    root: the study's results folder; it may be empty, but it must exist.
    cells: a summary written by ``figures.summary``; by default <root>/summary/cells.parquet when it
        is of these records. Without one the summaries are computed here (some seconds).
    settings, domains: what the study was meant to measure, so that what is missing shows as missing.
    Raises CastError for a broken record, or a summary that is given but does not exist or is of other records.
    """
    root = Path(root)
    check_folder(root)
    decode, latency = (read_rows(root, experiment, schema) for experiment, schema in _SCHEMAS.items())
    width_files = sorted(root.glob("width/*.json"))
    widths = {path.stem: read_json(path) for path in width_files}
    swept = _summaries(root, cells, decode, widths) if summarise else {}
    found = [*widths, *_unique(decode, "setting"), *_unique(latency, "setting")]
    # Without sweep, probe and prediction a study is about what its other experiments measured.
    found = found or sorted({path.parent.name for path in root.glob("*/*/*.parquet")})
    study = Study(
        root=root,
        decode=decode,
        latency=latency,
        widths=widths,
        wall_s=_wall_seconds(root),
        **swept,
        summary=_default_summary(root).parent if cells is None else Path(cells).parent,
        settings=_ordered(settings, found),
        domains=_ordered(domains or _known(_unique(decode, "domain")), _unique(decode, "domain")),
    )
    for frame, (experiment, schema) in zip((decode, latency), _SCHEMAS.items(), strict=True):
        study.once((experiment, schema.name), lambda frame=frame: frame)
    return study


def summaries(decode: pd.DataFrame, widths: dict[str, dict]) -> dict[str, pd.DataFrame]:
    """The tables cells, averages and gaps of a study (10,000 bootstrap resamples each)."""
    if not len(decode):
        return dict.fromkeys(SUMMARIES, pd.DataFrame())
    from cast.experiments import statistics  # scipy: half a second that renders with a summary do not pay

    cells = statistics.cell_summary(decode)
    swept = set(decode["setting"])
    predicted = {name: content.get("width") for name, content in widths.items() if name in swept}
    predicted = {name: int(width) for name, width in predicted.items() if width is not None}
    return {
        "cells": cells,
        "averages": statistics.setting_summary(cells, decode),
        "gaps": statistics.width_gap(decode, predicted) if predicted else pd.DataFrame(),
    }


def summary_paths(cells: Path) -> dict[str, Path]:
    """Where the three summary tables of the sweep lie: beside the cell summary."""
    return {name: cells if name == "cells" else cells.with_name(f"{name}.parquet") for name in SUMMARIES}


def check_folder(root: Path) -> None:
    """Refuse what is no results folder."""
    if not root.is_dir():
        raise CastError(f"{root} is not a folder; --records takes the results folder of a study")


def record_paths(root: Path, experiment: str) -> list[Path]:
    """The files of an experiment's rows, by setting and domain."""
    return sorted(root.glob(f"{experiment}/*/*.parquet"))


def read_rows(root: Path, experiment: str, schema) -> pd.DataFrame:
    """Validated rows of an experiment, failed ones included; empty without a record."""
    paths = record_paths(root, experiment)
    return records.read_records(paths, schema) if paths else pd.DataFrame()


def summary_of(root: Path, experiment: str) -> dict[str, str]:
    """What a summary says that it is of: the experiment, and the checksum of each of its files."""
    files = [*record_paths(root, experiment), *(sorted(root.glob("width/*.json")) if experiment == SWEEP else ())]
    return {"experiment": experiment, **{str(path.relative_to(root)): sha256_file(path) for path in files}}


def write_summary(frame: pd.DataFrame, path: Path, of: dict[str, str]) -> None:
    """Keep a summary and what it is of, without which it is not read."""
    frame.attrs = {"summary_of": of}  # pandas keeps them in the file
    frame.to_parquet(path, index=False)


def _summaries(root: Path, cells: Path | None, decode, widths) -> dict[str, pd.DataFrame]:
    again = f"write it anew with `python -m figures summary --records {root} --out {cells}`"
    if cells is not None and not Path(cells).is_file():
        raise CastError(f"no summary at {cells}; {again}")
    paths, of = summary_paths(Path(cells) if cells else _default_summary(root)), summary_of(root, SWEEP)
    found = {name: _read_summary(path, of) for name, path in paths.items()}
    if all(frame is not None for frame in found.values()):
        return found
    if cells is not None:
        raise CastError(f"{cells} is no summary of the width sweep in {root} as it is now; {again}")
    return summaries(decode, widths)


def _default_summary(root: Path) -> Path:
    return root / "summary" / "cells.parquet"


def _read_summary(path: Path, of: dict[str, str]) -> pd.DataFrame | None:
    """The summary in this file; None where there is none, or one of something else."""
    if not path.is_file():
        return None
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        reason = " ".join(str(error).split())[:120]
        raise CastError(f"{path} is incomplete or damaged ({reason}); delete it, and it is computed anew") from error
    if frame.attrs.pop("summary_of", None) != of:
        return None
    return frame


def read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CastError(f"{path} is not valid JSON ({error}); delete it and run the study again") from error
    if not isinstance(content, dict):
        raise CastError(f"{path} holds no JSON object; delete it and run the study again")
    for key in ("width", "wall_s"):
        if not isinstance(content.get(key), int | float | None):
            raise CastError(f"{path}: {key} is {content[key]!r}, not a number; delete it and run the study again")
    return content


def _wall_seconds(root: Path) -> dict[tuple[str, str], float]:
    seconds = {}
    for path in sorted(root.glob(f"{SWEEP}/*/*.json")):
        wall_s = read_json(path).get("wall_s")
        if wall_s is not None:
            seconds[path.parent.name, path.stem] = float(wall_s)
    return seconds


def _where(frame: pd.DataFrame, **keys) -> pd.DataFrame:
    for column, value in keys.items():
        frame = frame[(frame[column] == value).astype(bool)]
    return frame


def _indexed(frame: pd.DataFrame, *columns: str) -> dict[tuple, Summary]:
    return {tuple(row[column] for column in columns): row for row in frame.to_dict("records")}


def _unique(frame: pd.DataFrame, column: str) -> list[str]:
    return [] if not len(frame) else [str(value) for value in frame[column].dropna().unique()]


def _known(domains: list[str]) -> list[str]:
    return [domain for domain in DOMAIN_ORDER if domain in domains]


def _ordered(expected: list[str] | None, found: list[str]) -> list[str]:
    extra = sorted(set(found) - set(expected or []))
    return list(dict.fromkeys([*(expected or []), *extra]))
