"""engine=graph: target passes of fixed shapes over a cache that stays in place, each captured once as a CUDA graph.

A small model's pass on a fast GPU is mostly the launching of its kernels; a graph launches them as one. That gives
another latency curve, so the engine is probed and swept separately from the eager one.

`GraphTarget` stands in for its `Target`: the loop, the verification and the probe call it without knowing. A pack is
padded to the next of a few sizes and attends, under a mask, over a whole number of spans of the cache; the prompt and
packs above the largest size take the eager pass over the same cache.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.kv_cache import KVCache
from cast.models.layers import RotaryTable, attend
from cast.models.pair import Pair
from cast.models.target import Target, TargetOutput

ENGINES = ("eager", "graph")
PACKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sizes that packs are padded to; the paper's widths, N + 1 = 2^k, need no padding."""
PADDING = max(larger - smaller for smaller, larger in itertools.pairwise(PACKS))
"""Cache entries that padding may need behind a pack."""
SPAN = 512
"""Cache entries by which a pass's attention grows."""

Result = TypeVar("Result")
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""From a run between fixed buffers to what repeats it. It may run on the way."""


def with_engine(pair: Pair, engine: str) -> Pair:
    """The pair with its target on that engine. One target's graphs are kept between calls.

    Raises:
        CastError: unknown engine, or graphs where they cannot be: on a CPU, or for experts, whose shapes change.
    """
    if engine not in ENGINES:
        raise CastError(f"unknown engine {engine!r}; engines: {', '.join(ENGINES)}")
    target = pair.target.eager if isinstance(pair.target, GraphTarget) else pair.target
    if engine == "eager":
        return replace(pair, target=target)
    if target.device.type != "cuda":
        raise CastError(
            f"engine=graph needs a CUDA device and the model is on the {target.device.type}; use engine=eager"
        )
    held = vars(target).get("_graph_target")
    if held is None or held.eager is not target:  # a converted copy of a target carries its original's attributes
        held = target._graph_target = GraphTarget(target, partial(CudaGraphs, target.device))
    return replace(pair, target=held)


class CudaGraphs:
    """Captures the passes over one storage as CUDA graphs, on one stream and in one memory pool.

    They are their own because torch ties the end of a graph to both: it may take cuBLAS's workspace from every
    graph of that stream, and a pool that lost all its graphs serves no new one while memory in it is in use.
    """

    def __init__(self, device: torch.device):
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        now = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):  # libraries set up this stream's workspaces outside the capture
            for _ in range(2):
                run()
        now.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            run()
        return graph.replay


@dataclass
class _Storage:
    """Memory of one sequence's cache, and the passes captured over it; both outlive the generation."""

    keys: Tensor
    values: Tensor
    rotary: RotaryTable
    capture: Capture
    passes: dict[tuple[int, int, tuple[int, ...]], _StaticPass] = field(default_factory=dict)


class StaticCache(KVCache):
    """A cache over storage that the next generation takes over, once this one lets go of its cache."""

    storage: _Storage


