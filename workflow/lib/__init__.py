"""What the rules need in Python, and the commands of the Makefile: nothing here imports torch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

# What composes the jobs' configurations, wherever this is imported from.
_SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
if _SCRIPTS not in sys.path:
    sys.path.insert(0, _SCRIPTS)


def run(main: Callable[..., int]) -> NoReturn:
    """Exit as a command whose arguments are those of ``main``; one line of usage where others were given."""
    parameters = inspect.signature(main).parameters.values()
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not len(needed) <= len(sys.argv) - 1 <= len(parameters):
        told = " ".join(f"<{each.name}>" if each in needed else f"[<{each.name}>]" for each in parameters)
        print(f"usage: python -m {main.__globals__['__spec__'].name} {told}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
