"""Timings of calls, in pairs, and how they are told.

Every ratio comes from interleaved pairs: both sides run in turn, the order alternates, and the median of the pairs'
ratios is reported with its quartiles, so that a drift of the machine meets both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cast.decode.timer import garbage_collection_off, now_ms


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], device: torch.device, repeats: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of both calls, in turn; who goes first alternates. Two warm-ups each."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(2 + repeats):
        for side in (0, 1) if repeat % 2 else (1, 0):
            (ms,) = timed((ours, theirs)[side], device, 1, warmups=0)
            if repeat >= 2:
                times[side].append(ms)
    return times


def timed(call: Callable[[], object], device: torch.device, repeats: int, warmups: int = 2) -> list[float]:
    """Milliseconds of each call."""
    for _ in range(warmups):
        call()
    times = []
    with garbage_collection_off():
        for _ in range(repeats):
            started = now_ms(device)
            call()
            times.append(now_ms(device) - started)
    return times


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many CPU threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles and count."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "q25": low, "q75": high, "repeats": len(values)}


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Spread of ours over theirs, pair by pair."""
    return spread([own / other for own, other in zip(ours, theirs, strict=True)])


def goal(measured: dict[str, float], limit: float) -> dict[str, Any]:
    """A figure with the project's goal for it, an upper limit of its median."""
    return measured | {"goal": limit, "met": measured["median"] <= limit}
