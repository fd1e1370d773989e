"""Which token a walk commits at a verified row: greedy, the direct sampled walk, or recursive sampling.

Both samplers keep the target's law at a temperature T > 0 (paper, Theorem 3; `cast.verify.law` computes their
laws exactly) and accept a retained sibling c with its target probability p(c): over a fixed set of siblings
they differ in cost and in the use of the random stream, not in what they commit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from cast.trees import CandidateTree
from cast.verify.chance import Chance, refuse_undefined
from cast.verify.resident import greedy_walk_on_device, on_host, refuse_nan
from cast.verify.walk import Selection, Walk, walk

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""As in transformers: (input_ids [1, T], logits [1, V]) to logits [1, V]."""


class Selector(ABC):
    """A rule for the token committed at a verified row. One instance serves one generation."""

    @abstractmethod
    def over(self, logits: Tensor, emitted: Callable[[], list[int]], tree: CandidateTree | None = None) -> Selection:
        """Selections over the rows of one pass.

        Args:
            logits: [N + 1, V].
            emitted: gives prompt and output so far, up to and including the token of row 0; called only
                when a processor needs it.
            tree: what was verified; needed where the rule looks at the drafter's scores.

        Raises:
            CastError: (from the selection) NaN among a visited row's logits.
        """

    def walk(self, tree: CandidateTree | None, logits: Tensor, emitted: Callable[[], list[int]]) -> Walk:
        """Walk a verified tree by this rule; arguments as for `over`."""
        if tree is not None and tree.visible is not None:
            tree = on_host(tree)
        return walk(tree, self.over(logits, emitted, tree))


class GreedySelector(Selector):
    """The arg-max of the target's logits, after the caller's processor if there is one."""

    def __init__(self, logits_processor: LogitsProcessor | None = None):
        self.logits_processor = logits_processor

    def walk(self, tree, logits, emitted):
        if tree is not None and tree.visible is not None and self.logits_processor is None:
            return greedy_walk_on_device(tree, logits)
        return super().walk(tree, logits, emitted)

    def over(self, logits, emitted, tree=None):
        if self.logits_processor is not None:
            return lambda row, path, siblings: _arg_max(
                _processed(self.logits_processor, logits[row], emitted() + path)
            )
        if logits.device.type == "cpu":
            # The walk visits few rows, and reading one costs nothing here.
            return lambda row, path, siblings: _arg_max(logits[row])
        best, tokens = logits.max(dim=-1)
        chosen = torch.stack((tokens, best.isnan().long())).tolist()  # the round's one device-to-host copy

        def select(row: int, path: list[int], siblings: Mapping[int, int]) -> int:
            refuse_nan("target", chosen[1][row])
            return chosen[0][row]

        return select


class SampledSelector(Selector):
    """The direct walk: a draw from the target's law at each row, descending while it is a child (appendix C).

    The law kept is softmax(logits / T), temperature first, after the caller's processor: the token
    committed at a node is the draw itself, whatever the tree holds. One uniform is spent on each committed
    token, so a seed gives plain sampling's tokens with every tree.
    """

    def __init__(self, temperature: float, seed: int, logits_processor: LogitsProcessor | None = None):
        self.temperature = temperature
        self.logits_processor = logits_processor
        self.chance = Chance(seed)

    def over(self, logits, emitted, tree=None):
        law = TargetLaw(logits, self.temperature, self.logits_processor, emitted)
        return lambda row, path, siblings: self.chance.token(law.cumulative(row, path))


