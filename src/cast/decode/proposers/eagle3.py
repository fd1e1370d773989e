"""EAGLE-3's dynamic tree: drafted level by level, the best recorded candidates kept."""

from __future__ import annotations

import numpy as np
import torch

from cast.decode.proposers.base import FeatureProposer, check_budget, check_least
from cast.errors import NAN_LOGITS, CastError
from cast.models import Eagle3Drafter, Pair
from cast.models.eagle3 import DraftedCandidates
from cast.trees import CandidateTree


class Eagle3Tree(FeatureProposer):
    """The `budget` best candidates of `draft_steps` + 1 drafted levels, `top_k` wide.

    The public code counts the root in its `total_token`, so 60 there is a budget of 59. It makes one pass more
    than draft steps: the first reads the committed tokens.
    """

    head = Eagle3Drafter

    def __init__(self, pair: Pair, budget: int = 59, top_k: int = 10, draft_steps: int = 7):
        super().__init__(pair)
        check_budget(budget)
        check_least(top_k=(top_k, 1), draft_steps=(draft_steps, 0))
        most = pair.target.max_positions - 1
        if draft_steps > most:
            raise CastError(f"draft_steps must be at most the model's positions less one, {most}, not {draft_steps}")
        self.budget, self.draft_steps = budget, draft_steps
        self.top_k = min(top_k, self.drafter.config.draft_vocab_size)
        self.lookahead = budget + 1

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

    Equal masses go to the earlier candidate, so a parent never loses to its child and the set is prefix-closed.

    Raises:
        CastError: the drafter's scores hold NaN.
    """
    columns = (drafted.tokens.double(), drafted.parent.double(), drafted.log_mass.double())
    tokens, parent, mass = torch.stack(columns).cpu().numpy()  # one copy; every id is exact in fp64
    if np.isnan(mass).any():
        raise CastError(NAN_LOGITS)
    kept = np.sort(np.argsort(-mass, kind="stable")[:budget])
    parent = parent.astype(np.int64)
    new_index = np.full(len(mass) + 1, -1)  # the last entry serves index -1, the root
    new_index[kept] = np.arange(len(kept))
    depth = np.ones(len(mass), np.int64)
    for node in kept:
        depth[node] = 1 if parent[node] < 0 else depth[parent[node]] + 1
    return CandidateTree(
        tokens=torch.from_numpy(tokens[kept].astype(np.int64)),
        parent=torch.from_numpy(new_index[parent[kept]]),
        depth=torch.from_numpy(depth[kept]),
        log_mass=torch.from_numpy(mass[kept].astype(np.float32)),
    )
