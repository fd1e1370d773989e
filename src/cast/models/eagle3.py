"""EAGLE-3: a one-layer head that drafts a tree autoregressively, one level a pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.feature_head import FeatureHead
from cast.models.kv_cache import KVCache
from cast.models.target import Target


@dataclass(frozen=True)
class DraftedCandidates:
    """Every candidate the drafting recorded, level by level, on the head's device.

    Attributes:
        tokens: int64 [M], target ids.
        parent: int64 [M], index of the parent candidate, -1 for the pending root.
        log_mass: float32 [M], log-probabilities summed along the path; never above the parent's.
    """

    tokens: Tensor
    parent: Tensor
    log_mass: Tensor


class Eagle3Drafter(FeatureHead):
    """The head; its cache holds committed rows, and a draft's own rows are dropped with the draft."""

    kind = "EAGLE-3"

    @torch.inference_mode()
    def draft(
        self, target: Target, features: Tensor, tokens: Tensor, cache: KVCache, *, draft_steps: int, top_k: int
    ) -> DraftedCandidates:
        """Draft `draft_steps` + 1 levels in as many passes, `top_k` candidates wide.

        The first pass reads the committed rows and yields level 1. Each later one reads the `top_k` best
        candidates of the level before it and records `top_k` children of each.

        Args:
            target: lends its embedding table.
            features: [c, 3 * H], tapped features of the committed positions not yet in `cache`.
            tokens: int64 [c], for each of them the token one position later; the last is the pending root.
            cache: grows by c; needs room for `draft_steps` * `top_k` rows more.
            draft_steps, top_k: passes after the first, and width (cut to the draft vocabulary).
        """
        layer, device = self.midlayer, features.device
        top_k = min(top_k, self.config.draft_vocab_size)
        hidden = self.fc(features)
        start = cache.length
        rows = layer.paired(self.embed(target, tokens), hidden)
        attended = layer.self_attn(rows, cache, slice(start, start + len(rows)), queries=1)
        cache.commit(len(rows))
        hidden = layer.finish(hidden[-1:], attended)

        mass, draft_ids = self._log_probs(hidden).topk(top_k, dim=-1)
        mass, draft_ids = mass[0], draft_ids[0]
        levels = [(draft_ids, torch.full_like(draft_ids, -1), mass)]
        frontier = torch.arange(top_k, device=device)  # indices of the frontier among all recorded candidates
        frontier_ids, hidden = draft_ids, hidden.expand(top_k, -1)
        itself = torch.full((top_k, top_k), float("-inf"), dtype=hidden.dtype, device=device).fill_diagonal_(0)
        ancestors = itself[:, :0]  # additive mask of each frontier row over the earlier rows of this draft
        recorded = top_k
        for step in range(draft_steps):
            ancestors = torch.cat((ancestors, itself), dim=1)
            rows = layer.paired(self.embed(target, self.to_target(frontier_ids)), hidden)
            # All rows of a step stand at one position: that of their features, one before their token's.
            position = slice(cache.length + step, cache.length + step + 1)
            attended = layer.self_attn(
                rows, cache, position, queries=top_k, offset=step * top_k, mask=F.pad(ancestors, (cache.length, 0))
            )
            output = layer.finish(hidden, attended)
            child_scores, child_ids = self._log_probs(output).topk(top_k, dim=-1)
            child_mass = (child_scores + mass[:, None]).flatten()
            child_ids = child_ids.flatten()
            levels.append((child_ids, frontier.repeat_interleave(top_k), child_mass))
            mass, best = child_mass.topk(top_k)
            row = best // top_k
            frontier, frontier_ids = recorded + best, child_ids[best]
            hidden, ancestors = output[row], ancestors[row]
            recorded += len(child_ids)
        draft_ids, parent, log_mass = (torch.cat([level[field] for level in levels]) for field in range(3))
        return DraftedCandidates(self.to_target(draft_ids), parent, log_mass)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """fp32 [n, Vd]; nothing is above 0, so no child outweighs its parent."""
        return self.lm_head(self.norm(hidden)).float().log_softmax(dim=-1).clamp_max(0)
