"""The width sweep: every method and width on the same prompts, in one process, prompt by prompt."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cast.decode import Generation, generate
from cast.errors import CastError
from cast.experiments.exactness import NO_DEPARTURE, check_fp32_departure, departure, repeat_share, top_two_gap
from cast.experiments.failures import ENDED_AT_ONCE
from cast.experiments.memory import shortage
from cast.experiments.prompts import Prompt, encode
from cast.models import Pair

Heads = Mapping[str, Mapping[str, Pair | None]]
"""Method to its heads' names, and the pair that each of them makes with the target."""

WARM_UP_TOKENS = 16
TRACED_TOKENS = 16
"""A traced run's share of stages needs few rounds, and it takes time from the timed prompts."""


@dataclass(frozen=True)
class WidthSweepSpec:
    """What to decode.

    Attributes:
        methods: among those registered in `cast.decode`.
        budgets: tree widths N of the cast method.
        block_size: None for the drafter's own.
        block_sizes: several in one job, each with its chain and its trees; None for `block_size` alone.
        lengths: several `max_new_tokens` in one job; None for that alone.
        sampler: of the trees at a temperature above 0. A chain takes the direct walk: the DFlash authors'
            acceptance on equality with the target's sample.
        seeds: every method runs with each of them, in turn; empty for `seed` alone.
        repeats: timed runs of each prompt, method and seed.
        traced: one more, shorter run of the first prompt, with time by stage.
        time_limit_s: no prompt starts that is not expected to end within it, once `min_prompts` were run.
        min_prompts: so many are run however long they take: those of earlier sessions count, and those that measure
            nothing.
        method_options: for each method other than these three, its own `budgets` and whatever else
            `generate` takes by keyword for it.
    """

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 8
    block_size: int | None = None
    block_sizes: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    seed: int = 0
    sampler: str = "walk"
    seeds: tuple[int, ...] = ()
    repeats: int = 1
    traced: bool = True
    time_limit_s: float | None = None
    min_prompts: int = 1
    method_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One method at one width, and at a block size and length of its own where a spec has several.

    `head` names the head that drafts where it is not the pair's own.
    """

    method: str
    budget: int
    block_size: int | None = None
    max_new_tokens: int | None = None
    head: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """For `generate`; plain decoding and the full chain are told no budget."""
        own = {"block_size": self.block_size, "max_new_tokens": self.max_new_tokens}
        own |= {"budget": None if self.method in ("autoregressive", "dflash") else self.budget}
        return {"method": self.method, **{key: value for key, value in own.items() if value is not None}}


@dataclass(frozen=True)
class _Run:
    variant: Variant
    seed: int
    repeat: int
    place: int
    traced: bool
    out: Generation | str
    """What was decoded, or why the memory did not suffice."""


def run(
    pair: Pair,
    prompts: Sequence[Prompt],
    spec: WidthSweepSpec,
    done: Collection[str] = (),
    heads: Heads | None = None,
    lacking: Mapping[str, Collection[int]] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each prompt, the rows of all its methods, without the identity columns.

    The order of the methods rotates by prompt, so that none always runs on a warmer or cooler machine. A
    prompt whose first token ends it has nothing to time: its rows say so and measure nothing.

    Args:
        prompts: in their fixed order; those in `done` (ids) are skipped but keep their place in the rotation.
        heads: further heads of the same target, by method and name; each method runs with each of its own.
        lacking: prompts (ids) that an earlier run measured but for the methods at these places of their order, for
            which memory did not suffice. Those are tried first: where it suffices for one now, the prompt is measured
            again, so that its pairs share a machine and a moment; else it keeps what it has.
    """
    started = time.monotonic()
    variants, seeds = variants_of(pair, spec, heads), spec.seeds or (spec.seed,)
    pairs = {variant: (heads or {}).get(variant.method, {}).get(variant.head) or pair for variant in variants}
    lengths = spec.lengths or (spec.max_new_tokens,)
    encoded = [encode_for(pair, prompt, max(lengths)) for prompt in prompts]
    pending = [index for index, prompt in enumerate(prompts) if prompt.id not in done]
    if pending:
        for variant in variants:
            _attempt(pairs[variant], encoded[pending[0]], variant, spec, max_new_tokens=min(WARM_UP_TOKENS, *lengths))
    expected_s = 0.0  # for one more prompt: the slowest so far
    for measured, index in enumerate(pending, start=len(done)):
        begun = time.monotonic()
        late = spec.time_limit_s is not None and begun - started + expected_s > spec.time_limit_s
        if late and expected_s and measured >= spec.min_prompts:
            return
        turn = index % len(variants)
        order = variants[turn:] + variants[:turn]
        places = (lacking or {}).get(prompts[index].id, ())
        tried = (_attempt(pairs[order[p]], encoded[index], order[p], spec, seed=seeds[0]) for p in sorted(places))
        if places and all(isinstance(out, str) for out in tried):
            continue
        runs = [
            _Run(
                variant, seed, repeat, place, False, _attempt(pairs[variant], encoded[index], variant, spec, seed=seed)
            )
            for repeat in range(spec.repeats)
            for seed in seeds
            for place, variant in enumerate(order)
        ]
        expected_s = max(expected_s, time.monotonic() - begun)
        if spec.traced and index == 0:
            short = {"max_new_tokens": min(TRACED_TOKENS, *lengths), "traced": True, "seed": seeds[0]}
            runs += [
                _Run(
                    variant, seeds[0], 0, place, True, _attempt(pairs[variant], encoded[index], variant, spec, **short)
                )
                for place, variant in enumerate(order)
                if variant.max_new_tokens in (None, lengths[0])
            ]
        yield _rows(pairs, prompts[index], index, encoded[index], runs, spec)


