"""Continuous batching: requests arrive, wait for memory, decode together and leave one by one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np

from cast.decode.checks import check_callables, check_least, check_pair
from cast.errors import CastError
from cast.models import Pair
from cast.serving.allocators import Allocator, BestFirst
from cast.serving.batch import Active, Batch, Request, Round, prepare
from cast.serving.passes import RaggedVerifier, Verifier


class Clock(ABC):
    """What arrivals are measured by."""

    @abstractmethod
    def now(self) -> float:
        """Time since the server started."""

    @abstractmethod
    def wait_until(self, moment: float) -> None:
        """Nothing is active: let time pass."""

    def tick(self) -> None:  # noqa: B027 (a wall clock needs no telling)
        """A round has passed."""


class WallClock(Clock):
    """Seconds."""

    def __init__(self):
        self._started = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._started

    def wait_until(self, moment: float) -> None:
        time.sleep(max(moment - self.now(), 0.0))


class RoundClock(Clock):
    """Rounds: arrivals then meet the same batch on every machine."""

    def __init__(self):
        self._rounds = 0.0

    def now(self) -> float:
        return self._rounds

    def wait_until(self, moment: float) -> None:
        self._rounds = max(self._rounds, moment)

    def tick(self) -> None:
        self._rounds += 1


@dataclass
class Served:
    """What became of a request; times on the server's clock, NaN where they never came.

    Attributes:
        tokens: emitted, the prefill's first; empty for a refused request.
        committed: R of each round.
        end: "stop", "length" or "refused".
        reason: why it was refused, in one line.
    """

    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    end: str = "refused"
    reason: str = ""
    admitted: float = math.nan
    first_token: float = math.nan
    finished: float = math.nan


@dataclass(frozen=True)
class ServingRun:
    """The results, in the order of the requests, and the rounds in which they came about.

    Attributes:
        slots, slot_tokens: requests at once, and cache entries of each.
        elapsed: on the server's clock.
    """

    results: list[Served]
    rounds: list[Round]
    slots: int
    slot_tokens: int
    elapsed: float

    @property
    def tokens(self) -> int:
        return sum(len(result.tokens) for result in self.results)


def serve(
    pair: Pair,
    requests: Iterable[Request],
    *,
    allocator: Allocator | None = None,
    verifier: Verifier | None = None,
    max_active: int = 8,
    memory_tokens: int | None = None,
    on_tokens: Callable[[int, list[int]], None] | None = None,
    clock: Clock | None = None,
    traced: bool = False,
) -> ServingRun:
    """Serve requests with continuous batching. In fp32 every output is the one `cast.generate` gives.

    A request waits from its arrival until a slot is free, first come first served; its prompt then runs by
    itself, and it decodes with the others until a stop token or its limit. Slots are cut from one allocation,
    each as large as the largest servable request needs, and reused. Sampled requests draw from a random stream
    of their own seed.

    Args:
        pair: a target with a DFlash drafter.
        requests: in any order of arrival.
        allocator: how a round's requests share the verifier; None shares 8 nodes for each, best-first.
        verifier: None packs raggedly.
        max_active: most requests at once.
        memory_tokens: cache entries, of the target and as many of the drafter, for all slots together; None takes
            what `max_active` requests need. A request that needs more by itself is refused.
        on_tokens: called with a request's index and its new tokens, its first one included.
        clock: wall time when None.
        traced: time the passes of each round, at the price of extra synchronisation.

    Returns:
        One result for each request; an impossible one is refused alone, with its reason.

    Raises:
        CastError: no DFlash drafter, or an argument out of range.
    """
    check_pair(pair)
    check_callables(on_tokens=on_tokens)
    for name, value, kind, example in (
        ("requests", requests, Iterable, "[Request(prompt)]"),
        ("allocator", allocator, Allocator, "BestFirst(8)"),
        ("verifier", verifier, Verifier, "RaggedVerifier()"),
        ("clock", clock, Clock, "RoundClock()"),
    ):
        if value is not None and not isinstance(value, kind):
            raise CastError(f"{name} must be of cast.serving's kind, such as {example}, not {value!r}")
    requests = list(requests)
    allocator, verifier = allocator or BestFirst(8), verifier or RaggedVerifier()
    check_least(max_active=(max_active, 1))
    if memory_tokens is not None:
        check_least(memory_tokens=(memory_tokens, 1))
    results = [Served() for _ in requests]
    needs = _needs(pair, requests, results, allocator, max_active, memory_tokens)
    slot_tokens = max(needs.values(), default=1)
    slots = max_active if memory_tokens is None else min(max_active, max(memory_tokens // slot_tokens, 1))
    batch = Batch(pair, allocator, verifier, slots=slots, slot_tokens=slot_tokens, traced=traced)
    clock = clock or WallClock()
    waiting = deque(sorted(needs, key=lambda index: (requests[index].arrival, index)))
    serving: dict[int, int] = {}  # identity of an active request to its index
    rounds: list[Round] = []

    def told(index: int, tokens: list[int]) -> None:
        if on_tokens is not None and tokens:
            on_tokens(index, tokens)

    def retire() -> None:
        for active in batch.retire():
            _close(results[serving.pop(id(active))], active, clock.now())

    while waiting or batch.active:
        while waiting and len(batch.active) < slots and requests[waiting[0]].arrival <= clock.now():
            index = waiting.popleft()
            results[index].admitted = clock.now()
            active = batch.admit(requests[index])
            serving[id(active)] = index
            results[index].first_token = clock.now()
            told(index, list(active.tokens))
            retire()  # one token may have been all
        if not batch.active:
            if waiting:
                clock.wait_until(requests[waiting[0]].arrival)
            continue
        report, emitted = batch.round()
        clock.tick()
        rounds.append(report)
        for active, tokens in zip(list(batch.active), emitted, strict=True):
            told(serving[id(active)], tokens)
        retire()
    return ServingRun(results, rounds, slots, slot_tokens, clock.now())


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times of a seeded Poisson process with so many arrivals per unit of time.

    Raises:
        CastError: the rate is not a positive number.
    """
    if not 0 < rate < math.inf:
        raise CastError(f"an arrival rate must be a positive number, not {rate}")
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()


def _needs(
    pair: Pair,
    requests: Sequence[Request],
    results: list[Served],
    allocator: Allocator,
    max_active: int,
    memory_tokens: int | None,
) -> dict[int, int]:
    """Index of each servable request to the cache entries it needs; the others' results say why not."""
    needs = {}
    for index, request in enumerate(requests):
        try:
            if not isinstance(request, Request):
                raise CastError(f"not a Request but a {type(request).__name__}; give Request(prompt)")
            if not isinstance(request.arrival, Real) or not math.isfinite(request.arrival):
                raise CastError(f"arrival must be a finite number, not {request.arrival!r}")
            prompt = prepare(pair.target, request).prompt
        except CastError as error:
            results[index].reason = str(error)
            continue
        need = Batch.tokens_needed(pair, allocator, len(prompt), request.max_new_tokens, max_active)
        if memory_tokens is not None and need > memory_tokens:
            results[index].reason = (
                f"needs {need} cache tokens, but all memory is {memory_tokens}; shorten the request or raise "
                "memory_tokens"
            )
            continue
        needs[index] = need
    return needs


def _close(result: Served, active: Active, now: float) -> None:
    result.tokens, result.committed = active.tokens, active.committed
    result.end, result.finished = "stop" if active.stopped else "length", now
