"""How far a job is: a line every half minute in a pipeline, a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY_S = 30.0
T = TypeVar("T")


class Status:
    """Told after each finished unit; prints to stderr. Use as a context manager.

    It has no thread of its own: nothing may run beside a timed forward pass, so a line comes with the first
    unit that ends after the half minute.

    Args:
        label: what runs, as in ``width_sweep smollm2_bf16/math``.
        total: how much there is to do; units may count more than one each, and the last of them pass it.
        limit_s: seconds after which no unit starts, or None.
        begun: how much earlier sessions did.
    """

    def __init__(self, label: str, total: int, limit_s: float | None = None, begun: int = 0) -> None:
        self.label = label
        self.total = total
        self._limit_s = limit_s
        self._start = self._told = time.monotonic()
        self._begun = begun
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(label, total=total)

    def __enter__(self) -> Status:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        """One line out of turn: what happened, or what the job waits for."""
        print(f"{self.label}: {text}", file=sys.stderr, flush=True)

    def advance(self, done: int) -> None:
        """``done`` of the total is finished."""
        done = min(done, self.total)
        if self._bar:
            self._bar.update(self._task, completed=done)
            return
        now = time.monotonic()
        if now - self._told >= EVERY_S or done == self.total:
            self._told = now
            left = f", {duration(self._left_s(done, now))} left" if done < self.total else ""
            print(f"{self.label} {done}/{self.total}{left}", file=sys.stderr, flush=True)

    def _left_s(self, done: int, now: float) -> float:
        passed = now - self._start
        left = passed / max(done - self._begun, 1) * (self.total - done)
        return left if self._limit_s is None else max(min(left, self._limit_s - passed), 0.0)


def shown(label: str, units: Sequence[T]) -> Iterator[T]:
    """The units one by one, with a status of how many are done."""
    with Status(label, len(units)) as status:
        for done, unit in enumerate(units, start=1):
            yield unit
            status.advance(done)


def duration(seconds: float) -> str:
    """Seconds as people say them: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
