"""The resident memory of this process, as Linux tells it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cast.errors import CastError

MEBIBYTE = 2**20

KERNELS_PEAK, READINGS = "the kernel's peak", "readings after each round"


def resident_growth(run: Callable[[Callable[[object], None]], object]) -> tuple[int, str]:
    """Bytes by which this process's resident memory grew during a run, at its highest, and what told the highest.

    A round's logits are freed before its tokens are handed on, so no reading sees them; the kernel's peak does. It
    counts where the run raised it, and the highest reading elsewhere.

    Args:
        run: called with a function that reads the memory, whatever it is given.
    """
    readings = [resident_bytes()]
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # has the kernel forget the peak so far, that of loading
    peak_before = status_bytes("VmHWM")
    run(lambda _: readings.append(resident_bytes()))
    peak = status_bytes("VmHWM")
    if peak > peak_before:
        return peak - readings[0], KERNELS_PEAK
    return max(readings) - readings[0], READINGS


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    resident = status_bytes("VmRSS")
    if not resident:
        raise CastError("the system does not tell this process's memory; leave out the benchmark memory with --only")
    return resident


def status_bytes(name: str) -> int:
    """One of the sizes that Linux keeps of this process; 0 where it does not."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
