"""The tensors of the published targets, by name, shape and number, against transformers' own models of them."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from cast.models.target import check_family
from cast.models.target_weights import LM_HEAD, tensor_shapes

QWEN3 = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# The keys of each published config.json; how many tensors and bytes in bfloat16 its index says that there are.
PUBLISHED = {
    "Qwen3-4B": (
        Qwen3Config,
        QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
        398,
        8044936192,
    ),
    "Qwen3-8B": (Qwen3Config, QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288}, 399, 16381470720),
    "Llama-3.1-8B-Instruct": (
        LlamaConfig,
        {
            "attention_bias": False,
            "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009],
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 128256,
        },
        291,
        16060522496,
    ),
    "Qwen3-Coder-30B-A3B-Instruct": (
        Qwen3MoeConfig,
        QWEN3
        | {
            "decoder_sparse_step": 1,
            "hidden_size": 2048,
            "intermediate_size": 5472,
            "max_position_embeddings": 262144,
            "max_window_layers": 28,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "qkv_bias": False,
            "rope_theta": 10000000,
            "shared_expert_intermediate_size": 0,
            "use_qk_norm": True,
        },
        18867,
        61064245248,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_target_is_read_as_transformers_would_hold_it(name):
    family, keys, tensors, size = PUBLISHED[name]
    config = family(**keys)
    check_family(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = tensor_shapes(config)
    assert (len(shapes), 2 * sum(map(math.prod, shapes.values()))) == (tensors, size)
    assert tensor_shapes(config, held) == held
    assert (LM_HEAD in shapes) != config.tie_word_embeddings
