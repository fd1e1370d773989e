"""Prompt lookup: the text already seen as the drafter. No training, no head, no cache but an index."""

from __future__ import annotations

import torch

from cast.decode.checks import check_budget, check_least
from cast.decode.proposers.base import Proposer
from cast.errors import CastError
from cast.models import Pair
from cast.trees import CandidateTree, chain_tree

LONGEST = 64
"""Most tokens of a match: the index holds every n-gram up to it, so its memory grows with the square."""


class PromptLookup(Proposer):
    """What followed the latest earlier occurrence of the last `max_ngram` tokens, or of fewer, as a chain.

    With no earlier occurrence of even the last token, the round is a plain one.
    """

    def __init__(self, pair: Pair | None = None, budget: int = 10, max_ngram: int = 3):
        check_budget(budget)
        check_least(max_ngram=(max_ngram, 1))
        if max_ngram > LONGEST:
            raise CastError(f"max_ngram must be at most {LONGEST}, not {max_ngram}")
        self.budget, self.max_ngram, self.lookahead = budget, max_ngram, budget + 1
        self.history: list[int] = []
        self.follows: dict[tuple[int, ...], int] = {}  # n-gram to the place right after its latest occurrence

    @property
    def packs(self) -> range:
        return range(1, self.budget + 2)

    def observe(self, tokens: list[int]) -> None:
        for token in tokens:
            place = len(self.history)
            for n in range(1, min(self.max_ngram, place) + 1):
                self.follows[tuple(self.history[place - n :])] = place
            self.history.append(token)

    def propose(self, features, root, trace=None) -> CandidateTree | None:
        for n in range(min(self.max_ngram, len(self.history)), 0, -1):
            place = self.follows.get(tuple(self.history[-n:]))
            if place is not None and self.budget:
                return chain_tree(torch.tensor(self.history[place : place + self.budget]))
        return None
