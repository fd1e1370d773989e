"""The machine of a measurement: its name, who else uses it, and the lock that keeps timed jobs apart.

Nothing here imports torch: a job asks before it loads a model.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import psutil

from cast.errors import CastError
from cast.experiments import gpus

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


def cuda_gpu() -> dict[str, str] | None:
    """Name, driver and UUID of the CUDA GPU this process would use (torch's cuda:0), or None without one."""
    found = gpus.visible()
    return found[0] if found else None


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
    if kind != "cuda":
        return _cpu_users(interval_s)
    gpu = cuda_gpu()
    return gpus.users(gpu["uuid"]) if gpu else []


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


def readings(kind: str) -> dict[str, Any]:
    """Clocks, temperature, power and what slows the clocks of this process's GPU now; nothing of a CPU."""
    gpu = cuda_gpu() if kind == "cuda" else None
    return gpus.readings(gpu["uuid"]) if gpu else {}


@contextlib.contextmanager
def exclusive(kind: str, tell: Callable[[str], None] = print, gpu_name: str | None = None) -> Iterator[None]:
    """Hold a device for this user's timed jobs: one that finds none free waits, whoever started the others.

    One lock file for each device (a GPU by its UUID, the CPU as a whole) in the user's runtime folder. The system
    releases it when the process ends, however it ends. Of several visible GPUs with ``gpu_name`` in their names the
    first free one is taken, and CUDA shown no other inside.
    """
    free, told = None, False
    candidates = _candidates(gpu_name) if kind == "cuda" else []
    with contextlib.ExitStack() as stack:
        while free is None:
            for uuid in candidates or [None]:
                file = _locked(uuid or "cpu")
                if file:
                    stack.enter_context(file)
                    free = uuid or "cpu"
                    break
            else:
                if not told:
                    tell(f"waiting for the {kind}, in use by process {_holders(candidates or ['cpu'])}")
                    told = True
                time.sleep(0.1)
        with _shown(free) if candidates else contextlib.nullcontext():
            yield


def _candidates(gpu_name: str | None) -> list[str]:
    """UUIDs of the GPUs a job may take; all of them where none has the name, which `check_gpu` then tells."""
    found = gpus.visible()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found = found[:1]  # too late to show it another
    named = [gpu for gpu in found if not gpu_name or gpu_name.lower() in gpu["name"].lower()]
    return [gpu["uuid"] for gpu in named or found]


def _lock_path(device: str) -> Path:
    return _runtime_folder() / f"cast-{device}.lock"


def _locked(device: str) -> TextIO | None:
    """Its lock file, held and signed, or None where another process holds it."""
    file = open(_lock_path(device), "a+", encoding="utf-8")  # noqa: SIM115 - open as long as the lock is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _holders(devices: list[str]) -> str:
    return ", ".join(_lock_path(device).read_text(encoding="utf-8").strip() or "?" for device in devices)


@contextlib.contextmanager
def _shown(uuid: str) -> Iterator[None]:
    """CUDA sees this GPU alone."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _runtime_folder() -> Path:
    """XDG's folder of this login where there is one, else one of this user's among temporary files."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and os.access(folder, os.W_OK):
        return Path(folder)
    fallback = Path(tempfile.gettempdir()) / f"cast-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback
