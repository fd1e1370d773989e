"""Another tenant of the device, on purpose: a process that copies memory for as long as a job runs (appendix D)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_BYTES = 256 * 2**20
"""Of each buffer: more than any cache holds."""


@contextlib.contextmanager
def neighbour(kind: str) -> Iterator[int]:
    """Run the streaming process on ``cpu`` or ``cuda`` inside the block; yields its process id."""
    command = [sys.executable, "-m", "cast.experiments.neighbour", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()  # it has begun, or ended
            yield process.pid
        finally:
            process.terminate()


def stream(kind: str) -> None:
    """Copy one buffer into another until the parent is gone."""
    import torch

    torch.set_num_threads(1)
    source, target = (torch.zeros(_BYTES, dtype=torch.uint8, device=kind) for _ in range(2))
    parent = os.getppid()
    print("streaming", flush=True)
    while os.getppid() == parent:
        target.copy_(source)
        if kind == "cuda":
            torch.cuda.synchronize()


if __name__ == "__main__":
    stream(sys.argv[1])
