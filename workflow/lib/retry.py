"""Delete the records of a study that have failed cells, so that the next run measures them again.

    python -m workflow.lib.retry results/embedded

Snakemake takes a record that says "failed" for done: nothing tells it that memory or a device is free again. What such
a job finished stays in its checkpoint, and it continues from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workflow.lib import run
from workflow.lib.outcome import failures


def main(results: str) -> int:
    folder = Path(results)
    paths = failures(folder)
    for path in paths:
        path.unlink()
        kept = Path(f"{path}.partial").exists()
        print(f"deleted {path}; {'what failed' if kept else 'all of it'} is measured again", file=sys.stderr)
    if not paths:
        print(f"no failed cell in {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run(main)