def encode_for(pair: Pair, prompt: Prompt, max_new_tokens: int) -> Tensor:
    """Token ids [T] of a prompt; for a target without tokenizer the text holds the ids themselves."""
    if pair.tokenizer is None:
        try:
            return torch.tensor([int(number) for number in prompt.text.split()])
        except ValueError:
            raise CastError(
                f"target {pair.name} has no tokenizer, and prompt {prompt.id} is text; use a domain of token ids"
            ) from None
    return encode(pair.tokenizer, prompt, max_tokens=pair.target.max_positions - max_new_tokens)


def sampler_of(method: str, sampler: str) -> str:
    """The sampler a method takes at a temperature above 0 where the trees' is `sampler`."""
    return sampler if method not in ("autoregressive", "dflash") else "walk"


def variants_of(pair: Pair | None, spec, heads: Heads | None = None) -> list[Variant]:
    """Every method of a spec at each of its widths, block sizes and lengths; plain decoding has no block.

    Args:
        pair: None where only the number of variants is asked for: a chain of unknown length then has 0 nodes.
        spec: has `methods`, `budgets` and `block_size`; `block_sizes` and `lengths` where there are several.
        heads: as for `run`; a method with options of its own and no head here takes the pair's drafter, or none.

    Raises:
        CastError: a method without widths.
    """
    options = getattr(spec, "method_options", {})
    for method in spec.methods:
        needed = method in options or method not in ("autoregressive", "dflash", "cast")
        if needed and not options.get(method, {}).get("budgets"):
            raise CastError(f"method {method} has no widths; give method_options.{method}.budgets")
    own = spec.block_size or _own_block(pair)
    found = []
    for length in getattr(spec, "lengths", None) or (None,):
        if "autoregressive" in spec.methods:
            found.append(Variant("autoregressive", 0, None, length))
        for block in getattr(spec, "block_sizes", None) or (None,):
            widths = {"dflash": [(block or own) - 1], "cast": spec.budgets}
            drafted = [method for method in spec.methods if method in widths]
            found += [Variant(method, budget, block, length) for method in drafted for budget in widths[method]]
        found += [
            Variant(method, budget, None, length, head)
            for method in spec.methods
            if method in options
            for head in (heads or {}).get(method) or ("",)
            for budget in options[method]["budgets"]
        ]
    return found


def _own_block(pair: Pair | None) -> int:
    """The block of the pair's drafter; 1 without one, and for a head that drafts no blocks."""
    return getattr(pair.drafter, "block_size", 1) if pair else 1


def _attempt(pair: Pair, input_ids: Tensor, variant: Variant, spec: WidthSweepSpec, **changes) -> Generation | str:
    """The generation; a reason where memory does not suffice for this width, which costs the others nothing."""
    try:
        return _generate(pair, input_ids, variant, spec, **changes)
    except (MemoryError, RuntimeError) as error:
        reason = shortage(error)
        if not reason:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return reason


def _generate(pair: Pair, input_ids: Tensor, variant: Variant, spec: WidthSweepSpec, **changes) -> Generation:
    arguments = {
        "max_new_tokens": spec.max_new_tokens,
        "temperature": spec.temperature,
        "top_k": spec.top_k,
        "block_size": spec.block_size,
        "sampler": sampler_of(variant.method, spec.sampler),
        **_own_options(variant, spec),
    }
    return generate(pair, input_ids, **{**arguments, **variant.arguments, **changes})


