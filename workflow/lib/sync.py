"""The W&B runs of a study that lie on disk, the newest of each: what ``wandb sync`` is given.

python -m workflow.lib.sync results/embedded
"""

from __future__ import annotations

import sys
from pathlib import Path

from workflow.lib import run


def newest_runs(folder: Path) -> list[Path]:
    """A cell that was resumed or measured again has several folders of one id; the last is complete."""
    found = {}
    for path in sorted(folder.glob("wandb/wandb/offline-run-*")):  # the name begins with the time
        found[path.name.rsplit("-", 1)[1]] = path
    return sorted(found.values())


def main(results: str) -> int:
    folder = Path(results)
    runs = newest_runs(folder)
    if not runs:
        print(f"error: no run in {folder}/wandb; measure with overrides=[tracking=offline]", file=sys.stderr)
        return 2
    print("\n".join(map(str, runs)))
    return 0


if __name__ == "__main__":
    run(main)
