"""Serving runs: the same requests through every verifier and allocation policy, paired and in turns.

With all requests there from the start this is goodput at a constant number of active requests (paper, Figure 7);
with Poisson arrivals it is continuous batching (appendix F).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cast.decode import generate
from cast.errors import CastError
from cast.experiments.exactness import FP32_NEAR_TIE, NO_DEPARTURE, departure, top_two_gap
from cast.experiments.prompts import Prompt
from cast.experiments.records import SERVING_POLICIES
from cast.experiments.serving_tax import VERIFIERS, round_cost
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.serving import (
    Allocator,
    BestFirst,
    BucketedVerifier,
    Chain,
    Priced,
    Request,
    Round,
    ServingRun,
    Uniform,
    Verifier,
    poisson_arrivals,
    serve,
)

TRACED_TOKENS = 16


@dataclass(frozen=True)
class ServingSpec:
    """What to serve.

    Attributes:
        active: numbers of requests that decode at once.
        variants: "<verifier>/<policy>" each: dense, ragged or bucketed_<n>; chain, fixed_wide, uniform,
            best_first, or priced (best-first with the budget of Proposition 3, from a cost measured on the spot).
        width: nodes of each request under "uniform", and on average under "best_first".
        wide: nodes of each request under "fixed_wide".
        priced_packed_tokens: packed tokens of each request, from 1 on, at which "priced" measures its cost; the largest
            bounds its budget.
        requests: of one run; None for `requests_per_slot` times the active ones.
        load: offered load as a multiple of what the first variant completes; None: all arrive at the start.
        repeats: runs of each variant, each with arrivals of its own and with the prompts on which the last one stopped:
            other ones, or all of them again in the same order where the requests of a run are a multiple of the
            prompts, as in continuous batching.
        compare: hold greedy outputs against plain decoding of each prompt.
        traced: one more, shorter run of each variant, with time by pass.
    """

    active: tuple[int, ...]
    variants: tuple[str, ...]
    width: int = 8
    wide: int = 48
    priced_packed_tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    requests: int | None = None
    requests_per_slot: int = 2
    load: float | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 8
    repeats: int = 4
    compare: bool = True
    traced: bool = True
    seed: int = 0


def run(
    pair: Pair,
    prompts: Sequence[Prompt],
    spec: ServingSpec,
    done: Collection[str] = (),
    rates: Mapping[int, float] | None = None,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, for each number of active requests and repeat, its key and the rows of all variants.

    Within one the variants take turns on the same requests, in an order that rotates by repeat.

    Args:
        done: keys that earlier sessions yielded.
        rates: by active requests, the arrivals per second of earlier sessions (`known_rates`), so that what is left
            is served under the load of what is done; measured where it is not given.
    """
    encoded = [encode_for(pair, prompt, spec.max_new_tokens) for prompt in prompts]
    plain = functools.cache(lambda index: _plain(pair, encoded[index], spec))
    for active in spec.active:
        units = {f"{active}/{repeat}": repeat for repeat in range(spec.repeats)}
        if not units.keys() - done:
            continue
        variants = [_Variant(pair, name, active, encoded, spec) for name in spec.variants]
        rate = _warm_up(variants, active, encoded, spec, (rates or {}).get(active))
        for key, repeat in units.items():
            if key in done:
                continue
            chosen, requests = _requests(encoded, active, repeat, rate, spec)
            turn = repeat % len(variants)
            rows = []
            for place, variant in enumerate(variants[turn:] + variants[:turn]):
                row = variant.identity | {"repeat": repeat, "order": place, "traced": False, "load": spec.load}
                row |= {"arrivals_per_s": rate}
                served = variant.serve(requests)
                row |= {"requests": len(requests)} | _measured(served, requests)
                if "status" not in row:
                    row |= _departures(pair, chosen, encoded, served, plain, spec, variant.name)
                rows.append(row)
            if spec.traced and repeat == 0:
                rows += [_traced_row(variant, requests, active, spec) for variant in variants]
            yield key, rows