def _own_options(variant: Variant, spec: WidthSweepSpec) -> dict[str, Any]:
    """What `generate` is told besides for a method that has options of its own: their `top_k` replaces the trees'."""
    own = spec.method_options.get(variant.method)
    return {} if own is None else {"top_k": None, **{key: value for key, value in own.items() if key != "budgets"}}


def _rows(
    pairs: Mapping[Variant, Pair],
    prompt: Prompt,
    index: int,
    input_ids: Tensor,
    runs: list[_Run],
    spec: WidthSweepSpec,
) -> list[dict[str, Any]]:
    decoded = [run for run in runs if isinstance(run.out, Generation)]
    plain = {  # of several repeats, the first
        run.variant.max_new_tokens: run.out.tokens.tolist()
        for run in reversed(decoded)
        if run.variant.method == "autoregressive" and not run.traced
    }
    rows = []
    for run in runs:
        pair = pairs[run.variant]
        limit = run.variant.max_new_tokens or spec.max_new_tokens
        limit = min(TRACED_TOKENS, limit) if run.traced else limit
        row = {
            "method": run.variant.method,
            "budget": run.variant.budget,
            "prompt_id": prompt.id,
            "prompt_index": index,
            "repeat": run.repeat,
            "seed": run.seed,
            "temperature": spec.temperature,
            "sampler": sampler_of(run.variant.method, spec.sampler) if spec.temperature else "greedy",
            "top_k": _own_options(run.variant, spec).get("top_k", spec.top_k) or 0,
            "block_size": 0
            if run.variant.method in spec.method_options
            else run.variant.block_size or spec.block_size or _own_block(pair),
            "max_new_tokens": limit,
            "order": run.place,
            "traced": run.traced,
            "prompt_tokens": len(input_ids),
        }
        if run.variant.head:
            row["drafter"] = run.variant.head
        if isinstance(run.out, str):
            row |= {"status": "failed", "reason": run.out}
        elif run.out.committed:
            expected = plain.get(run.variant.max_new_tokens)
            expected = None if expected is None else expected[:limit]
            row |= _measured(run.out, run.traced) | _exactness(pair, input_ids, run.variant, spec, run.out, expected)
        else:
            row |= {"status": "failed", "reason": ENDED_AT_ONCE}
        rows.append(row)
    return rows


def _measured(out: Generation, traced: bool) -> dict[str, Any]:
    tokens, rounds = out.tokens.tolist(), len(out.committed)
    speculative = out.run.drafter_passes > 0
    row = {
        "new_tokens": len(tokens),
        "rounds": rounds,
        "committed_tokens": sum(out.committed),
        "stop_reason": "stop" if out.run.stopped else "length",
        "prefill_ms": out.prefill_ms,
        "first_draft_ms": out.run.first_draft_ms if speculative else math.nan,
        "decode_ms": out.decode_ms,
        "ms_per_token": out.ms_per_token,
        "drafter_passes": out.run.drafter_passes,
        "target_passes": out.run.target_passes,
        "draft_ms_per_round": math.nan,
        "verify_ms_per_round": math.nan,
        "overhead_ms_per_round": math.nan,
        "repeat_share": repeat_share(tokens),
        "output_sha256": hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest(),
    }
    if traced:
        draft, verify = out.run.trace_ms.get("draft", 0.0), out.run.trace_ms["verify"]
        row["draft_ms_per_round"] = draft / rounds
        row["verify_ms_per_round"] = verify / rounds
        row["overhead_ms_per_round"] = (out.decode_ms - draft - verify) / rounds
    return row


def _exactness(pair, input_ids, variant, spec, out, plain) -> dict[str, Any]:
    """Departure from plain greedy decoding; empty for sampled outputs and sweeps without it, which are not compared."""
    if plain is None or spec.temperature > 0:
        return {"departure": None, "departure_gap": math.nan}
    index, gap = departure(plain, out.tokens.tolist()), math.nan
    if index != NO_DEPARTURE:
        prefix = torch.cat((input_ids.cpu(), torch.tensor(plain[:index], dtype=torch.int64)))
        gap = top_two_gap(pair, prefix)
        if pair.dtype == torch.float32:
            shape = {"top_k": spec.top_k, "block_size": spec.block_size}
            method = {**shape, **_own_options(variant, spec), **variant.arguments}
            check_fp32_departure(pair, input_ids, index, gap, **method)
    return {"departure": index, "departure_gap": gap}
