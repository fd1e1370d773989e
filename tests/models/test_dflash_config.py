"""What is read from a drafter's config.json."""

import pytest

from cast.errors import CastError
from cast.models import DFlashConfig
from cast.models.dflash import default_target_layers


def raw(**changes):
    config = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": 8,
        "num_target_layers": 12,
        "dflash_config": {"mask_token_id": 95, "target_layer_ids": [1, 3]},
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({}, "rope_theta", 10000.0),
        (
            {"rope_theta": ..., "rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}},
            "rope_theta",
            7.0,
        ),
        ({"rope_scaling": None}, "rope_theta", 10000.0),
        ({}, "block_size", 8),
        ({"block_size": ..., "dflash_config": {"mask_token_id": 1, "block_size": 6}}, "block_size", 6),
        ({"num_key_value_heads": ...}, "kv_heads", 4),
        ({"head_dim": ...}, "head_dim", 16),
        ({"attention_bias": True}, "attention_bias", True),
        ({}, "attention_bias", False),
        ({}, "target_layer_ids", (1, 3)),
        ({"dflash_config": {"mask_token_id": 1}}, "target_layer_ids", (1, 9)),
        ({"dflash_config": {"mask_token_id": 1}, "num_hidden_layers": 1}, "target_layer_ids", (6,)),
        ({"vocab_size": 96}, "vocab_size", 96),
    ],
)
def test_fields(changes, field, expected):
    assert getattr(DFlashConfig.from_dict(raw(**changes)), field) == expected


@pytest.mark.parametrize(
    ("target_layers", "draft_layers", "expected"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (36, 1, [18]),
        (28, 1, [14]),
        (5, 2, [1, 2]),
        (28, 5, [1, 7, 13, 19, 25]),
        (9, 3, [1, 4, 6]),  # 3.5 rounds to the even 4
        (7, 3, [1, 2, 4]),  # 2.5 rounds to the even 2
        (11, 3, [1, 4, 8]),  # 4.5 rounds to the even 4
        (30, 4, [1, 10, 18, 27]),
    ],
)
def test_default_target_layers(target_layers, draft_layers, expected):
    assert default_target_layers(target_layers, draft_layers) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ...},
        {"architectures": None},
        {"dflash_config": {"mask_token_id": 95, "conv_kernel": 3}},
        {"dflash_config": {"mask_token_id": 95, "selector_heads": 3}},
        {"dflash_config": ...},
        {"dflash_config": {"target_layer_ids": [1]}},
        {"block_size": ...},
        {"rope_theta": ...},
        {"hidden_size": ...},
        {"rms_norm_eps": ...},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        {"dflash_config": {"mask_token_id": 95}, "num_target_layers": ...},
    ],
)
def test_refusals_are_one_line(changes):
    with pytest.raises(CastError) as error:
        DFlashConfig.from_dict(raw(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["conv_kernel_size", "selector_top_k"])
def test_the_second_generation_is_named(key):
    with pytest.raises(CastError, match="DFlash 2"):
        DFlashConfig.from_dict(raw(dflash_config={"mask_token_id": 1, key: 1}))
