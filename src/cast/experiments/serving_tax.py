"""The verifier's width tax: milliseconds of one verification pass against requests and packed tokens of each.

What decoding does, on packs of random shape: the same pass, tapped layers and logits of all rows. One batched
draft is timed beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cast.decode.timer import garbage_collection_off, now_ms
from cast.errors import CastError
from cast.experiments.latency_probe import DRAFT_CONTEXT
from cast.models import Pair
from cast.serving import DenseVerifier, Forest, RaggedVerifier, RoundCost, Verifier, best_first_forest
from cast.serving.batch import new_stores
from cast.serving.passes import draft
from cast.width import LatencyCurve

VERIFIERS: dict[str, Verifier] = {"dense": DenseVerifier(), "ragged": RaggedVerifier()}
TOP_K = 8


@dataclass(frozen=True)
class WidthTaxSpec:
    """What to time (paper, appendix F and Figure 6).

    Attributes:
        batch_sizes: requests B of a pass.
        packed_tokens: packed tokens W of each request, its root included.
        prefix_tokens: cached tokens before each pack.
        verifiers: among "dense" and "ragged".
        warmups, iterations: untimed and timed calls of each cell.
        seed: of the random tokens and tree shapes.
    """

    batch_sizes: tuple[int, ...]
    packed_tokens: tuple[int, ...]
    prefix_tokens: int
    verifiers: tuple[str, ...] = ("dense", "ragged")
    warmups: int = 3
    iterations: int = 10
    seed: int = 0

    def __post_init__(self):
        unknown = [name for name in self.verifiers if name not in VERIFIERS]
        if unknown or not self.verifiers:
            raise CastError(f"verifiers must be some of {', '.join(VERIFIERS)}, not {list(self.verifiers)}")


@torch.inference_mode()
def run(pair: Pair, spec: WidthTaxSpec) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, for each batch size, its key and the rows of all its cells, without the identity columns.

    Within a batch size an iteration goes through all cells before the next begins, so that a drift of the
    machine moves the whole curve. Nothing is committed, so every call sees the same prefixes.

    Raises:
        CastError: prefix and largest pack pass the model's maximum length.
    """
    for batch in spec.batch_sizes:
        bench = _Bench(pair, batch, spec.prefix_tokens, max(spec.packed_tokens), spec.seed)
        cells: list[tuple[dict[str, Any], Callable[[], object]]] = [
            ({"component": f"verify_{name}", "packed_tokens": packed}, bench.verification(VERIFIERS[name], packed))
            for name in spec.verifiers
            for packed in spec.packed_tokens
        ]
        cells.append(({"component": "draft", "packed_tokens": pair.drafter.block_size}, bench.draft))
        for _, call in cells:
            for _ in range(spec.warmups):
                call()
        rows = []
        for iteration in range(spec.iterations):
            with garbage_collection_off():
                for cell, call in cells:
                    place = {"batch": batch, "prefix_tokens": spec.prefix_tokens, "iteration": iteration}
                    rows.append(cell | place | {"latency_ms": _timed(call, pair.device)})
        yield str(batch), rows


@torch.inference_mode()
def round_cost(
    pair: Pair, batch: int, verifier: Verifier, packed_tokens: Sequence[int], prefix_tokens: int, iterations: int = 3
) -> RoundCost:
    """The measured cost of a round of so many requests, for the stopping rule (Proposition 3).

    Args:
        packed_tokens: packed tokens of each request at which to measure; at least two.
    """
    bench = _Bench(pair, batch, prefix_tokens, max(packed_tokens))
    calls = [bench.draft, *(bench.verification(verifier, packed) for packed in packed_tokens)]
    for call in calls:
        call()
    medians = [statistics.median(_timed(call, pair.device) for _ in range(iterations)) for call in calls]
    return RoundCost(LatencyCurve([batch * packed for packed in packed_tokens], medians[1:]), draft_ms=medians[0])


class _Bench:
    """Slots that hold the same random prefix, and calls to time over them."""

    def __init__(self, pair: Pair, batch: int, prefix: int, largest: int, seed: int = 0):
        target, drafter = pair.target, pair.drafter
        if prefix + largest > target.max_positions:
            raise CastError(
                f"a prefix of {prefix} tokens and a pack of {largest} pass the target's maximum of "
                f"{target.max_positions}"
            )
        if prefix <= DRAFT_CONTEXT:
            raise CastError(f"a prefix of {prefix} tokens leaves no context to draft from; give more")
        self._pair, self._batch, self._prefix = pair, batch, prefix
        self._random = np.random.default_rng(seed)
        capacity = prefix + max(largest, drafter.block_size)
        self._store, self._features = new_stores(pair, batch, capacity)
        taps = drafter.target_layer_ids
        tokens = torch.from_numpy(self._random.integers(target.vocab_size, size=prefix)).to(pair.device)
        positions = torch.arange(prefix, device=pair.device)
        output = target.forward(tokens, positions, self._store.cache(0), causal=True, taps=taps, last_logits_only=True)
        for slot in range(1, batch):
            self._store.keys[:, slot], self._store.values[:, slot] = self._store.keys[:, 0], self._store.values[:, 0]
        self._store.lengths = [prefix] * batch
        self._roots = self._random.integers(target.vocab_size, size=batch).tolist()
        features = torch.cat(output.taps, dim=-1)
        self._fresh = [features[-DRAFT_CONTEXT:]] * batch
        draft(drafter, target, self._features, [features[:-DRAFT_CONTEXT]] * batch, self._roots)

    def verification(self, verifier: Verifier, packed: int) -> Callable[[], object]:
        forest, taps = self._forest(packed - 1), self._pair.drafter.target_layer_ids
        return lambda: verifier.verify(self._pair.target, self._store, self._roots, forest, taps)

    def draft(self) -> None:
        self._features.lengths = [self._prefix - DRAFT_CONTEXT] * self._batch  # forget what the last call took in
        draft(self._pair.drafter, self._pair.target, self._features, self._fresh, self._roots)

    def _forest(self, nodes: int) -> Forest:
        """Best-first trees over random marginals, as deep as the drafter's block."""
        vocabulary = min(self._pair.target.vocab_size, 4096)
        shape = self._batch, self._pair.drafter.block_size - 1, vocabulary
        logits = torch.from_numpy(4 * self._random.standard_normal(shape, np.float32))
        scores, tokens = logits.log_softmax(dim=-1).topk(min(TOP_K, vocabulary))
        return best_first_forest(scores.numpy(), tokens.numpy(), np.full(self._batch, nodes))


def _timed(call: Callable[[], object], device: torch.device) -> float:
    started = now_ms(device)
    call()
    return now_ms(device) - started