class GraphTarget:
    """A target whose packs run as captured passes; everything else is the eager target's.

    Args:
        eager: the target.
        new_capture: called for each storage of a cache, and once for all functions; makes what captures them.
    """

    def __init__(self, eager: Target, new_capture: Callable[[], Capture]):
        if any(layer.experts is not None for layer in eager.decoder_layers):
            raise CastError("engine=graph does not hold a mixture of experts, whose shapes change; use engine=eager")
        self.eager, self.new_capture = eager, new_capture
        self._idle: list[_Storage] = []
        self._outputs: list[Tensor] = []  # of logits and of each tap, as many rows as the largest pass so far
        self._functions: dict[tuple, _StaticFunction] = {}
        self._capture_function = new_capture()

    def __getattr__(self, name: str):
        return getattr(self.eager, name)

    def to(self, dtype: torch.dtype) -> Target:
        """The eager target in another dtype."""
        return self.eager.to(dtype)

    def new_cache(self, capacity: int) -> StaticCache:
        """An empty cache for `capacity` tokens and a padded pack, over idle storage where there is some."""
        needed = _whole_spans(capacity + PADDING)
        fitting = [storage for storage in self._idle if storage.keys.shape[2] >= needed]
        if fitting:
            storage = min(fitting, key=lambda storage: storage.keys.shape[2])
            self._idle = [other for other in self._idle if other is not storage]
            with torch.inference_mode():  # as `_allocate` has it, whatever a generation that overflowed left there
                storage.keys.zero_()
                storage.values.zero_()
        else:
            self._idle.clear()  # all too small, and whoever wanted them fits the new one
            storage = self._allocate(needed)
        cache = StaticCache.over(storage.keys, storage.values, storage.rotary)
        cache.storage = storage
        weakref.finalize(cache, self._take_back, storage)
        return cache

    def _allocate(self, capacity: int) -> _Storage:
        eager = self.eager
        shape = eager.layers, eager.kv_heads, capacity, eager.head_dim
        # Zeros: a pass reads entries that its mask hides, and NaN would get through a weight of zero.
        keys, values = (torch.zeros(shape, dtype=eager.dtype, device=eager.device) for _ in range(2))
        return _Storage(keys, values, eager.rotary_table(capacity), self.new_capture())

    def _take_back(self, storage: _Storage) -> None:
        self._idle.append(storage)

    @torch.inference_mode()
    def prepare(self, prompt: int, capacity: int, packs: Iterable[int], taps: Sequence[int] = ()) -> None:
        """Capture what a generation runs, so that no timed window does.

        Args:
            prompt: its tokens; no pack stands before them.
            capacity: of its cache, the largest pack included.
            packs: sizes n of the packs it may verify.
            taps: layers whose hidden states it wants.
        """
        cache = self.new_cache(capacity)
        for pack in sorted(packs, reverse=True):  # the largest first: the others use its output's memory
            if pack <= PACKS[-1]:
                size = _padded(pack)
                for span in range(_whole_spans(prompt + size), _whole_spans(capacity - pack + size) + 1, SPAN):
                    self._pass(cache.storage, size, span, taps)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: StaticCache,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        taps: Sequence[int] = (),
        last_logits_only: bool = False,
    ) -> TargetOutput:
        """As `Target.forward`. The output is overwritten by the next pass, of whichever generation and shape."""
        n = len(token_ids)
        if last_logits_only or n > PACKS[-1]:
            options = {"mask": mask, "causal": causal, "taps": taps, "last_logits_only": last_logits_only}
            return self.eager.forward(token_ids, positions, cache, **options)
        size, end = _padded(n), cache.length + n
        if cache.length + size > cache.capacity:
            raise CastError(f"the sequence needs {end} cache entries but only {cache.capacity} were allocated")
        captured = self._pass(cache.storage, size, _whole_spans(cache.length + size), taps)
        captured.load(token_ids, positions, cache.length, mask, causal)
        captured.repeat()
        return TargetOutput(captured.output.logits[:n], [tap[:n] for tap in captured.output.taps])

    @torch.inference_mode()
    def repeat(self, function: Callable[..., Result], tensor: Tensor, **options: Any) -> Result:
        """What a function of a tensor returns, in one captured launch for each of its shapes and options.

        The next such call overwrites it. The function looks at no value, only at shapes and options.
        """
        key = function, tensor.shape, tensor.dtype, tuple(sorted(options.items()))
        if key not in self._functions:
            self._functions[key] = _StaticFunction(partial(function, **options), tensor, self._capture_function)
        return self._functions[key](tensor)

    def _pass(self, storage: _Storage, size: int, span: int, taps: Sequence[int]) -> _StaticPass:
        key = size, span, tuple(taps)
        if key not in storage.passes:
            storage.passes[key] = _StaticPass(self.eager, storage, *key, self._output(size, len(taps)))
        return storage.passes[key]

    def _output(self, size: int, taps: int) -> TargetOutput:
        """Where a pass of that size writes: one memory for all passes, as a graph's own would stay taken with it."""
        eager = self.eager
        for place, width in enumerate([eager.vocab_size] + taps * [eager.hidden_size]):
            if place == len(self._outputs) or len(self._outputs[place]) < size:
                self._outputs[place : place + 1] = [torch.empty(size, width, dtype=eager.dtype, device=eager.device)]
        logits, *tapped = (rows[:size] for rows in self._outputs[: 1 + taps])
        return TargetOutput(logits, tapped)


def _padded(pack: int) -> int:
    return PACKS[bisect.bisect_left(PACKS, pack)]


def _whole_spans(entries: int) -> int:
    return -(-entries // SPAN) * SPAN


class _StaticPass:
    """One pass of `size` packed tokens that attends over the first `span` entries of its storage."""

    def __init__(
        self, target: Target, storage: _Storage, size: int, span: int, taps: tuple[int, ...], output: TargetOutput
    ):
        device, group = target.device, target.heads // target.kv_heads
        self.output = output
        self.token_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.token_ids)
        self.rows = torch.arange(size, device=device)
        # Where each row's keys and values go. A capture runs the pass before one is loaded: at the end, behind
        # whatever is committed.
        self.slots = self.rows + (storage.keys.shape[2] - size)
        self.mask = torch.zeros(size, span, dtype=target.dtype, device=device)

        def run() -> None:
            mask = self.mask.repeat(group, 1)

            def over_span(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys, values = storage.keys[index], storage.values[index]
                keys.index_copy_(1, self.slots, key.transpose(0, 1))
                values.index_copy_(1, self.slots, value.transpose(0, 1))
                return attend(query, keys[:, :span], values[:, :span], mask)

            phases = storage.rotary.at(self.positions)
            target.run_layers(self.token_ids, phases, over_span, taps=taps, out=output)

        self.repeat = storage.capture(run)

    def load(self, token_ids: Tensor, positions: Tensor, prefix: int, mask: Tensor | None, causal: bool) -> None:
        """Fill the buffers; rows of padding see the first entry alone."""
        n, end = len(token_ids), prefix + len(token_ids)
        self.token_ids[:n].copy_(token_ids)
        self.positions[:n].copy_(positions)
        torch.add(self.rows, prefix, out=self.slots)
        self.mask.fill_(float("-inf"))
        if mask is not None:
            self.mask[:n, :end].copy_(mask)
        elif causal:
            self.mask[:n, :end].triu_(prefix + 1)
        else:
            self.mask[:n, :end].zero_()
        self.mask[n:, :1].zero_()


class _StaticFunction:
    """A function of one tensor, of fixed shapes, whose result stays in one place."""

    def __init__(self, function: Callable[[Tensor], Any], tensor: Tensor, capture: Capture):
        self.buffer = tensor.clone()

        def run() -> None:
            self.result = function(self.buffer)  # the captured run is the last on CUDA, and its result the one repeated

        self.repeat = capture(run)

    def __call__(self, tensor: Tensor) -> Any:
        self.buffer.copy_(tensor)
        self.repeat()
        return self.result
