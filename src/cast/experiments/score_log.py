"""The score log: the drafter's marginals at every root of a greedy output, and what the target wanted there.

A drafter's offer depends on the tokens before a root alone, so one log of a prompt's output holds every round of
every greedy method at every width: `cast.experiments.replay` walks them without a model (paper, appendix G).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cast.decode import generate
from cast.decode.proposers import top_log_probs
from cast.errors import CastError
from cast.experiments.prompts import Prompt
from cast.experiments.replay_log import ARRAYS, PromptLog
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.models.dart import DartDrafter
from cast.models.dflash import DFlashDrafter
from cast.models.root_drafts import dart_drafts_at_roots, drafts_at_roots


@dataclass(frozen=True)
class ScoreLogSpec:
    """What to log.

    Attributes:
        top: tokens kept at each root and depth; a replay's budgets are exact up to it.
        block_size: None for the drafter's own.
        roots_at_once: roots of one drafter pass; it bounds the memory.
        time_limit_s: no prompt starts after this many seconds; the first always runs.
    """

    max_new_tokens: int
    top: int = 128
    block_size: int | None = None
    roots_at_once: int = 16
    time_limit_s: float | None = None


def run(
    pair: Pair, prompts: Sequence[Prompt], spec: ScoreLogSpec, done: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, for each prompt, its id, and ``row`` (columns of SCORE_LOG) with the arrays of a `PromptLog`.

    Raises:
        CastError: the pair has no one-pass drafter, the block does not fit it, or prompt, output and one draft
            pass the model's length.
    """
    drafted_positions(pair, spec)
    started, logged = time.monotonic(), 0
    for index, prompt in enumerate(prompts):
        if prompt.id in done:
            continue
        late = spec.time_limit_s is not None and time.monotonic() - started > spec.time_limit_s
        if logged and late:
            return
        logged += 1
        log, prompt_tokens = log_prompt(pair, prompt, spec)
        row = {
            "prompt_id": prompt.id,
            "prompt_index": index,
            "prompt_tokens": prompt_tokens,
            "new_tokens": log.new_tokens,
            "output_tokens": len(log.output),
            "roots": len(log.tokens),
            "departures": log.departures,
            "max_new_tokens": spec.max_new_tokens,
            "block_size": log.tokens.shape[1] + 1,
            "top": log.tokens.shape[2],
        }
        yield prompt.id, {"row": row} | {name: getattr(log, name) for name in ARRAYS}


def drafted_positions(pair: Pair, spec: ScoreLogSpec) -> int:
    """L, the positions that one draft scores.

    Raises:
        CastError: the pair's drafter scores no block in one pass, or not one of that size.
    """
    if isinstance(pair.drafter, DartDrafter) and spec.block_size is None:
        return pair.drafter.positions
    if not isinstance(pair.drafter, DFlashDrafter):
        raise CastError("a score log needs a DFlash drafter, or a DART one without block_size; choose such a setting")
    own = pair.drafter.block_size
    if spec.block_size is not None and not 2 <= spec.block_size <= own:
        raise CastError(f"block_size must be between 2 and the drafter's own {own}, not {spec.block_size}")
    return (spec.block_size or own) - 1


def log_prompt(pair: Pair, prompt: Prompt, spec: ScoreLogSpec) -> tuple[PromptLog, int]:
    """The log of one prompt, and the number of its tokens."""
    length = drafted_positions(pair, spec)
    input_ids = encode_for(pair, prompt, spec.max_new_tokens + length)
    emitted = generate(pair, input_ids, "autoregressive", max_new_tokens=spec.max_new_tokens).tokens
    # A round may reach past the end of the output, which its R counts: the target's continuation tells how far.
    known = torch.cat((input_ids, emitted))
    beyond = generate(pair, known, "autoregressive", max_new_tokens=length, stop_token_ids=[]).tokens
    sequence = torch.cat((known, beyond)).to(pair.device)
    logits, features = _teacher_forced(pair, sequence)
    best, wanted = logits[len(input_ids) - 1 : -1].float().topk(2, dim=-1)
    roots = torch.arange(len(input_ids), len(known) - 1, device=pair.device)
    tokens, log_probs = _marginals(pair, features, sequence, roots, spec, length)
    log = PromptLog(
        prompt_id=prompt.id,
        new_tokens=len(emitted),
        output=sequence[len(input_ids) :].cpu().numpy().astype(np.int32),
        target_tokens=wanted[:, 0].cpu().numpy().astype(np.int32),
        target_gaps=(best[:, 0] - best[:, 1]).cpu().numpy(),
        tokens=tokens,
        log_probs=log_probs,
    )
    return log, len(input_ids)


def _teacher_forced(pair: Pair, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [T, V] and drafter features [T, taps * H] of a known sequence, in one pass."""
    positions = torch.arange(len(tokens), device=tokens.device)
    dart = isinstance(pair.drafter, DartDrafter)
    taps = pair.drafter.tapped_layers(pair.target.layers) if dart else pair.drafter.target_layer_ids
    output = pair.target.forward(tokens, positions, pair.target.new_cache(len(tokens)), causal=True, taps=taps)
    return output.logits, torch.cat(output.taps, dim=-1)


def _marginals(
    pair: Pair, features: Tensor, sequence: Tensor, roots: Tensor, spec: ScoreLogSpec, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 and log-probabilities float32 [R, L, K] of the K = ``spec.top`` best at every root."""
    drafter = pair.drafter
    if isinstance(drafter, DartDrafter):
        kept = min(spec.top, drafter.config.draft_vocab_size)
        drafts = dart_drafts_at_roots(drafter, pair.target, features, sequence, roots)
    else:
        kept = min(spec.top, pair.target.vocab_size)
        options = {"block_size": length + 1, "roots_at_once": spec.roots_at_once}
        drafts = drafts_at_roots(drafter, pair.target, features, sequence[roots], roots, **options)
    shape = (len(roots), length, kept)
    tokens, log_probs = np.empty(shape, np.int32), np.empty(shape, np.float32)
    start = 0
    for logits in drafts if len(roots) else ():
        end = start + len(logits)
        values, chosen = top_log_probs(logits.flatten(0, 1), kept)
        if isinstance(drafter, DartDrafter):
            chosen = drafter.to_target(chosen.to(pair.device)).cpu()
        tokens[start:end] = chosen.numpy().reshape(-1, length, kept)
        log_probs[start:end] = values.numpy().reshape(-1, length, kept)
        start = end
    return tokens, log_probs
