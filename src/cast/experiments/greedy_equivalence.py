"""Greedy equivalence: every method and width against plain decoding, token by token, with the target's margins.

In fp32 a departure is a violation unless the top-two logit gap is below 1e-3 there and fp64 shows none. In a
lower precision shapes decide roundings, so departures are recorded with their gap, and the same prompt, method
and width must show none in fp32. Every output is told by intervals of the gap: how many positions were
compared in each, and where it departed, which gives the share of positions that near and the rate by gap.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cast.decode import generate
from cast.errors import CastError
from cast.experiments.exactness import (
    NO_DEPARTURE,
    departure,
    fp32_violation,
    top_two_gap,
    top_two_gaps,
)
from cast.experiments.prompts import Prompt
from cast.experiments.width_sweep import Variant, encode_for, variants_of
from cast.models import Pair

PLAIN = Variant("autoregressive", 0)


@dataclass(frozen=True)
class GreedyEquivalenceSpec:
    """What to compare.

    Attributes:
        methods, budgets, top_k, block_size: as in the width sweep; plain decoding is always there.
        gap_edges: ascending from 0; interval i holds gaps above edge i (the first: from 0) up to edge i + 1
            and including it, the last all larger ones.
        time_limit_s: no prompt starts after this many seconds, once `min_prompts` were run.
        min_prompts: so many are run however long they take, those of earlier sessions counted.
    """

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    max_new_tokens: int
    gap_edges: tuple[float, ...] = (0.0, 0.001, 0.015625, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
    top_k: int = 8
    block_size: int | None = None
    time_limit_s: float | None = None
    min_prompts: int = 1

    def __post_init__(self):
        if self.gap_edges[:1] != (0,) or list(self.gap_edges) != sorted(set(self.gap_edges)):
            raise CastError(f"gap_edges must ascend from 0, not {list(self.gap_edges)}")


@dataclass(frozen=True)
class _Departure:
    index: int
    gap: float
    verdict: str
    fp32_agrees: bool | None


def run(
    pair: Pair, prompts: Sequence[Prompt], spec: GreedyEquivalenceSpec, done: Collection[str] = ()
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, for each prompt, its id and one row for each method, width and gap interval, identity excluded.

    A violation is a row with that verdict, not an error: the reader decides.
    """
    started = time.monotonic()
    variants = [PLAIN, *(variant for variant in variants_of(pair, spec) if variant != PLAIN)]
    in_fp32 = functools.cache(lambda: pair.to(torch.float32))
    pending = [index for index, prompt in enumerate(prompts) if prompt.id not in done]
    for compared, index in enumerate(pending, start=len(done)):
        late = spec.time_limit_s is not None and time.monotonic() - started > spec.time_limit_s
        if late and compared >= spec.min_prompts and index != pending[0]:
            return
        prompt = prompts[index]
        input_ids = encode_for(pair, prompt, spec.max_new_tokens)
        plain = _tokens(pair, input_ids, PLAIN, spec)
        gaps = np.array(top_two_gaps(pair, input_ids, plain))
        rows = []
        for variant in variants:
            found = _compared(pair, in_fp32, input_ids, variant, spec, plain, gaps)
            rows += [
                {
                    "method": variant.method,
                    "budget": variant.budget,
                    "prompt_id": prompt.id,
                    "prompt_index": index,
                    "top_k": spec.top_k,
                    "block_size": spec.block_size or (pair.drafter.block_size if pair.drafter else 1),
                    "max_new_tokens": spec.max_new_tokens,
                    **interval,
                }
                for interval in _intervals(gaps, found, spec.gap_edges)
            ]
        yield prompt.id, rows


def _tokens(pair: Pair, input_ids: Tensor, variant: Variant, spec: GreedyEquivalenceSpec) -> list[int]:
    limits = {"max_new_tokens": spec.max_new_tokens}
    return generate(pair, input_ids, **_arguments(variant, spec), **limits).tokens.tolist()


def _arguments(variant: Variant, spec: GreedyEquivalenceSpec) -> dict[str, Any]:
    return {"top_k": spec.top_k, "block_size": spec.block_size, **variant.arguments}


def _compared(pair, in_fp32, input_ids, variant, spec, plain, gaps) -> _Departure | None:
    """Where this variant's output departs from the plain one, judged; None where it does not."""
    tokens = plain if variant == PLAIN else _tokens(pair, input_ids, variant, spec)
    index = departure(plain, tokens)
    if index == NO_DEPARTURE:
        return None
    # One output ended and the other went on: its gap is at the token that the shorter one lacks.
    gap = gaps[index] if index < len(gaps) else top_two_gap(pair, _prefix(input_ids, plain))
    gap = float(gap)
    if pair.dtype in (torch.float32, torch.float64):
        violation = fp32_violation(pair, input_ids, index, gap, **_arguments(variant, spec))
        return _Departure(index, gap, "violation" if violation else "near_tie", None)
    exact = in_fp32()
    reference = _tokens(exact, input_ids, PLAIN, spec)
    at = departure(reference, _tokens(exact, input_ids, variant, spec))
    if at == NO_DEPARTURE:
        return _Departure(index, gap, "departure", True)
    gap_in_fp32 = top_two_gap(exact, _prefix(input_ids, reference[:at]))
    violation = fp32_violation(exact, input_ids, at, gap_in_fp32, **_arguments(variant, spec))
    return _Departure(index, gap, "violation" if violation else "departure", False)


def _prefix(input_ids: Tensor, tokens: list[int]) -> Tensor:
    return torch.cat((input_ids.cpu(), torch.tensor(tokens, dtype=torch.int64)))


def _intervals(gaps: np.ndarray, found: _Departure | None, edges: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Counts by gap interval: of the positions up to the departure, and the departure where it falls."""
    ends = np.array([*edges[1:], math.inf])
    compared = gaps if found is None else gaps[: found.index + 1]
    counts = np.bincount(np.searchsorted(ends, compared), minlength=len(ends))
    place = None if found is None else int(np.searchsorted(ends, found.gap))
    for interval, (start, end, count) in enumerate(zip(edges, ends.tolist(), counts.tolist(), strict=True)):
        here = interval == place
        yield {
            "gap_from": start,
            "gap_to": end,
            "positions": count,
            "departures": int(here),
            "verdict": found.verdict if here else "same",
            "departure": found.index if here else None,
            "departure_gap": found.gap if here else math.nan,
            "fp32_agrees": found.fp32_agrees if here else None,
        }
