"""The public entry to the decoder."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from cast.decode.checks import check_callables, check_integers, check_least, check_pair
from cast.decode.loop import Run, decode
from cast.decode.proposers import make_proposer
from cast.errors import CastError
from cast.models import GraphTarget, Pair, Target, with_engine
from cast.verify import GreedySelector, RecursiveSelector, SampledSelector, Selector
from cast.verify.select import LogitsProcessor

SAMPLERS = {"walk": SampledSelector, "recursive": RecursiveSelector}
"""By name: the direct walk, and recursive sampling without replacement (paper, Theorem 3)."""

COLDEST = 1e-6
"""Least temperature above 0; far below it logits overflow in fp32 and have no softmax."""


@dataclass(frozen=True)
class Generation:
    """The result of `generate`.

    Attributes:
        tokens: int64 [T], the new tokens (without the prompt), on the CPU.
        committed: R of each round: accepted tokens and the target's own. The prefill's token is not
            counted, and the last round is not truncated.
        prefill_ms, decode_ms: wall time of the prompt pass and of the timed window.
        ms_per_token: decode_ms over all new tokens, the prefill's included, for every method.
        run: everything else the loop recorded.
    """

    tokens: Tensor
    committed: list[int]
    prefill_ms: float
    decode_ms: float
    ms_per_token: float
    run: Run


def generate(
    pair: Pair,
    input_ids: Tensor,
    method: str = "cast",
    budget: int | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    sampler: str = "walk",
    top_k: int | None = None,
    block_size: int | None = None,
    stop_token_ids: Collection[int] | None = None,
    logits_processor: LogitsProcessor | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    traced: bool = False,
    engine: str = "eager",
    **options,
) -> Generation:
    """Generate with one of the methods. In fp32 all of them emit the same greedy tokens.

    Args:
        pair: a loaded target, with a drafter where the method needs one.
        input_ids: int [T] or [1, T], the prompt.
        method: "autoregressive"; "dflash" (top-1 chain) or "cast" (best-first tree) with a DFlash head; "eagle3",
            "dart" with such a head; "ngram" (prompt lookup) with none; or one of your own (docs/own-drafter.md).
        budget: nodes N of a tree, or of the looked-up chain; the method's own default (63 for cast, 59 for eagle3,
            60 for dart, 10 for ngram) when None.
        max_new_tokens: at least 1.
        temperature: 0 decodes greedily; above 0 (from 1e-6) samples, and the output keeps the target's law.
        seed: of the sampler.
        sampler: at a temperature above 0, "walk" (the direct walk, appendix C) or "recursive" (speculative
            sampling without replacement, Theorem 3); both keep the law and accept equally often.
        top_k: tokens of each position that a tree may use; the method's own default (8 for cast) when None.
        block_size: draft a shorter block than the head's own.
        stop_token_ids: None takes the model's own, [] none.
        logits_processor: one of transformers or a list of them (`LogitsProcessorList`), or any callable from
            (input_ids [1, T], logits [1, V]) to logits [1, V]; applied after the temperature. The law kept
            is that of the processed logits.
        on_tokens: called with the new tokens (list of int) of each round.
        traced: record time by stage in `run.trace_ms`; the run is slower for it.
        engine: "eager", the paper's kind of loop, or "graph", captured CUDA graphs (`cast.models.graph`); a pair
            from `with_engine` keeps its own.
        options: of that method alone: `draft_steps` (eagle3), `trie` (dart), `max_ngram` (ngram).

    Raises:
        CastError: an argument of the wrong kind or out of range, an empty prompt, a sequence longer than the model
            allows, or NaN logits.
    """
    check_pair(pair)
    check_callables(on_tokens=on_tokens)
    if engine != "eager":
        pair = with_engine(pair, engine)
    check_integers(budget=budget or 0, top_k=top_k or 0, block_size=block_size or 0)
    prompt = check_prompt(pair.target, input_ids, max_new_tokens)
    stops = check_stops(pair.target, stop_token_ids)
    selector = make_selector(temperature, sampler, seed, logits_processor)
    proposer = make_proposer(pair, method, budget=budget, top_k=top_k, block_size=block_size, **options)
    if isinstance(pair.target, GraphTarget):
        capacity = len(prompt) + max_new_tokens + proposer.lookahead
        pair.target.prepare(len(prompt), capacity, proposer.packs, proposer.taps)
    run = decode(
        pair.target,
        proposer,
        selector,
        prompt,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stops,
        on_tokens=on_tokens,
        traced=traced,
    )
    return Generation(
        tokens=torch.tensor(run.tokens),
        committed=run.committed,
        prefill_ms=run.prefill_ms,
        decode_ms=run.decode_ms,
        ms_per_token=run.decode_ms / len(run.tokens),
        run=run,
    )


def make_selector(temperature: float, sampler: str, seed: int, logits_processor: LogitsProcessor | None) -> Selector:
    """The rule for the next token at a temperature.

    Raises:
        CastError: the temperature or seed is out of range, the sampler unknown, or the processor no callable.
    """
    try:
        possible = temperature == 0 or COLDEST <= temperature < math.inf  # NaN refused as well
    except TypeError:
        possible = False
    if not possible:
        raise CastError(f"temperature must be 0 or a finite number from {COLDEST:g}, not {temperature!r}")
    if sampler not in tuple(SAMPLERS):  # a tuple: whatever was given need not be hashable
        raise CastError(f"unknown sampler {sampler!r}; samplers: {', '.join(SAMPLERS)}")
    check_callables(logits_processor=logits_processor)
    check_integers(seed=seed)
    if not -(2**63) <= seed < 2**64:
        raise CastError(f"seed must be from -2^63 to 2^64 - 1, not {seed}")
    if temperature == 0:
        return GreedySelector(logits_processor)
    return SAMPLERS[sampler](temperature, seed, logits_processor)


def check_prompt(target: Target, input_ids: Tensor, max_new_tokens: int) -> Tensor:
    """The prompt as int64 [T] on the target's device.

    Raises:
        CastError: it is empty, no vector of token ids, or too long for the model with its new tokens.
    """
    check_least(max_new_tokens=(max_new_tokens, 1))
    try:
        prompt = torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CastError(f"input_ids is no vector of token ids: {' '.join(str(error).split())}") from None
    if prompt.dim() == 2 and prompt.shape[0] == 1:
        prompt = prompt[0]
    if prompt.dim() != 1:
        raise CastError(f"input_ids must have shape [T] or [1, T], not {list(prompt.shape)}")
    if prompt.numel() == 0:
        raise CastError("the prompt is empty; give at least one token")
    if prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool:
        raise CastError(f"input_ids must be integers, not {prompt.dtype}")
    prompt = prompt.to(torch.int64)  # before it is compared, which unsigned kinds cannot be
    if prompt.min() < 0 or prompt.max() >= target.vocab_size:
        raise CastError(f"input_ids holds a token outside the target's vocabulary of {target.vocab_size}")
    if len(prompt) + max_new_tokens > target.max_positions:
        raise CastError(
            f"a prompt of {len(prompt)} tokens and {max_new_tokens} new ones pass the model's maximum of "
            f"{target.max_positions}"
        )
    return prompt.to(target.device)


def check_stops(target: Target, stop_token_ids: Collection[int] | None) -> frozenset[int]:
    """The tokens that end a generation; None takes the model's own.

    Raises:
        CastError: no collection of whole numbers.
    """
    if stop_token_ids is None:
        return frozenset(target.stop_token_ids)
    try:
        return frozenset(map(operator.index, stop_token_ids))
    except TypeError:
        raise CastError(f"stop_token_ids must be a list of token ids, not {stop_token_ids!r}") from None
