"""The last words of a run: where the report is, which cells have no numbers, and the exit code.

python -m workflow.lib.outcome results/embedded
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

from cast.experiments.failures import failed_rows
from workflow.lib import run


def failures(folder: Path) -> dict[Path, list[str]]:
    """Record -> a line ``experiment setting/domain: reason`` for each reason why it has failed cells."""
    found = {}
    for path in sorted(folder.glob("*/*/*.parquet")):
        try:
            frame = pd.read_parquet(path)
            rows = failed_rows(frame)
            lines = [
                f"{row.experiment} {row.setting}/{row.domain}: {row.reason}"
                for row in rows.drop_duplicates("reason").itertuples()
            ]
        except (OSError, ValueError, KeyError) as error:
            lines = [f"{path}: {(str(error) or type(error).__name__).splitlines()[0]}"]
        if lines:
            found[path] = lines
    return found


def violations(folder: Path) -> list[str]:
    """A line for each record of outputs that are not the target's own (greedy equivalence)."""
    found = []
    for path in sorted(folder.glob("*/*/*.parquet")):
        try:
            frame = pd.read_parquet(path)
        except (OSError, ValueError):
            continue  # told as a failure
        broken = int((frame["verdict"] == "violation").sum()) if "verdict" in frame else 0
        if broken:
            found.append(f"{'/'.join(path.with_suffix('').parts[-3:])}: {broken} outputs break the rule for departures")
    return found


def marked_records(folder: Path) -> tuple[list[str], list[str]]:
    """Records during whose measurement other processes used the device, and those whose GPU ran at lowered clocks
    for another reason than its power cap, under which some always run; by their provenance."""
    shared, slowed = [], []
    for path in sorted(folder.glob("*/*/*.parquet")):
        try:
            told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        name = "/".join(path.with_suffix("").parts[-3:])
        if told.get("other_users_before") or told.get("other_users_after"):
            shared.append(name)
        readings = [told.get(f"readings_{when}") or {} for when in ("before", "after")]
        if {reason for reading in readings for reason in reading.get("slowed_by", ())} - {"power cap"}:
            slowed.append(name)
    return shared, slowed


def main(results: str) -> int:
    folder = Path(results)
    if not folder.is_dir():
        print(f"error: {folder} is not a folder; give the results folder of a study", file=sys.stderr)
        return 2
    failed = [line for lines in failures(folder).values() for line in lines]
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    if failed:
        print(f"make retry STUDY={folder.name} measures failed cells again", file=sys.stderr)
    broken = violations(folder)
    for line in broken:
        print(f"violation: {line}", file=sys.stderr)
    marks = ("other processes used the device beside", "the GPU's clocks were lowered during")
    for what, marked in zip(marks, marked_records(folder), strict=True):
        if marked:
            print(
                f"warning: {what} {len(marked)} record(s), the first {marked[0]}; the provenance says more",
                file=sys.stderr,
            )
    report = folder / "report.html"
    print(f"report: {report}" if report.is_file() else f"no report; records are in {folder}")
    return 1 if failed or broken else 0


if __name__ == "__main__":
    run(main)
