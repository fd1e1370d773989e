"""The machine of a measurement: its name, who else uses it, and the lock that keeps timed jobs apart.

Nothing here imports torch: a job asks before it loads a model.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from cast.errors import CastError

# Another process counts as a user of the CPU from this share of one core.
_BUSY_SHARE = 0.10


def cpu_name() -> str:
    """The processor's own name, or its architecture where the system does not tell."""
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def cuda_gpu() -> dict[str, str] | None:
    """Name, driver and UUID of the CUDA GPU this process would use, or None without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = _first_visible(pynvml)
        if handle is None:
            return None
        return {
            "name": _text(pynvml.nvmlDeviceGetName(handle)),
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        }
    except pynvml.NVMLError:
        return None


def _first_visible(pynvml: Any) -> Any:
    """The GPU torch calls cuda:0: the first of CUDA_VISIBLE_DEVICES, an index or a UUID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0) if pynvml.nvmlDeviceGetCount() else None
    first = visible.split(",")[0].strip()
    if first in ("", "-1"):
        return None
    return pynvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(first)


def resolve_kind(kind: str) -> str:
    """``auto`` as ``cuda`` where the driver shows a GPU and ``cpu`` elsewhere; the others as they are."""
    if kind == "auto":
        return "cuda" if cuda_gpu() else "cpu"
    return kind


def check_threads(threads: int) -> None:
    """Refuse to measure with fewer cores than the setting's threads.

    Raises:
        CastError: this process may use fewer cores.
    """
    cores = usable_cores()
    if threads > cores:
        raise CastError(
            f"device.threads={threads} but this process may use {cores} core{'s' * (cores > 1)}; "
            f"set device.threads={cores}, or use a machine with more"
        )


def check_gpu(kind: str, gpu_name: str | None = None) -> None:
    """Refuse a machine without the setting's GPU; does nothing for ``cpu``.

    Raises:
        CastError: no GPU, or one without ``gpu_name`` in its name.
    """
    if kind != "cuda":
        return
    gpu = cuda_gpu()
    if gpu is None:
        raise CastError("the setting needs a CUDA GPU but the driver shows none; use device=cpu or device=auto")
    if gpu_name and gpu_name.lower() not in gpu["name"].lower():
        raise CastError(f"the setting needs a GPU named {gpu_name!r} but this one is {gpu['name']!r}")


def describe(kind: str, threads: int) -> dict[str, Any]:
    """The device as the provenance states it; memory in bytes."""
    gpu = cuda_gpu() if kind == "cuda" else None
    return {
        "kind": kind,
        "name": gpu["name"] if gpu else cpu_name(),
        "driver": gpu["driver"] if gpu else "",
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads": threads,
        "memory": psutil.virtual_memory().total,
    }


def other_users(kind: str, interval_s: float = 0.3) -> list[dict[str, Any]]:
    """Processes beside this one that use the device now: pid, name, and share of a core or GPU bytes.

    On a CPU, processes above a tenth of a core over ``interval_s``; parents of this one (the shell, the
    pipeline) wait for it and appear only when they are busy themselves.
    """
    return _gpu_users() if kind == "cuda" else _cpu_users(interval_s)


def _cpu_users(interval_s: float) -> list[dict[str, Any]]:
    before = _cpu_seconds()
    start = time.monotonic()
    time.sleep(interval_s)
    passed = time.monotonic() - start
    users = []
    for pid, (name, seconds) in _cpu_seconds().items():
        share = (seconds - before[pid][1]) / passed if pid in before else 0.0
        if share >= _BUSY_SHARE and pid != os.getpid():
            users.append({"pid": pid, "name": name, "cores": round(share, 2)})
    return sorted(users, key=lambda user: -user["cores"])


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            found[process.pid] = (process.info["name"], times.user + times.system)
    return found


def _gpu_users() -> list[dict[str, Any]]:
    import pynvml

    try:
        handle = _first_visible(pynvml)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if handle else []
    except pynvml.NVMLError:
        return []
    return [{"pid": p.pid, "gpu_bytes": p.usedGpuMemory} for p in processes if p.pid != os.getpid()]


@contextlib.contextmanager
def exclusive(kind: str, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the device for this user's timed jobs: a second one waits, whoever started it.

    One lock file for each device (a GPU by its UUID, the CPU as a whole) in the user's runtime folder. The
    system releases it when the process ends, however it ends.
    """
    gpu = cuda_gpu() if kind == "cuda" else None
    path = _runtime_folder() / f"cast-{gpu['uuid'] if gpu else 'cpu'}.lock"
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            tell(f"waiting for the {kind}, in use by process {file.read().strip() or '?'}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _runtime_folder() -> Path:
    """XDG's folder of this login where there is one, else one of this user's among temporary files."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and os.access(folder, os.W_OK):
        return Path(folder)
    fallback = Path(tempfile.gettempdir()) / f"cast-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
