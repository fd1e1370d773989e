"""How one method's output compares with plain decoding of the same prompt, and how much an output loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cast.decode import generate
from cast.errors import CastError
from cast.models import Pair
from cast.trees import chain_tree
from cast.verify import verify

NO_DEPARTURE = -1
FP32_NEAR_TIE = 1e-3
"""In fp32 only a position whose top-two logit gap is below this may depart, and only if fp64 agrees."""


def repeat_share(tokens: Sequence[int], gram: int = 8) -> float:
    """Share of an output's n-grams that occurred in it before; 0 for outputs shorter than one n-gram.

    Small models loop, and acceptance on loops says little about a drafter.
    """
    grams = [tuple(tokens[i : i + gram]) for i in range(len(tokens) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def departure(reference: Sequence[int], tokens: Sequence[int]) -> int:
    """Index of the first token that differs from the reference, -1 where none does.

    Outputs of different lengths depart, at the latest, where the shorter ends.
    """
    for index, (expected, token) in enumerate(zip(reference, tokens, strict=False)):
        if expected != token:
            return index
    return NO_DEPARTURE if len(reference) == len(tokens) else min(len(reference), len(tokens))


def top_two_gap(pair: Pair, prefix: Tensor) -> float:
    """Difference of the target's two largest logits after the prefix int64 [T], in the pair's dtype."""
    cache = pair.target.new_cache(len(prefix))
    positions = torch.arange(len(prefix), device=pair.device)
    output = pair.target.forward(prefix.to(pair.device), positions, cache, causal=True, last_logits_only=True)
    best, second = output.logits[0].double().topk(2).values.tolist()
    return best - second


def top_two_gaps(pair: Pair, prompt: Tensor, tokens: Sequence[int]) -> list[float]:
    """Difference of the target's two largest logits at each of the new tokens [T], in the pair's dtype.

    Two passes over the finished sequence, so the gaps are those of decoding up to the rounding of its shapes.

    Args:
        prompt: int64 [P].
        tokens: what followed it; the gap at a token is that of the logits it was chosen by.
    """
    target, length = pair.target, len(prompt)
    cache = target.new_cache(length + len(tokens))
    positions = torch.arange(length, device=pair.device)
    output = target.forward(prompt.to(pair.device), positions, cache, causal=True, last_logits_only=True)
    best = [output.logits.double().topk(2).values]
    if len(tokens) > 1:
        cache.commit(length)
        root, *rest = torch.tensor(tokens[:-1]).split([1, len(tokens) - 2])
        best.append(verify(target, cache, root.to(pair.device), chain_tree(rest[0])).logits.double().topk(2).values)
    top = torch.cat(best)
    return (top[:, 0] - top[:, 1]).tolist()


def check_fp32_departure(pair: Pair, prompt: Tensor, index: int, gap: float, **method) -> None:
    """Raise what `fp32_violation` finds.

    Raises:
        CastError: the departure breaks the rule for near-ties.
    """
    violation = fp32_violation(pair, prompt, index, gap, **method)
    if violation:
        raise CastError(violation)


def fp32_violation(pair: Pair, prompt: Tensor, index: int, gap: float, **method) -> str:
    """Hold an fp32 departure from plain decoding against the rule for near-ties.

    Args:
        pair: the fp32 pair.
        prompt: int64 [T].
        index: position of the departure among the new tokens.
        gap: top-two logit gap there.
        method: the arguments of `generate` that departed.

    Returns:
        One line when the gap is no near-tie or the two methods differ in fp64 as well; "" for a near-tie.
    """
    what = f"{method['method']} (budget {method.get('budget', 0)}) departs from plain decoding at new token {index}"
    if gap >= FP32_NEAR_TIE:
        return f"{what} in fp32 where the top-two logit gap is {gap:.2g}: the decoder is not exact"
    exact = pair.to(torch.float64)
    limits = {"max_new_tokens": index + 1, "stop_token_ids": []}
    outputs = [generate(exact, prompt, **{**choice, **limits}) for choice in (method, {"method": "autoregressive"})]
    same = torch.equal(outputs[0].tokens, outputs[1].tokens)
    return "" if same else f"{what} in fp64 as well: the decoder is not exact"
