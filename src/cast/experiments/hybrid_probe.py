"""The latency probe of a hybrid target: transformers' forward pass on a copy of the prefix's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from cast.experiments.latency_probe import LatencyProbeSpec, TimedCall, measure, random_tokens
from cast.models.hybrid import HybridTarget, copy_of, fused_packages


def run(target: HybridTarget, spec: LatencyProbeSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each timed iteration, one row per prefix and pack size, without the identity columns.

    Packs are random tokens in a row (a recurrent layer knows no branches), with logits of all of them. Each call
    gets an untimed copy of the prefix's cache (paper, appendix D.1). `fused_kernels` names the packages of fused
    kernels that a pass of this size called, "none" where transformers' own code ran.

    Raises:
        CastError: prefix and largest pack pass the model's maximum length.
    """
    spec.check_fits(target.max_positions)
    generator = torch.Generator().manual_seed(spec.seed)
    calls = [call for prefix in spec.prefixes for call in _calls(target, prefix, spec.packed_tokens, generator)]
    return measure(calls, spec.warmups, spec.iterations, target.device)


def _calls(
    target: HybridTarget, prefix: int, packed_tokens: tuple[int, ...], generator: torch.Generator
) -> Iterator[TimedCall]:
    cache = target.prefill(random_tokens(prefix, target.vocab_size, generator, target.device))
    for n in packed_tokens:
        pack = random_tokens(n, target.vocab_size, generator, target.device)

        def prepare(pack: torch.Tensor = pack) -> Callable[[], object]:
            own = copy_of(cache)
            return lambda: target.forward(pack, own)

        call = prepare()
        with fused_packages() as called:
            call()
        columns = {
            "component": "target_forward",
            "prefix_tokens": prefix,
            "packed_tokens": n,
            "weights": target.weights,
            "fused_kernels": ", ".join(sorted(called)) or "none",
        }
        yield TimedCall(columns, prepare)
