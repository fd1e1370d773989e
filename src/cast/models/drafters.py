"""The kinds of draft heads, recognised by their config.json."""

from __future__ import annotations

from cast.errors import CastError
from cast.models.dart import DartDrafter
from cast.models.dflash import DFlashConfig, DFlashDrafter
from cast.models.eagle3 import Eagle3Drafter
from cast.models.feature_head import DEFAULT_ROPE_THETA, FeatureHeadConfig
from cast.models.head import DraftHead
from cast.models.random_models import register_head
from cast.models.target_weights import head_dim


def new_head(raw_config: dict) -> DraftHead:
    """An untrained head of the kind that a checkpoint's config.json describes.

    Raises:
        CastError: no DFlash, EAGLE-3 or DART head, or a value that such a head cannot have.
    """
    architectures = raw_config.get("architectures") or []
    if not isinstance(architectures, list):
        raise CastError(f"architectures in the drafter's config.json must be a list, not {architectures!r}")
    if "DFlashDraftModel" in architectures:
        return DFlashDrafter(DFlashConfig.from_dict(raw_config))
    if raw_config.get("draft_vocab_size") is not None:
        config = FeatureHeadConfig.from_dict(raw_config)
        return DartDrafter(config) if config.draft_length else Eagle3Drafter(config)
    raise CastError(
        f"not a drafter of a known kind: its config.json has architectures {architectures} and no draft_vocab_size; "
        "DFlash, EAGLE-3 and DART heads can be loaded"
    )


@register_head("eagle3")
def _random_eagle3(target) -> Eagle3Drafter:
    return Eagle3Drafter(_feature_config(target))


@register_head("dart")
def _random_dart(target) -> DartDrafter:
    return DartDrafter(_feature_config(target, draft_length=7))


def _feature_config(target, **more) -> FeatureHeadConfig:
    """Sizes of a random head; its draft vocabulary is the first half of the target's."""
    return FeatureHeadConfig(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        heads=target.num_attention_heads,
        kv_heads=target.num_key_value_heads,
        head_dim=head_dim(target),
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=DEFAULT_ROPE_THETA,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size // 2,
        target_hidden_size=target.hidden_size,
        **more,
    )
