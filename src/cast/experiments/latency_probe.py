"""The latency probe: milliseconds of the decoder's own verification call, and of one draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cast.decode.timer import garbage_collection_off, now_ms
from cast.errors import CastError
from cast.models import KVCache, Pair
from cast.trees import CandidateTree, best_first_tree
from cast.verify import verify

DRAFT_CONTEXT = 2
"""Committed positions a timed draft takes in: about what a round commits."""


@dataclass(frozen=True)
class LatencyProbeSpec:
    """What to time (paper, appendix D).

    Attributes:
        prefix_tokens: cached tokens before the pack.
        packed_tokens: pack sizes n, the root included.
        warmups, iterations: untimed and timed calls of each size.
        seed: of the random tokens and tree shapes.
    """

    prefix_tokens: int
    packed_tokens: tuple[int, ...]
    warmups: int = 8
    iterations: int = 30
    seed: int = 0


@torch.inference_mode()
def run(pair: Pair, spec: LatencyProbeSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each timed iteration, one row per component and pack size, without the identity columns.

    An iteration goes through all sizes before the next begins, so that a drift of the machine moves the
    whole curve and not one point of it. Packs are random tokens in trees of random shape, verified with the
    same call, mask, tapped layers and logits of all rows as in decoding. Nothing is committed, so every
    call sees the same prefix.

    Raises:
        CastError: prefix and largest pack pass the model's maximum length.
    """
    target = pair.target
    largest = max(spec.packed_tokens)
    if spec.prefix_tokens + largest > target.max_positions:
        raise CastError(
            f"a prefix of {spec.prefix_tokens} tokens and a pack of {largest} pass the target's maximum of "
            f"{target.max_positions}"
        )
    generator = torch.Generator().manual_seed(spec.seed)
    taps = pair.drafter.target_layer_ids if pair.drafter else ()
    cache = target.new_cache(spec.prefix_tokens + largest)
    prefix = _random_tokens(spec.prefix_tokens, pair, generator)
    positions = torch.arange(spec.prefix_tokens, device=pair.device)
    features = target.forward(prefix, positions, cache, causal=True, taps=taps, last_logits_only=True).taps
    cache.commit(spec.prefix_tokens)
    root = _random_tokens(1, pair, generator)

    calls: list[tuple[str, int, Callable[[], object]]] = []
    for n in spec.packed_tokens:
        tree = _random_tree(n - 1, pair, generator)
        calls.append(("target_forward", n, lambda tree=tree: verify(target, cache, root, tree, taps)))
    if pair.drafter is not None:
        calls.append(("draft", pair.drafter.block_size, _draft_call(pair, torch.cat(features, dim=-1), root)))

    for _, _, call in calls:
        for _ in range(spec.warmups):
            call()
    for iteration in range(spec.iterations):
        with garbage_collection_off():
            rows = [
                {
                    "component": component,
                    "prefix_tokens": spec.prefix_tokens,
                    "packed_tokens": n,
                    "iteration": iteration,
                    "latency_ms": _timed(call, pair.device),
                }
                for component, n, call in calls
            ]
        yield rows


def _timed(call: Callable[[], object], device: torch.device) -> float:
    started = now_ms(device)
    call()
    return now_ms(device) - started


def _random_tokens(count: int, pair: Pair, generator: torch.Generator) -> Tensor:
    return torch.randint(pair.target.vocab_size, (count,), generator=generator).to(pair.device)


def _random_tree(nodes: int, pair: Pair, generator: torch.Generator) -> CandidateTree | None:
    """A best-first tree over random marginals, as deep as the drafter's block; None for no nodes."""
    if nodes == 0:
        return None
    positions = pair.drafter.block_size - 1 if pair.drafter else 15
    logits = 4 * torch.randn(positions, min(pair.target.vocab_size, 4096), generator=generator)
    tree = best_first_tree(logits.log_softmax(dim=-1), nodes)
    if len(tree) < nodes:
        raise CastError(f"a tree of {nodes} nodes does not fit a block of {positions + 1}; probe fewer packed tokens")
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
