"""The latency probe: milliseconds of the decoder's own verification call, and of one draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cast.decode.proposers import candidate_tree
from cast.decode.timer import garbage_collection_off, now_ms
from cast.errors import CastError
from cast.models import KVCache, Pair
from cast.trees import CandidateTree
from cast.verify import verify

TOP_K = 8
"""Of the drawn trees: decoding's default."""
DRAFT_CONTEXT = 2
"""Committed positions a timed draft takes in: about what a round commits."""


@dataclass(frozen=True)
class LatencyProbeSpec:
    """What to time (paper, appendix D).

    Attributes:
        prefix_tokens: cached tokens before the pack; several take turns within one session (Table 6).
        packed_tokens: pack sizes n, the root included.
        warmups, iterations: untimed and timed calls of each size.
        seed: of the random tokens and tree shapes.
    """

    prefix_tokens: int | tuple[int, ...]
    packed_tokens: tuple[int, ...]
    warmups: int = 8
    iterations: int = 30
    seed: int = 0

    @property
    def prefixes(self) -> tuple[int, ...]:
        return (self.prefix_tokens,) if isinstance(self.prefix_tokens, int) else self.prefix_tokens

    def check_fits(self, max_positions: int) -> None:
        """Raise a CastError where a pack passes the model's maximum length."""
        longest, largest = max(self.prefixes), max(self.packed_tokens)
        if longest + largest > max_positions:
            raise CastError(
                f"a prefix of {longest} tokens and a pack of {largest} pass the target's maximum of {max_positions}"
            )


@dataclass(frozen=True)
class TimedCall:
    """A call to time: the columns that name it, and what makes it ready, untimed, before every call."""

    columns: dict[str, Any]
    prepare: Callable[[], Callable[[], object]]


def run(pair: Pair, spec: LatencyProbeSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each timed iteration, one row per component, prefix and pack size, without the identity columns.

    Packs are random tokens in trees of random shape, built where decoding builds them and verified with the same
    call, mask, tapped layers and logits of all rows. Nothing is committed, so every call sees the same prefix.

    Raises:
        CastError: prefix and largest pack pass the model's maximum length.
    """
    spec.check_fits(pair.target.max_positions)
    generator = torch.Generator().manual_seed(spec.seed)
    calls = [call for prefix in spec.prefixes for call in _calls(pair, prefix, spec.packed_tokens, generator)]
    return measure(calls, spec.warmups, spec.iterations, pair.device)


@torch.inference_mode()
def measure(
    calls: Sequence[TimedCall], warmups: int, iterations: int, device: torch.device
) -> Iterator[list[dict[str, Any]]]:
    """Yield one row per call for each timed iteration: its columns, the iteration, and milliseconds.

    An iteration goes through all calls before the next begins, so that a drift of the machine moves the whole
    curve and not one point of it.
    """
    for call in calls:
        for _ in range(warmups):
            call.prepare()()
    for iteration in range(iterations):
        with garbage_collection_off():
            rows = [call.columns | {"iteration": iteration, "latency_ms": _timed(call, device)} for call in calls]
        yield rows


def slopes(rows: pd.DataFrame, low: int = 16, high: int = 128) -> list[dict[str, Any]]:
    """What a packed token more costs, ms, over pack sizes from `low` to `high`, for each prefix.

    Of the medians over iterations, by end points (as the paper's Table 6) and by least squares. A prefix with
    fewer than two sizes there has none.
    """
    forward = rows[(rows["component"] == "target_forward") & rows["packed_tokens"].between(low, high)]
    medians = forward.groupby(["prefix_tokens", "packed_tokens"])["latency_ms"].median()
    found = []
    for prefix, curve in medians.groupby("prefix_tokens"):
        packed, ms = curve.index.get_level_values("packed_tokens").to_numpy(float), curve.to_numpy(float)
        if len(packed) > 1:
            found.append(
                {
                    "prefix_tokens": int(prefix),
                    "endpoints": float((ms[-1] - ms[0]) / (packed[-1] - packed[0])),
                    "least_squares": float(np.polyfit(packed, ms, 1)[0]),
                }
            )
    return found


def random_tokens(count: int, vocabulary: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Token ids [count], each drawn uniformly."""
    return torch.randint(vocabulary, (count,), generator=generator).to(device)


@torch.inference_mode()
def _calls(pair: Pair, prefix: int, packed_tokens: Sequence[int], generator: torch.Generator) -> Iterator[TimedCall]:
    """The verification of each pack size and the draft, behind one prefix."""
    target = pair.target
    taps = pair.drafter.target_layer_ids if pair.drafter else ()
    cache = target.new_cache(prefix + max(packed_tokens))
    token_ids = random_tokens(prefix, target.vocab_size, generator, pair.device)
    positions = torch.arange(prefix, device=pair.device)
    features = target.forward(token_ids, positions, cache, causal=True, taps=taps, last_logits_only=True).taps
    cache.commit(prefix)
    root = random_tokens(1, target.vocab_size, generator, pair.device)

    def timed(component: str, n: int, call: Callable[[], object]) -> TimedCall:
        return TimedCall({"component": component, "prefix_tokens": prefix, "packed_tokens": n}, lambda: call)

    for n in packed_tokens:
        tree = _random_tree(n - 1, pair, generator)
        yield timed("target_forward", n, lambda tree=tree: verify(target, cache, root, tree, taps))
    if pair.drafter is not None:
        yield timed("draft", pair.drafter.block_size, _draft_call(pair, torch.cat(features, dim=-1), root))


def _timed(call: TimedCall, device: torch.device) -> float:
    ready = call.prepare()
    started = now_ms(device)
    ready()
    return now_ms(device) - started


def _random_tree(nodes: int, pair: Pair, generator: torch.Generator) -> CandidateTree | None:
    """A best-first tree over random marginals, as deep as the drafter's block; None for no nodes."""
    if nodes == 0:
        return None
    positions = pair.drafter.block_size - 1 if pair.drafter else 15
    logits = 4 * torch.randn(positions, min(pair.target.vocab_size, 4096), generator=generator)
    tree = candidate_tree(pair.target, logits.to(pair.device), nodes, TOP_K)
    if len(tree) < nodes:
        raise CastError(f"a tree of {nodes} nodes does not fit a block of {positions + 1}; probe fewer packed tokens")
    if tree.visible is not None:  # of captured passes: the next tree of that size would overwrite it
        tree = CandidateTree(*(part.clone() for part in vars(tree).values()))
    return tree


def _draft_call(pair: Pair, features: Tensor, root: Tensor) -> Callable[[], object]:
    drafter = pair.drafter
    cache: KVCache = drafter.new_cache(len(features) + drafter.block_size)
    held = max(len(features) - DRAFT_CONTEXT, 0)
    if held:
        drafter.draft(pair.target, features[:held], root, cache)
    fresh = features[held:]

    def call() -> None:
        cache.length = held  # forget what the last call took in
        drafter.draft(pair.target, fresh, root, cache)

    return call
