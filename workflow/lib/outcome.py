"""The last words of a run: where the report is, which cells have no numbers, and the exit code.

python -m workflow.lib.outcome results/embedded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def failures(folder: Path) -> list[str]:
    """``experiment setting/domain: reason`` of every record with failed rows."""
    found = []
    for path in sorted(folder.glob("*/*/*.parquet")):
        try:
            frame = pd.read_parquet(path, columns=["experiment", "setting", "domain", "status", "reason"])
        except (OSError, ValueError, KeyError) as error:
            found.append(f"{path}: {str(error).splitlines()[0]}")
            continue
        for row in frame[frame["status"] == "failed"].drop_duplicates("reason").itertuples():
            found.append(f"{row.experiment} {row.setting}/{row.domain}: {row.reason}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    folder = Path((arguments or sys.argv[1:])[0])
    failed = failures(folder)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    report = folder / "report.html"
    print(f"report: {report}" if report.is_file() else f"no report; records are in {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
