"""The drafter-score log: the sorted plug-in masses of every round, whose average is the mass curve."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cast.decode import decode
from cast.decode.proposers import DFlashChain, top_log_probs
from cast.experiments.prompts import Prompt
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.trees import best_first_tree_from_topk
from cast.verify import GreedySelector


@dataclass(frozen=True)
class ScoresSpec:
    """What to log.

    Attributes:
        rounds: stop after the prompt that completes this many.
        masses: largest masses kept of each round.
        top_k: tokens of each position in the universe.
        time_limit_s: no prompt starts after this many seconds; the first always runs.
    """

    rounds: int
    masses: int = 512
    top_k: int = 8
    max_new_tokens: int = 256
    time_limit_s: float | None = None


class _LoggingChain(DFlashChain):
    """Standard decoding that keeps each round's top-K marginals."""

    def __init__(self, pair: Pair, top_k: int):
        super().__init__(pair, None)
        self.top_k = top_k
        self.log: list[tuple[torch.Tensor, torch.Tensor]] = []

    def marginals(self, features, root, trace):
        logits = super().marginals(features, root, trace)
        self.log.append(top_log_probs(logits, self.top_k))
        return logits


def run(
    pair: Pair, prompts: Sequence[Prompt], spec: ScoresSpec, done: Collection[str] = ()
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield, for each prompt, its id and float32 [rounds, masses], each round's masses in descending order.

    The rounds are those of greedy chain decoding. A universe of fewer nodes is padded with zeros: nodes that
    do not exist carry no mass.
    """
    started = time.monotonic()
    logged = 0
    for prompt in prompts:
        if prompt.id in done:
            continue
        late = spec.time_limit_s is not None and time.monotonic() - started > spec.time_limit_s
        if logged and (late or logged >= spec.rounds):
            return
        proposer = _LoggingChain(pair, spec.top_k)
        decode(
            pair.target,
            proposer,
            GreedySelector(),
            encode_for(pair, prompt, spec.max_new_tokens).to(pair.device),
            max_new_tokens=spec.max_new_tokens,
            stop_token_ids=frozenset(pair.target.stop_token_ids),
        )
        masses = np.zeros((len(proposer.log), spec.masses), np.float32)
        for row, top in zip(masses, proposer.log, strict=True):
            mass = best_first_tree_from_topk(*top, spec.masses).log_mass.exp().numpy()
            row[: len(mass)] = mass
        logged += len(masses)
        if len(masses):
            yield prompt.id, masses
