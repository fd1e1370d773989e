"""Refuse to unlock a study while one of its jobs is alive.

    python -m workflow.lib.resume results/embedded

A killed Snakemake leaves its jobs running; unlocking then would start a second copy of each beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cast.errors import CastError
from cast.experiments.partial import claimant
from workflow.lib import run


def alive(folder: Path) -> list[str]:
    """Checkpoints of this study that a living process holds, with that process."""
    found = []
    for path in sorted(folder.rglob("*.partial")):
        holder = claimant(path)
        if holder:
            found.append(f"{path} is being written by {holder}")
    return found


def main(results: str) -> int:
    folder = Path(results)
    try:
        found = alive(folder)
    except CastError as error:
        found = [str(error)]
    for line in found:
        print(f"error: {line}; wait for it or end it, then run make resume again", file=sys.stderr)
    return 2 if found else 0


if __name__ == "__main__":
    run(main)
