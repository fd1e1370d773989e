"""The CUDA GPUs this process may use, as the driver's NVML tells: names, other users, and what slows their clocks.

Nothing here imports torch. A slice of a GPU (MIG) counts as a GPU: it has a UUID of its own, and CUDA takes it by that.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

SLOWED_BY = {
    "power cap": 0x04,
    "hardware slowdown": 0x08,
    "software thermal slowdown": 0x20,
    "hardware thermal slowdown": 0x40,
    "power brake": 0x80,
}
"""NVML's reasons for clocks below what was asked for, by bit. An idle GPU and clocks set by hand are none."""


def visible() -> list[dict[str, str]]:
    """Name, driver and UUID of each GPU of CUDA_VISIBLE_DEVICES, in its order; of all without it."""
    return list(_visible(os.environ.get("CUDA_VISIBLE_DEVICES")))


@functools.cache
def _visible(chosen: str | None) -> tuple[dict[str, str], ...]:
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return tuple(
            {
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "driver": driver,
                "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
            }
            for handle in _handles(pynvml, chosen)
        )
    except pynvml.NVMLError:
        return ()


def _handles(pynvml: Any, chosen: str | None) -> Iterator[Any]:
    count = pynvml.nvmlDeviceGetCount()
    for entry in range(count) if chosen is None else chosen.split(","):
        name = str(entry).strip()
        if name.isdigit() and int(name) < count:
            yield from _slices(pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(name)))
        elif name.startswith(("GPU-", "MIG-")):
            yield pynvml.nvmlDeviceGetHandleByUUID(name)
        else:
            return  # CUDA, too, sees nothing from the first entry that is none


def _slices(pynvml: Any, handle: Any) -> list[Any]:
    """The GPU itself, or its slices where it is divided."""
    found = []
    with contextlib.suppress(pynvml.NVMLError):  # most GPUs cannot be divided
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(pynvml.NVMLError):  # a place for a slice that holds none
                    found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return found or [handle]


def users(uuid: str) -> list[dict[str, Any]]:
    """Other processes on this GPU: pid and bytes of its memory."""
    import pynvml

    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return []
    return [{"pid": p.pid, "gpu_bytes": p.usedGpuMemory} for p in processes if p.pid != os.getpid()]


def readings(uuid: str) -> dict[str, Any]:
    """Clocks in MHz, temperature in degrees Celsius, power in watts, and what slows the clocks now; of a slice, those
    of its GPU. What the driver does not tell is left out."""
    import pynvml

    found: dict[str, Any] = {}
    with contextlib.suppress(pynvml.NVMLError):
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith("MIG-"):
            handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        for name, read in {
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "slowed_by": lambda: _reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }.items():
            with contextlib.suppress(pynvml.NVMLError):
                found[name] = read()
    return found


def _reasons(bits: int) -> list[str]:
    return [name for name, bit in SLOWED_BY.items() if bits & bit]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
