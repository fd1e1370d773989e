"""Render one figure or table, the scorecard, or the summary they share, from the records of a study."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cast.errors import CastError

from . import artefacts, data, summary, tables


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m figures", description=__doc__)
    names = [*artefacts(), "summary"]
    options.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    options.add_argument(
        "--records",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="results folder of the study, e.g. results/embedded",
    )
    options.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="output path without suffix; of the summary, the file of its cells: FOLDER/summary/cells.parquet",
    )
    options.add_argument(
        "--cells", type=Path, metavar="FILE", help="the summary (default: FOLDER/summary/cells.parquet)"
    )
    options.add_argument(
        "--settings", nargs="*", metavar="NAME", help="settings the study was meant to measure, in table order"
    )
    options.add_argument(
        "--domains", nargs="*", metavar="NAME", help="domains the study was meant to measure, in table order"
    )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Render, print what was written. A problem the user can act on is one line on stderr and exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        written = _render(arguments)
    except (CastError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in written))
    return 0


def _render(arguments: argparse.Namespace) -> list[Path]:
    if arguments.name == "summary":
        return summary.write(arguments.records, arguments.out)
    module = importlib.import_module(f"figures.{arguments.name}")
    # A table module builds, and is written like every other; a figure knows how it is drawn.
    render: Callable[[data.Study, Path], list[Path]] = getattr(module, "render", None) or (
        lambda study, out: tables.write(module.build(study), out)
    )
    return render(data.load(arguments.records, arguments.cells, arguments.settings, arguments.domains), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
