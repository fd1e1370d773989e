"""EAGLE-3's dynamic tree: drafted level by level, the best recorded candidates kept."""

from __future__ import annotations

import numpy as np
import torch

from cast.decode.checks import check_budget, check_least
from cast.decode.proposers.base import FeatureProposer
from cast.errors import NAN_LOGITS, CastError
from cast.models import Eagle3Drafter, Pair
from cast.models.eagle3 import DraftedCandidates
from cast.trees import CandidateTree, best_recorded

DRAFT_STEPS = 7

MOST_CANDIDATES = 2**20
"""Recorded in one draft: sorting a million takes longer than any target's pass."""


class Eagle3Tree(FeatureProposer):
    """The `budget` best candidates of `draft_steps` + 1 drafted levels, `top_k` wide.

    The public code counts the root in its `total_token`, so 60 there is a budget of 59. It makes one pass more
    than draft steps: the first reads the committed tokens.
    """

    head = Eagle3Drafter

    def __init__(self, pair: Pair, budget: int = 59, top_k: int = 10, draft_steps: int = DRAFT_STEPS):
        super().__init__(pair)
        check_budget(budget)
        check_least(top_k=(top_k, 1), draft_steps=(draft_steps, 0))
        # N nodes reach N levels at most: what further passes record is never kept.
        most = max(budget - 1, DRAFT_STEPS)
        if draft_steps > most:
            raise CastError(f"draft_steps must be at most {most} for a tree of {budget} nodes, not {draft_steps}")
        self.budget, self.draft_steps = budget, draft_steps
        self.top_k = min(top_k, self.drafter.config.draft_vocab_size)
        candidates = self.top_k + draft_steps * self.top_k**2
        if candidates > MOST_CANDIDATES:
            raise CastError(
                f"top_k {self.top_k} and draft_steps {draft_steps} record {candidates} candidates a draft, more than "
                f"{MOST_CANDIDATES}; lower one of them"
            )
        self.lookahead = min(budget, candidates) + 1

    def start(self, capacity: int) -> None:
        self.cache = self.drafter.new_cache(capacity + self.draft_steps * self.top_k)

    def propose(self, features, root, trace=None) -> CandidateTree:
        if trace:
            trace.lap("other")
        drafted = self.drafter.draft(
            self.target,
            features,
            self.paired_tokens(features),
            self.cache,
            draft_steps=self.draft_steps,
            top_k=self.top_k,
        )
        self.passes += 1 + self.draft_steps
        if trace:
            trace.lap("draft")
        return best_candidates(drafted, self.budget)


def best_candidates(drafted: DraftedCandidates, budget: int) -> CandidateTree:
    """The `budget` candidates of largest mass, in the order they were recorded: level by level.

    Raises:
        CastError: the drafter's scores hold NaN.
    """
    columns = (drafted.tokens.double(), drafted.parent.double(), drafted.log_mass.double())
    tokens, parent, mass = torch.stack(columns).cpu().numpy()  # one copy; every id is exact in fp64
    if np.isnan(mass).any():
        raise CastError(NAN_LOGITS)
    return best_recorded(tokens.astype(np.int64), parent.astype(np.int64), mass.astype(np.float32), budget)
