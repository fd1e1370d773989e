"""DART: a one-layer head that scores L future positions in one pass, with learned masked slots."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cast.errors import CastError
from cast.models.feature_head import FeatureHead, FeatureHeadConfig
from cast.models.kv_cache import KVCache
from cast.models.layers import additive_mask
from cast.models.target import Target


class DartDrafter(FeatureHead):
    """The head; its cache holds committed rows, and the masked slots' rows are dropped with the draft."""

    kind = "DART"

    def __init__(self, config: FeatureHeadConfig):
        super().__init__(config)
        if not config.draft_length:
            raise CastError("the drafter's config.json names no draft_length, the number of a DART head's masked slots")
        self.midlayer.mask_rep = nn.Parameter(torch.zeros(2 * config.hidden_size))

    @property
    def positions(self) -> int:
        """L: the last committed row and every masked slot score one position each."""
        return self.config.draft_length + 1

    @torch.inference_mode()
    def draft(self, target: Target, features: Tensor, tokens: Tensor, cache: KVCache) -> Tensor:
        """Score the next L positions in one pass.

        Args:
            target: lends its embedding table.
            features: [c, 3 * H], tapped features of the committed positions not yet in `cache`.
            tokens: int64 [c], for each of them the token one position later; the last is the pending root.
            cache: grows by c; needs room for `draft_length` rows more.

        Returns:
            Logits [L, Vd] over the draft vocabulary; row j scores the token j + 1 positions after the root.
        """
        layer, masked = self.midlayer, self.config.draft_length
        hidden = self.fc(features)
        # A masked slot enters attention un-normed at full width, and the residual stream by its first half.
        slot = layer.mask_rep.expand(masked, -1)
        rows = torch.cat((layer.paired(self.embed(target, tokens), hidden), slot))
        hidden = torch.cat((hidden[-1:], slot[:, : hidden.shape[-1]]))
        start = cache.length
        end = start + len(rows)
        causal = torch.ones(self.positions, self.positions, dtype=torch.bool, device=rows.device).tril()
        mask = additive_mask(causal, end - self.positions, rows.dtype, rows.device)
        attended = layer.self_attn(rows, cache, slice(start, end), queries=self.positions, mask=mask)
        cache.commit(len(features))
        # The published heads were trained with the final norm applied twice.
        return self.lm_head(self.norm(self.norm(layer.finish(hidden, attended))))