def known_rates(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Arrivals per second by active requests, from the rows of finished units; only where there was a load."""
    return {row["active"]: row["arrivals_per_s"] for row in rows if row["load"] is not None and not row["traced"]}


class _Variant:
    """One verifier with one policy."""

    def __init__(self, pair: Pair, name: str, active: int, encoded: Sequence[Tensor], spec: ServingSpec):
        verifier, _, policy = name.partition("/")
        self.name, self._pair, self._active = name, pair, active
        self._verifier = _verifier(verifier)
        self._allocator = _allocator(pair, policy, self._verifier, active, encoded, spec)
        self.identity = {
            "active": active,
            "verifier": verifier,
            "policy": policy,
            "max_new_tokens": spec.max_new_tokens,
            "temperature": spec.temperature,
            "top_k": spec.top_k,
            "seed": spec.seed,
        }

    def serve(self, requests: Sequence[Request], traced: bool = False) -> ServingRun:
        return serve(
            self._pair,
            requests,
            allocator=self._allocator,
            verifier=self._verifier,
            max_active=self._active,
            traced=traced,
        )


def _verifier(name: str) -> Verifier:
    kind, _, buckets = name.partition("_")
    if kind == "bucketed" and buckets.isdigit() and int(buckets):
        return BucketedVerifier(int(buckets))
    if name not in VERIFIERS:
        raise CastError(f"unknown verifier {name!r}; choose {', '.join(VERIFIERS)} or bucketed_<n>")
    return VERIFIERS[name]


def _allocator(
    pair: Pair, policy: str, verifier: Verifier, active: int, encoded: Sequence[Tensor], spec: ServingSpec
) -> Allocator:
    if policy == "chain":
        return Chain(pair.drafter.block_size - 1)
    if policy == "fixed_wide":
        return Uniform(spec.wide, spec.top_k)
    if policy == "uniform":
        return Uniform(spec.width, spec.top_k)
    if policy == "best_first":
        return BestFirst(spec.width, spec.top_k)
    if policy == "priced":
        prefix = max(int(np.median([len(ids) for ids in encoded])) + spec.max_new_tokens // 2, 4)
        # Requests leave one by one, and a round is priced by how many are there.
        batches = {min(2**power, active) for power in range(active.bit_length() + 1)}
        costs = {batch: round_cost(pair, batch, verifier, spec.priced_packed_tokens, prefix) for batch in batches}
        return Priced(costs, spec.top_k)
    raise CastError(f"unknown policy {policy!r}; choose one of {', '.join(SERVING_POLICIES)}")


def _requests(
    encoded: Sequence[Tensor], active: int, repeat: int, rate: float | None, spec: ServingSpec
) -> tuple[list[int], list[Request]]:
    """The prompts' indices, and the requests: every repeat goes on in the list where the last one stopped."""
    count = spec.requests or spec.requests_per_slot * active
    chosen = [(repeat * count + place) % len(encoded) for place in range(count)]
    arrivals = [0.0] * count if spec.load is None else poisson_arrivals(count, rate, spec.seed + repeat)
    requests = [
        Request(
            encoded[index],
            max_new_tokens=spec.max_new_tokens,
            temperature=spec.temperature,
            seed=spec.seed + repeat * count + place,
            arrival=arrival,
        )
        for place, (index, arrival) in enumerate(zip(chosen, arrivals, strict=True))
    ]
    return chosen, requests


def _warm_up(
    variants: Sequence[_Variant], active: int, encoded: Sequence[Tensor], spec: ServingSpec, rate: float | None
) -> float | None:
    """Serve with every variant, untimed; arrivals per second that make the offered load (None without one).

    Args:
        rate: the one to keep to, where there is one already.
    """
    _, requests = _requests(encoded, active, 0, None, replace(spec, load=None))
    short = [replace(request, max_new_tokens=min(TRACED_TOKENS, spec.max_new_tokens)) for request in requests[:active]]
    for variant in variants:
        variant.serve(short)
    if spec.load is None or rate is not None:
        return rate
    closed = variants[0].serve(requests[: 2 * active])
    return spec.load * len(closed.results) / closed.elapsed


def _measured(served: ServingRun, requests: Sequence[Request]) -> dict[str, Any]:
    """A run's numbers; goodput counts the rounds in which every slot was taken."""
    refused = next((result.reason for result in served.results if result.end == "refused"), "")
    full = [report for report in served.rounds if report.active == served.slots]
    if refused or not full:
        return {"status": "failed", "reason": refused or "no round had every slot taken; ask for more requests"}

    def total(field: str, rounds: Sequence[Round] = served.rounds) -> float:
        return sum(getattr(report, field) for report in rounds)

    full_ms, taken = total("ms", full), total("active")
    latencies = [result.finished - request.arrival for result, request in zip(served.results, requests, strict=True)]
    waits = [result.admitted - request.arrival for result, request in zip(served.results, requests, strict=True)]
    return {
        "rounds": len(served.rounds),
        "committed_tokens": total("committed"),
        "new_tokens": served.tokens,
        "full_rounds": len(full),
        "full_committed_tokens": total("committed", full),
        "full_ms": full_ms,
        "goodput_tokens_per_s": 1e3 * total("committed", full) / full_ms,
        "elapsed_s": served.elapsed,
        "tokens_per_s": served.tokens / served.elapsed,
        "r_pooled": total("committed") / taken,
        "nodes_per_request": total("nodes") / taken,
        "padded_share": total("padded_rows") / (total("nodes") + taken + total("padded_rows")),
        "mean_active": sum(report.active * report.ms for report in served.rounds) / total("ms"),
        "wait_s": float(np.mean(waits)),
        "latency_s": float(np.mean(latencies)),
    }


def _plain(pair: Pair, input_ids: Tensor, spec: ServingSpec) -> list[int]:
    return generate(pair, input_ids, "autoregressive", max_new_tokens=spec.max_new_tokens).tokens.tolist()


def _departures(
    pair: Pair,
    chosen: Sequence[int],
    encoded: Sequence[Tensor],
    served: ServingRun,
    plain: Callable[[int], list[int]],
    spec: ServingSpec,
    name: str,
) -> dict[str, Any]:
    """How many outputs depart from plain decoding, and the largest top-two gap at which one does.

    Raises:
        CastError: an fp32 output departs where the gap is no near-tie.
    """
    if not spec.compare or spec.temperature > 0:
        return {"departures": None, "largest_gap": math.nan}
    gaps = []
    for index, result in zip(chosen, served.results, strict=True):
        at = departure(plain(index), result.tokens)
        if at == NO_DEPARTURE:
            continue
        prefix = torch.cat((encoded[index].cpu(), torch.tensor(plain(index)[:at], dtype=torch.int64)))
        gaps.append(top_two_gap(pair, prefix))
        if pair.dtype == torch.float32 and gaps[-1] >= FP32_NEAR_TIE:
            raise CastError(
                f"{name} with {served.slots} slots departs from plain decoding at new token {at} in fp32 where the "
                f"top-two logit gap is {gaps[-1]:.2g}: serving is not exact"
            )
    return {"departures": len(gaps), "largest_gap": max(gaps, default=math.nan)}


def _traced_row(variant: _Variant, requests: Sequence[Request], active: int, spec: ServingSpec) -> dict[str, Any]:
    """Milliseconds of the two passes, from a short run that no timing statistic counts."""
    limit = min(TRACED_TOKENS, spec.max_new_tokens)
    short = [replace(request, max_new_tokens=limit, arrival=0.0) for request in requests[:active]]
    served = variant.serve(short, traced=True)
    row = variant.identity | {"repeat": 0, "order": 0, "traced": True, "load": None, "requests": len(short)}
    row |= {"arrivals_per_s": None}
    row |= {"max_new_tokens": limit, "departures": None, "largest_gap": math.nan} | _measured(served, short)
    full = [report for report in served.rounds if report.active == served.slots]
    if full and "status" not in row:
        row |= {
            "draft_ms_per_round": sum(report.draft_ms for report in full) / len(full),
            "verify_ms_per_round": sum(report.verify_ms for report in full) / len(full),
        }
    return row
