"""Wall time that the device agrees with."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def now_ms(device: torch.device) -> float:
    """A wall clock in ms, read after everything queued on the device has run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() * 1e3


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """No collection inside, so that none lands in one method's timed window and not in another's."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Trace:
    """Time by stage of the round: draft, verify, and the loop's own remainder.

    Every lap synchronises the device, so a traced run is slower than a timed one and never enters a timing
    statistic.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.stage_ms: dict[str, float] = defaultdict(float)
        self._last = now_ms(device)

    def lap(self, stage: str) -> None:
        """Charge the time since the last lap to `stage`."""
        now = now_ms(self.device)
        self.stage_ms[stage] += now - self._last
        self._last = now
