"""Hybrid targets: the same logits as without a cache, an untouched prefix, and what ran."""

import sys
import types

import pytest
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from cast import CastError, load_pair
from cast.models.hybrid import HybridTarget, copy_of, fused_packages, load_hybrid
from cast.models.random_models import random_config

FAMILIES = ("qwen3_5", "qwen3_5_moe")


@pytest.fixture(scope="module", params=FAMILIES)
def hybrid(request) -> HybridTarget:
    return load_hybrid(f"random:{request.param}", device="cpu")


def tokens(count, seed=0):
    return torch.randint(288, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 2, 70])
def test_a_pack_behind_a_prefix_equals_the_whole_sequence(hybrid, n):
    prefix, pack = tokens(90), tokens(n, seed=1)
    whole = hybrid.model(torch.cat((prefix, pack))[None], use_cache=False).logits[0, -n:]
    cache = hybrid.prefill(prefix)
    for _ in range(2):  # a pass spends its own copy, so the prefix is the same for the next
        torch.testing.assert_close(hybrid.forward(pack, copy_of(cache)), whole, atol=5e-3, rtol=0)


def test_without_a_copy_the_next_pass_would_see_another_prefix(hybrid):
    """Guards the test above: the state is changed in place."""
    cache, pack = hybrid.prefill(tokens(20)), tokens(3, seed=1)
    first, second = (hybrid.forward(pack, cache) for _ in range(2))
    assert (first - second).abs().max() > 0.1


def test_what_is_known_of_the_model(hybrid):
    assert (hybrid.weights, hybrid.vocab_size, hybrid.max_positions) == ("random", 288, 32768)
    assert (hybrid.device.type, hybrid.dtype) == ("cpu", torch.float32)


def test_a_checkpoint_with_vision_loads_its_language_model(tmp_path):
    """The public checkpoints hold both."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
    config = Qwen3_5Config(text_config=random_config("qwen3_5").to_dict(), vision_config=vision)
    model = Qwen3_5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    loaded = load_hybrid(tmp_path, device="cpu")
    assert loaded.weights == "checkpoint"
    with torch.no_grad():
        expected = model(tokens(12)[None]).logits[0, -3:]
    cache = loaded.prefill(tokens(12)[:9])
    torch.testing.assert_close(loaded.forward(tokens(12)[9:], cache), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(CastError, match="hybrid_probe"):
        load_pair(tmp_path, device="cpu")


def test_other_targets_are_refused(golden):
    for source in ("random:qwen3", golden / "dflash_tiny_qwen3" / "target"):
        with pytest.raises(CastError, match="no hybrid") as error:
            load_hybrid(source, device="cpu")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_is_refused_in_one_line(family):
    with pytest.raises(CastError, match="hybrid_probe") as error:
        load_pair(f"random:{family}", "random:dflash_b16", device="cpu")
    assert "\n" not in str(error.value)


def test_fused_kernels_are_told_by_being_called():
    fla = types.ModuleType("fla.ops")
    exec("def kernel(): return 1", fla.__dict__)
    with fused_packages() as called:
        assert called == set()
        fla.kernel()
    assert called == {"fla"}
    assert sys.getprofile() is None
    fla.kernel()
    assert called == {"fla"}
