"""One forward pass and one loss for every kind of head, so that all of them share trainer and evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from cast.models.dart import DartDrafter
from cast.models.dflash import DFlashDrafter
from cast.models.feature_head import FeatureHead
from cast.models.head import DraftHead
from cast.models.target import Target
from cast.training.objective import Batch, block_hidden, block_loss, label_distribution
from cast.training.objective_dart import slot_hidden
from cast.training.objective_eagle3 import chain_hidden
from cast.training.objective_features import draft_cross_entropy, draft_ids

EAGLE3_LEVELS = 8
"""Levels an EAGLE-3 head is evaluated on: the default seven draft steps and the pass before them."""


def depth_of(drafter: DraftHead) -> int:
    """How many tokens behind the pending root a head is evaluated on."""
    if isinstance(drafter, DFlashDrafter):
        return drafter.block_size - 1
    return drafter.positions if isinstance(drafter, DartDrafter) else EAGLE3_LEVELS


def hidden_behind(
    drafter: DraftHead, embedding: Tensor, features: Tensor, tokens: Tensor, anchors: Tensor, depth: int
) -> Tensor:
    """Normed hidden states [S, A, depth, H]; slot j is to predict the token j positions after the anchor.

    Args:
        embedding: the target's table [V, H].
        features: [S, T, taps * H].
        tokens: int64 [S, T + 1].
        anchors: int64 [S, A].
    """
    if isinstance(drafter, DFlashDrafter):
        roots = tokens.gather(1, anchors)
        return block_hidden(drafter, embedding, features, roots, anchors, depth + 1)[:, :, 1:]
    forward = slot_hidden if isinstance(drafter, DartDrafter) else chain_hidden
    return forward(drafter, embedding, features, tokens, anchors, depth)


def target_logits(drafter: DraftHead, target: Target, hidden: Tensor) -> Tensor:
    """float32 logits [..., V] over the target's vocabulary; -inf outside a draft vocabulary."""
    if not isinstance(drafter, FeatureHead):
        return target.logits(hidden).float()
    logits = hidden.new_full((*hidden.shape[:-1], target.vocab_size), float("-inf"), dtype=torch.float32)
    logits[..., draft_ids(drafter)] = drafter.lm_head(hidden).float()
    return logits


def drafter_loss(
    drafter: DraftHead, embedding: Tensor, lm_head: Tensor, batch: Batch, soft_share: float, chunk: int = 512
) -> tuple[Tensor, Tensor]:
    """As `cast.training.objective.block_loss`, for any head; EAGLE-3 and DART heads have a language-model head of
    their own and train it.
    """
    if not isinstance(drafter, FeatureHead):
        return block_loss(drafter, embedding, lm_head, batch, soft_share, chunk)
    depth = batch.block_size - 1
    hidden = hidden_behind(drafter, embedding, batch.features, batch.tokens, batch.anchors, depth)
    hidden = hidden.flatten(0, 1)[batch.rows, batch.slots - 1]
    ids, mass = label_distribution(batch, soft_share)
    losses = draft_cross_entropy(drafter, hidden, batch.vocabulary[ids], mass)
    return (losses * batch.weights).sum() / batch.weights.sum(), losses
