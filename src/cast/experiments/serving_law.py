"""Sampling under load: the samplers' draws at prefixes of requests that are served together (paper, appendix F).

Requests decode together at a temperature for some rounds. Then the packs of one more round, as the batch verified
them, are walked many times over and compared with plain decoding of each request's own prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cast.errors import CastError
from cast.experiments.prompts import Prompt
from cast.experiments.total_variation import TotalVariationSpec, VerifiedRound, compared, round_rows
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.models.checkpoint import DTYPES
from cast.serving import Batch, BestFirst, Forest, RaggedVerifier, Request
from cast.serving.passes import Verified


@dataclass(frozen=True)
class ServedLawSpec(TotalVariationSpec):
    """What to draw; `budget` is the average number of nodes of a request under best-first allocation.

    Attributes:
        batch_size: requests that decode together.
        lead_rounds: rounds before the one that is compared.
    """

    batch_size: int = 8
    lead_rounds: int = 4


def run(
    pair: Pair, prompts: Sequence[Prompt], spec: ServedLawSpec, done: Collection[str] = ()
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, for each precision, its name and the rows of every served prefix, without the identity columns.

    Raises:
        CastError: fewer prompts than active requests.
    """
    if len(prompts) < spec.batch_size:
        raise CastError(
            f"{spec.batch_size} active requests need as many prompts, not {len(prompts)}; raise prompt_limit"
        )
    spec = replace(spec, draws=tuple(sorted(set(spec.draws))))
    for place, dtype in enumerate(spec.dtypes):
        if dtype in done:
            continue
        precise = pair if pair.dtype == DTYPES[dtype] else pair.to(DTYPES[dtype])
        rows = []
        for index, round_ in enumerate(_served_rounds(precise, prompts[: spec.batch_size], spec)):
            common = {"prompt_id": prompts[index].id, "prompt_index": index, "dtype": dtype}
            rows += [common | row for row in round_rows(round_, spec, [spec.seed, index, place])]
        yield dtype, rows


@torch.inference_mode()
def _served_rounds(pair: Pair, prompts: Sequence[Prompt], spec: ServedLawSpec) -> list[VerifiedRound]:
    """One verified round of each request, all of them from the same batched pass."""
    allocator = BestFirst(spec.budget, spec.top_k)
    longest = 1 + (spec.lead_rounds + 1) * pair.drafter.block_size  # no request ends before it is compared
    requests = [
        Request(
            encode_for(pair, prompt, longest),
            max_new_tokens=longest,
            temperature=spec.temperature,
            seed=spec.seed + index,
            sampler="recursive",
            stop_token_ids=(),
        )
        for index, prompt in enumerate(prompts)
    ]
    capacity = max(Batch.tokens_needed(pair, allocator, len(r.prompt), longest, len(requests)) for r in requests)
    batch = Batch(pair, allocator, RaggedVerifier(), slots=len(requests), slot_tokens=capacity)
    for request in requests:
        batch.admit(request)
    for _ in range(spec.lead_rounds):
        batch.round()
    served = []

    def inspect(forest: Forest, verified: Verified) -> None:
        for slot, (active, start) in enumerate(zip(batch.active, verified.starts, strict=True)):
            tree = forest.tree(slot)
            served.append((active.history(), tree, verified.logits[start : start + len(tree) + 1].cpu()))

    batch.round(inspect)
    rounds = []
    for emitted, tree, packed in served:
        prefix = torch.tensor(emitted[:-1], device=pair.device)
        cache = pair.target.new_cache(len(emitted) + 1)
        positions = torch.arange(len(prefix), device=pair.device)
        pair.target.forward(prefix, positions, cache, causal=True, last_logits_only=True)
        cache.commit(len(prefix))
        rounds.append(compared(pair.target, cache, emitted, tree, packed))
    return rounds
