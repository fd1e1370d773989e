"""Render one figure or table, the scorecard, or a summary they share, from the records of a study."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from cast.errors import CastError

from . import artefacts, data, summary, tables
from .files import complete_or_absent
from .inputs import SUMMARISED

SUMMARY = "summary"
NAMES = [*artefacts(), SUMMARY]
# What is appended to --out.
SUFFIXES = (".pdf", ".svg", ".png", ".csv", ".md", ".tex", ".html", ".json")


class Parser(argparse.ArgumentParser):
    """One that says what is wrong in one line, without its usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; {self.prog} --help says what it takes\n")


def parser() -> argparse.ArgumentParser:
    options = Parser(prog="python -m figures", description=__doc__, allow_abbrev=False)
    options.add_argument("name", type=_artefact, metavar="NAME", help=", ".join(NAMES))
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
        help="output path without suffix; of a summary, its file: FOLDER/summary/cells.parquet of the sweep, "
        "FOLDER/summary/EXPERIMENT.parquet of another experiment",
    )
    options.add_argument(
        "--experiment",
        choices=[data.SWEEP, *SUMMARISED],
        help=f"of which the summary is (default: {data.SWEEP})",
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
        _check_out(arguments.out, arguments.name)
        written = _render(arguments)
    except CastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {_told(error)}; see that it is there, is a file and is yours to use", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in written))
    return 0


def _artefact(name: str) -> str:
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        raise argparse.ArgumentTypeError(f"nothing is called {name!r}" + (f", did you mean {near[0]}?" if near else ""))
    return name


def _check_out(out: Path, name: str) -> None:
    """Refuse what cannot be written before anything is computed."""
    if not out.name or "\0" in str(out):
        raise CastError(f"--out {str(out)!r} names no file; give one, e.g. --out results/{name}")
    if name != SUMMARY and out.suffix in SUFFIXES:
        raise CastError(f"--out {out} has a suffix, and each format adds its own; give --out {out.with_suffix('')}")
    try:
        with complete_or_absent(out.parent):
            pass
    except OSError as error:
        raise CastError(f"--out {out} cannot be written ({_told(error)}); give one in a folder of yours") from error


def _told(error: OSError) -> str:
    """The cause without its number."""
    return f"{error.filename2 or error.filename}: {error.strerror}" if error.strerror else " ".join(str(error).split())


def _render(arguments: argparse.Namespace) -> list[Path]:
    if arguments.name == SUMMARY:
        return summary.write(arguments.records, arguments.out, arguments.experiment or data.SWEEP)
    if arguments.experiment:
        raise CastError(f"--experiment says what a summary is of, and {arguments.name} is none; leave it out")
    module = importlib.import_module(f"figures.{arguments.name}")
    # A table module builds, and is written like every other; a figure knows how it is drawn.
    render: Callable[[data.Study, Path], list[Path]] = getattr(module, "render", None) or (
        lambda study, out: tables.write(module.build(study), out)
    )
    return render(data.load(arguments.records, arguments.cells, arguments.settings, arguments.domains), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
