"""Held-out evaluation by teacher-forced replay: what a head would have accepted on the target's own outputs.

Greedy outputs fix what verification would answer, so every round can be replayed without running the target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.head import DraftHead
from cast.models.target import Target
from cast.training.objectives import depth_of, hidden_behind, target_logits
from cast.training.shards import Sequence

LOOPING = 0.1  # repeat share from which a sequence counts as looping


@dataclass
class Replay:
    """One sequence replayed.

    Attributes:
        domain: of its prompt.
        repeat_share: share of its repeated 8-grams.
        chain, universe: tokens committed in each round (R) with the drafter's first choices only, and with
            any prefix whose tokens are all among the drafter's K best of their depth: the ceiling of a tree.
        confidence, correct: float and bool per position, the drafter's largest probability at depth 1 and
            whether that token was the target's.
        label_mass: float per position, the drafter's probability of the target's token at depth 1.
    """

    domain: str
    repeat_share: float
    chain: list[int]
    universe: list[int]
    confidence: Tensor
    correct: Tensor
    label_mass: Tensor


@torch.inference_mode()
def replay(
    drafter: DraftHead,
    target: Target,
    sequence: Sequence,
    k: int = 8,
    anchors_at_once: int = 32,
    tick: Callable[[], None] = lambda: None,
) -> Replay | None:
    """Replay one sequence; None when it is too short for a single uncensored round.

    A round counts only if all tokens that a whole draft scores exist, so that R is never cut by the end.
    """
    depth, tokens = depth_of(drafter), sequence.tokens.long().to(target.device)
    if sequence.prompt_tokens >= len(tokens) - depth:
        return None
    anchors = torch.arange(sequence.prompt_tokens, len(tokens) - depth, device=target.device)
    features = sequence.features.to(target.device, drafter.fc.weight.dtype)[None]
    pieces = [_score(drafter, target, features, tokens, part, k, tick) for part in anchors.split(anchors_at_once)]
    chain, universe, confidence, correct, label_mass = (torch.cat(piece) for piece in zip(*pieces, strict=True))
    prompt = sequence.prompt or {}
    return Replay(
        prompt.get("domain", ""),
        sequence.repeat_share(),
        _walk(chain),
        _walk(universe),
        confidence,
        correct,
        label_mass,
    )


def _score(drafter, target, features, tokens, anchors, k, tick):
    """Matched depth of chain and universe, and depth-1 calibration, for some anchors; each [A]."""
    tick()
    depth = depth_of(drafter)
    hidden = hidden_behind(drafter, target.embedding, features, tokens[None], anchors[None], depth)[0]
    labels = tokens[anchors[:, None] + torch.arange(1, depth + 1, device=anchors.device)]
    chain = torch.zeros(len(anchors), depth, dtype=torch.bool, device=anchors.device)
    universe = chain.clone()
    live, near = torch.arange(len(anchors), device=anchors.device), min(4, depth)
    # Most blocks miss within a few tokens; only the others need the language-model head further out.
    for first, last in ((0, near), (near, depth)):
        if first == last or not len(live):
            continue
        logits = target_logits(drafter, target, hidden[live, first:last])
        best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
        hit = best == labels[live, first:last, None]
        chain[live, first:last], universe[live, first:last] = hit[..., 0], hit.any(-1)
        if first == 0:
            probabilities = F.softmax(logits[:, 0], dim=-1)
            confidence = probabilities.max(-1).values
            label_mass = probabilities.gather(1, labels[:, :1])[:, 0]
            correct = hit[:, 0, 0]
            live = live[universe[:, :near].all(1)]
    matched = (mask.long().cumprod(1).sum(1).cpu() for mask in (chain, universe))
    return *matched, confidence.cpu(), correct.cpu(), label_mass.cpu()


def _walk(matched: Tensor) -> list[int]:
    """R of each round, when a round that matched m tokens commits m + 1 and the next starts there."""
    rounds, position, lengths = [], 0, matched.tolist()
    while position < len(lengths):
        rounds.append(lengths[position] + 1)
        position += rounds[-1]
    return rounds


def summarise(replays: list[Replay]) -> list[dict]:
    """One row per domain and one for their mean, over all sequences and over those that do not loop.

    R is pooled over the rounds of a cell; the row named "mean" is the unweighted mean over domains.
    """
    rows = []
    for loops in ("all", "low_repeat"):
        by_domain = defaultdict(list)
        for item in replays:
            if loops == "all" or item.repeat_share < LOOPING:
                by_domain[item.domain].append(item)
        cells = [_cell(domain, loops, items) for domain, items in sorted(by_domain.items())]
        if cells:
            mean = {
                key: sum(c[key] for c in cells) / len(cells)
                for key in ("r_chain", "r_universe", "accuracy", "confidence", "ece")
            }
            counts = {key: sum(c[key] for c in cells) for key in ("sequences", "rounds")}
            rows += [*cells, {"domain": "mean", "repeats": loops, **counts, **mean}]
    return rows


def _cell(domain: str, loops: str, items: list[Replay]) -> dict:
    chain, universe = [r for i in items for r in i.chain], [r for i in items for r in i.universe]
    confidence, correct = (torch.cat([getattr(i, name) for i in items]).float() for name in ("confidence", "correct"))
    return {
        "domain": domain,
        "repeats": loops,
        "sequences": len(items),
        "rounds": len(chain),
        "r_chain": sum(chain) / len(chain),
        "r_universe": sum(universe) / len(universe),
        "accuracy": correct.mean().item(),
        "confidence": confidence.mean().item(),
        "ece": calibration_error(confidence, correct),
    }


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 10) -> float:
    """Expected calibration error of the drafter's first choice at depth 1, over equal-width bins."""
    index = (confidence * bins).long().clamp(max=bins - 1)
    total = 0.0
    for b in range(bins):
        inside = index == b
        if inside.any():
            total += inside.float().mean().item() * abs(confidence[inside].mean() - correct[inside].mean()).item()
    return total