class RecursiveSelector(SampledSelector):
    """Recursive speculative sampling without replacement over a row's retained siblings (paper, Theorem 3).

    The proposal is the drafter's own marginal at that position, restricted to the siblings still available
    and renormalised, without the temperature: the scores by which the tree was built. The theorem asks only
    that it be positive on the siblings. Where a tree carries no scores (the chain of standard decoding) all
    siblings count the same; for a single one that is the acceptance with probability p(c) of EAGLE's q = 1
    rule and of the direct walk.
    """

    def over(self, logits, emitted, tree=None):
        law = TargetLaw(logits, self.temperature, self.logits_processor, emitted)
        log_mass = [0.0, *(tree.log_mass.tolist() if tree is not None else [])]  # by packed row

        def select(row: int, path: list[int], siblings: Mapping[int, int]) -> int:
            tokens = list(siblings)
            if tokens:
                scores = [log_mass[child] - log_mass[row] for child in siblings.values()]
                accepted = self._accepted(*law.split(row, path, tokens), _defined(scores))
                if accepted is not None:
                    return tokens[accepted]
            return self.chance.token(law.cumulative(row, path, without=tokens))

        return select

    def _accepted(self, residual: list[float], elsewhere: float, log_q: list[float]) -> int | None:
        """Which sibling is accepted, or None.

        The proposal is zero elsewhere, so a rejection leaves the other tokens' proportions as they are and
        takes all mass from the rejected sibling: this works on the siblings' residual masses and the sum of
        the rest, and the final residual is the target's law without the siblings.

        Args:
            residual: target probability of each sibling.
            elsewhere: that of all other tokens.
            log_q: log of the proposal there, up to a constant.
        """
        available = list(range(len(residual)))
        while available:
            proposal = _softmax([log_q[i] for i in available])
            drawn = self.chance.index(proposal)
            candidate, q = available[drawn], proposal[drawn]
            if self.chance.happens(residual[candidate] / q):
                return candidate
            left = [max(residual[i] - q_i, 0.0) for i, q_i in zip(available, proposal, strict=True)]
            del available[drawn], left[drawn]
            total = math.fsum(left) + elsewhere
            if total <= 0:
                return candidate  # only rounding rejects where the proposal is the residual itself
            for i, mass in zip(available, left, strict=True):
                residual[i] = mass / total
            elsewhere /= total
        return None


class TargetLaw:
    """The target's law at the rows of one pass: temperature first, then the processor. Rows are read once."""

    def __init__(
        self,
        logits: Tensor,
        temperature: float,
        processor: LogitsProcessor | None,
        emitted: Callable[[], list[int]],
    ):
        self._logits, self._temperature = logits, temperature
        self._processor, self._emitted = processor, emitted
        self._probabilities: dict[int, Tensor] = {}
        self._sums: dict[tuple[int, bool], Tensor] = {}
        self._splits: dict[int, tuple[list[float], float]] = {}

    def probabilities(self, row: int, path: list[int]) -> Tensor:
        """Of the next token after a row [V], in fp32 or better."""
        if row not in self._probabilities:
            scores = self._logits[row]
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / self._temperature
            if self._processor is not None:
                scores = _processed(self._processor, scores, self._emitted() + path)
            self._probabilities[row] = scores.softmax(dim=-1)
        return self._probabilities[row]

    def split(self, row: int, path: list[int], tokens: list[int]) -> tuple[list[float], float]:
        """Probability of each of some tokens (always the same) after a row, and of all others together.

        One copy from the device.
        """
        if row not in self._splits:
            probabilities = self.probabilities(row, path)
            index = torch.tensor(tokens, device=probabilities.device)
            others = probabilities.index_fill(0, index, 0.0).sum(dtype=torch.float64)
            *these, elsewhere = torch.cat((probabilities[index].double(), others[None])).tolist()
            total = math.fsum(these) + elsewhere
            refuse_undefined(total)
            self._splits[row] = [probability / total for probability in these], elsewhere / total
        these, elsewhere = self._splits[row]
        return list(these), elsewhere

    def cumulative(self, row: int, path: list[int], without: list[int] | None = None) -> Tensor:
        """Running sums float64 [V] of a row's probabilities, those of some tokens (always the same) left out."""
        key = row, bool(without)
        if key not in self._sums:
            probabilities = self.probabilities(row, path)
            if without:
                probabilities = probabilities.index_fill(0, torch.tensor(without, device=probabilities.device), 0.0)
            self._sums[key] = probabilities.cumsum(dim=-1, dtype=torch.float64)
        return self._sums[key]


def _defined(log_q: list[float]) -> list[float]:
    return log_q if all(map(math.isfinite, log_q)) else [0.0] * len(log_q)


def _softmax(log_weights: list[float]) -> list[float]:
    best = max(log_weights)
    weights = [math.exp(value - best) for value in log_weights]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _processed(processor: LogitsProcessor, scores: Tensor, history: list[int]) -> Tensor:
    return processor(torch.tensor([history], device=scores.device), scores[None])[0]


def _arg_max(scores: Tensor) -> int:
    """The first of the largest. On a CPU by numpy, whose search is vectorised: torch's takes five times as long."""
    if scores.device.type == "cpu":
        values = scores.to(torch.promote_types(scores.dtype, torch.float32)).numpy()
        token = int(values.argmax())  # stops at a NaN
        refuse_nan("target", bool(np.isnan(values[token])))
        return token
    best, token = scores.max(dim=-1)
    refuse_nan("target", bool(best.isnan()))  # max propagates NaN
    return int(token)
