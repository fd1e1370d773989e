"""Another tenant of the device, on purpose: a process that copies memory for as long as a job runs (appendix D)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from cast.errors import CastError

_BYTES = 256 * 2**20
"""Of each buffer: more than any cache holds."""
_BEGUN = "streaming\n"

Unit = TypeVar("Unit")


@contextlib.contextmanager
def neighbour(kind: str) -> Iterator[subprocess.Popen[str]]:
    """Run the streaming process on ``cpu`` or ``cuda`` inside the block; yields it.

    Raises:
        CastError: the process did not begin.
    """
    command = [sys.executable, "-m", "cast.experiments.neighbour", kind, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout.readline() != _BEGUN:
                raise CastError(f"the process that streams memory on {kind} did not start; is there memory for it?")
            yield process
        finally:
            process.terminate()


def beside(kind: str, units: Iterable[Unit]) -> Iterator[Unit]:
    """The units of a measurement, each measured beside the streaming process.

    Raises:
        CastError: the process did not begin, or had ended when a unit was done; that unit is not handed on.
    """
    with neighbour(kind) as process:
        for unit in units:
            if process.poll() is not None:
                raise CastError(f"the process that streams memory on {kind} ended before the job; run the job again")
            yield unit


def stream(kind: str, parent: int) -> None:
    """Copy one buffer into another until the parent, a process id, is gone; it may be by now."""
    import torch

    torch.set_num_threads(1)
    # Written to: the pages of untouched zeros are one page, which a cache holds.
    source, target = (torch.ones(_BYTES, dtype=torch.uint8, device=kind) for _ in range(2))
    print(_BEGUN, end="", flush=True)
    while os.getppid() == parent:
        target.copy_(source)
        if kind == "cuda":
            torch.cuda.synchronize()


if __name__ == "__main__":
    stream(sys.argv[1], int(sys.argv[2]))
