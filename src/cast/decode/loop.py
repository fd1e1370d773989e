"""The decoding loop (paper, appendix C): draft, propose, verify, walk, commit, until done.

At the entry of a round the emitted stream is x + b, and both caches cover x.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cast.decode.proposers import Proposer
from cast.decode.timer import Trace, garbage_collection_off, now_ms
from cast.models.layers import on_device
from cast.models.target import Target
from cast.verify import Selector, verify


@dataclass
class Run:
    """A finished generation, as the loop leaves it; all times in ms.

    Attributes:
        tokens: emitted tokens, the prefill's first.
        committed: R of each round, neither counting the prefill's token nor truncated.
        stopped: whether a stop token ended it.
        prefill_ms: prompt pass and first token.
        first_draft_ms: first draft construction, outside the timed window.
        decode_ms: the timed window (paper, appendix D): from just before the first verification to after
            the output is truncated.
        drafter_passes, target_passes: passes made, prefill included.
        trace_ms: by stage, over the timed window; empty unless traced.
    """

    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    stopped: bool = False
    prefill_ms: float = 0.0
    first_draft_ms: float = 0.0
    decode_ms: float = 0.0
    drafter_passes: int = 0
    target_passes: int = 0
    trace_ms: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def decode(
    target: Target,
    proposer: Proposer,
    selector: Selector,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    stop_token_ids: Collection[int] = (),
    on_tokens: Callable[[list[int]], None] | None = None,
    traced: bool = False,
) -> Run:
    """Generate from a prompt with any proposer.

    Args:
        target: the target model.
        proposer: a fresh one; it says what each round verifies.
        selector: the target's rule for the next token.
        prompt: int64 [T], T >= 1, on the target's device.
        max_new_tokens: at least 1; never exceeded.
        stop_token_ids: the output ends right after the first of them.
        on_tokens: called with each round's newly emitted tokens.
        traced: also charge time to stages, at the price of extra synchronisation.
    """
    device = target.device
    started = now_ms(device)
    prompt_ids = prompt.tolist()
    capacity = len(prompt_ids) + max_new_tokens + proposer.lookahead
    cache = target.new_cache(capacity)
    proposer.start(capacity)
    run = Run()

    def emit(tokens: list[int]) -> bool:
        """Append what the limits leave of these tokens; True when the generation is over."""
        fresh, run.stopped = within_limits(tokens, max_new_tokens - len(run.tokens), stop_token_ids)
        run.tokens.extend(fresh)
        if on_tokens is not None:
            on_tokens(list(fresh))
        return run.stopped or len(run.tokens) >= max_new_tokens

    output = target.forward(
        prompt,
        torch.arange(len(prompt_ids), device=device),
        cache,
        causal=True,
        taps=proposer.taps,
        last_logits_only=True,
    )
    run.target_passes += 1
    next_root = selector.walk(None, output.logits, lambda: prompt_ids).next_root
    cache.commit(len(prompt_ids))
    features = torch.cat(output.taps, dim=-1) if output.taps else None
    del output
    done = emit([next_root])
    proposer.observe([*prompt_ids, next_root])
    root = on_device([next_root], device)
    run.prefill_ms = now_ms(device) - started
    if done:
        return run

    drafting = now_ms(device)
    tree = proposer.propose(features, root)
    run.first_draft_ms = now_ms(device) - drafting

    with garbage_collection_off():
        opened = now_ms(device)
        trace = Trace(device) if traced else None
        while True:
            if trace:
                trace.lap("other")
            output = verify(target, cache, root, tree, proposer.taps)
            run.target_passes += 1
            if trace:
                trace.lap("verify")
            round_ = selector.walk(tree, output.logits, lambda: prompt_ids + run.tokens)
            cache.commit(round_.rows)
            run.committed.append(round_.committed)
            # Before the caller hears of the tokens: the output is the target's, and a pass of the caller's takes it.
            features = _rows(output.taps, round_.rows) if output.taps else None
            del output  # the next pass takes its memory
            if emit([*round_.accepted, round_.next_root]):
                break
            proposer.observe([*round_.accepted, round_.next_root])
            root = on_device([round_.next_root], device)
            tree = proposer.propose(features, root, trace)
        run.decode_ms = now_ms(device) - opened
    if trace:
        trace.lap("other")
        run.trace_ms = dict(trace.stage_ms)
    run.drafter_passes = proposer.passes
    return run


def _rows(taps: list[Tensor], rows: list[int]) -> Tensor:
    """Features [len(rows), taps * H] of exactly the committed positions."""
    if rows == list(range(len(rows))):
        return torch.cat([tap[: len(rows)] for tap in taps], dim=-1)
    index = on_device(rows, taps[0].device)
    return torch.cat([tap[index] for tap in taps], dim=-1)


def within_limits(tokens: Sequence[int], room: int, stop_token_ids: Collection[int]) -> tuple[list[int], bool]:
    """What is emitted of these tokens where so many more may be, and whether the last of it is a stop token."""
    fresh = list(tokens[:room])
    stop = next((place for place, token in enumerate(fresh) if token in stop_token_ids), None)
    return (fresh, False) if stop is None else (fresh[: stop + 1], True)
