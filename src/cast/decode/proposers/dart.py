"""DART: a tree over the marginals of one pass, best-first or by the public code's own n-gram search."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cast.decode.checks import check_budget, check_least
from cast.decode.proposers.base import FeatureProposer, universe
from cast.decode.proposers.block import top_log_probs
from cast.errors import NAN_LOGITS, CastError
from cast.models import DartDrafter, Pair
from cast.models.ngram_trie import NgramTrie
from cast.trees import CandidateTree, best_first_tree_from_topk, best_recorded

SEARCH_TOP_K = 25
BEAM_WIDTH = 20
NGRAM_WEIGHT = 0.5
SMALLEST = np.float32(1e-10)


class DartTree(FeatureProposer):
    """The tree of `budget` nodes over the top `top_k` tokens of each of the head's L positions.

    Without a trie it is CAST's best-first tree (paper, G.2), `top_k` 8; with one it is DART's own search, `top_k`
    25, whose `budget` the public code calls `remain_total`.

    Args:
        trie: a file in DART's format, or a loaded one that many generations share.
    """

    head = DartDrafter

    def __init__(
        self, pair: Pair, budget: int = 60, top_k: int | None = None, trie: str | Path | NgramTrie | None = None
    ):
        super().__init__(pair)
        self.trie = _loaded(str(trie)) if isinstance(trie, (str, Path)) else trie
        if self.trie is not None and not isinstance(self.trie, NgramTrie):
            raise CastError(f"trie must be a file's path or an NgramTrie, not {trie!r}")
        default = 8 if trie is None else SEARCH_TOP_K
        self.budget, self.top_k = budget, default if top_k is None else top_k
        check_budget(budget)
        check_least(top_k=(self.top_k, 1))
        kept, beam = min(self.top_k, self.drafter.config.draft_vocab_size), None if self.trie is None else BEAM_WIDTH
        self.nodes = min(budget, universe(kept, self.drafter.positions, beam))
        self.lookahead = max(self.nodes + 1, self.drafter.positions)
        self.context: list[int] = []
        draft_ids = torch.arange(self.drafter.config.draft_vocab_size, device=pair.device)
        self.target_ids = self.drafter.to_target(draft_ids).cpu()

    @property
    def packs(self) -> tuple[int]:
        return (self.nodes + 1,)  # the masked slots may be more

    def start(self, capacity: int) -> None:
        self.cache = self.drafter.new_cache(capacity)

    def observe(self, tokens: list[int]) -> None:
        super().observe(tokens)
        if self.trie is not None:
            self.context = (self.context + tokens)[1 - self.trie.order :]

    def propose(self, features, root, trace=None) -> CandidateTree:
        if trace:
            trace.lap("other")
        logits = self.drafter.draft(self.target, features, self.paired_tokens(features), self.cache)
        self.passes += 1
        if trace:
            trace.lap("draft")
        log_probs, draft_ids = top_log_probs(logits, self.top_k)
        tokens = self.target_ids[draft_ids]
        if self.trie is None:
            return best_first_tree_from_topk(log_probs, tokens, self.budget)
        return ngram_tree(log_probs, tokens, self.budget, self.context, self.trie, self.target.stop_token_ids)


@functools.lru_cache(maxsize=2)
def _loaded(path: str) -> NgramTrie:
    """One trie for all generations: the public files are large."""
    return NgramTrie.read(path)


def ngram_tree(
    log_probs: torch.Tensor,
    tokens: torch.Tensor,
    budget: int,
    context: list[int],
    trie: NgramTrie,
    stop_token_ids: tuple[int, ...] = (),
    beam_width: int = BEAM_WIDTH,
) -> CandidateTree:
    """DART's own tree: a beam over the positions, scored by the head and by n-gram continuity.

    A candidate's score is its parent's plus w (g ln p + 0.5 ln q), with w = (level + 1)^-0.7, g = 0.9^level, p
    the head's chance among the kept tokens of that position and q the trie's; the first level has no n-gram term.
    The `beam_width` best of a level, those that end in a stop token last, are extended. The `budget` best of all
    candidates, extended or not, form the tree, level by level.

    Args:
        log_probs: float [L, K], scores of the kept tokens of each position, normalised or not.
        tokens: int64 [L, K], their target ids.
        context: the tokens before the first position, the pending root last.

    Returns:
        A prefix-closed tree. Its scores are no log-probabilities, so `log_mass` is NaN.

    Raises:
        CastError: NaN among the scores.
    """
    chance = torch.softmax(log_probs.float(), dim=-1).numpy()
    if np.isnan(chance).any():
        raise CastError(NAN_LOGITS)
    tokens = tokens.numpy()
    paths = np.asarray([context[1 - trie.order :]], np.int64)  # context and path of each beam entry
    beam, beam_score = np.array([-1]), np.zeros(1, np.float32)
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (parent, token, score)
    recorded = 0
    for level, (level_chance, level_tokens) in enumerate(zip(chance, tokens, strict=True)):
        gain = np.float32(0.9**level) * np.log(level_chance + SMALLEST)
        gain = np.tile(gain, (len(beam), 1))
        if level:
            # Counts that a file gets wrong must not lift a candidate above its parent: the tree would lose its root.
            continuity = trie.probability(paths, np.tile(level_tokens, (len(beam), 1))).clip(0, 1).astype(np.float32)
            gain += np.float32(NGRAM_WEIGHT) * np.log(continuity + SMALLEST)
        score = (beam_score[:, None] + np.float32((level + 1) ** -0.7) * gain).ravel()
        token = np.tile(level_tokens, len(beam))
        levels.append((beam.repeat(len(level_tokens)), token, score))
        best = np.lexsort((-score, np.isin(token, stop_token_ids)))[:beam_width]
        paths = np.column_stack((paths[best // len(level_tokens)], token[best]))
        beam, beam_score = recorded + best, score[best]
        recorded += len(token)
    parent, token, score = (np.concatenate([level[field] for level in levels]) for field in range(3))
    tree = best_recorded(token, parent, score, budget)
    return replace(tree, log_mass=torch.full((len(tree),), torch.nan))
