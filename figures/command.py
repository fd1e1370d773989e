"""The command line every figure and table shares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cast.errors import CastError

from . import data


def parser(description: str, out_help: str) -> argparse.ArgumentParser:
    """The options of every module of this package."""
    options = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    options.add_argument(
        "--records",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="results folder of the study, e.g. results/embedded",
    )
    options.add_argument("--out", type=Path, required=True, metavar="PATH", help=out_help)
    options.add_argument(
        "--cells",
        type=Path,
        metavar="FILE",
        help="summary from figures.summary (default: FOLDER/summary/cells.parquet)",
    )
    options.add_argument(
        "--settings",
        nargs="*",
        metavar="NAME",
        help="settings the study was meant to measure, in table order",
    )
    options.add_argument(
        "--domains", nargs="*", metavar="NAME", help="domains the study was meant to measure, in table order"
    )
    return options


def run(
    description: str,
    render: Callable[[data.Study, Path], list[Path]],
    argv: Sequence[str] | None = None,
    out_help: str = "output path without suffix",
) -> int:
    """Parse the options, load the study, render, print what was written. Returns the exit code."""
    arguments = parser(description, out_help).parse_args(argv)
    return guarded(lambda: _render(arguments, render))


def guarded(action: Callable[[], list[Path]]) -> int:
    """Run an action; a problem the user can act on becomes one line on stderr and exit code 2."""
    try:
        written = action()
    except (CastError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in written))
    return 0


def _render(arguments: argparse.Namespace, render) -> list[Path]:
    study = data.load(arguments.records, arguments.cells, arguments.settings, arguments.domains)
    return render(study, arguments.out)
