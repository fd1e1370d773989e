"""DART heads: logits and cache as the public code has them, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file

import cast
from cast import CastError
from cast.models import DartDrafter
from cast.models.feature_head import FeatureHeadConfig
from cast.models.loading import load_drafter

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def random_head(golden):
    return load_drafter(golden / "dart_tiny" / "random_head", device="cpu")


@pytest.fixture(scope="module")
def calls(golden, random_head):
    """[(recorded tensors, our logits, cached keys, values)] of two calls on one cache."""
    recorded, cache, of_calls = (
        load_file(golden / "dart_tiny" / "head_forward.safetensors"),
        random_head.new_cache(32),
        [],
    )
    for call in ("1", "2"):
        start, features = cache.length, recorded["feat" + call][0]
        logits = random_head.draft(None, features, recorded["ids" + call][0, 1:], cache)
        of = {name.split(".")[1]: value for name, value in recorded.items() if name.startswith(f"call{call}.")}
        assert of["cache_len_before"].item() == start
        held = of["cache_len_after"].item()
        assert held == cache.length + random_head.config.draft_length
        of_calls.append((of, logits, cache.keys[0, :, :held].clone(), cache.values[0, :, :held].clone()))
    return of_calls


def test_logits_and_cache_are_the_public_codes(calls):
    """The masked slots' rows stand behind the committed ones and are overwritten by the next call."""
    for of, logits, keys, values in calls:
        torch.testing.assert_close(logits, of["logits"][0], **CLOSE)
        # The first call's recorded cache shows the second's new rows, so only what both share is compared there.
        held = 9 if of is calls[0][0] else keys.shape[1]
        torch.testing.assert_close(keys[:, :held], of["cache_keys_after"][0][:, :held], **CLOSE)
        torch.testing.assert_close(values[:, :held], of["cache_values_after"][0][:, :held], **CLOSE)


def test_the_final_norm_is_applied_twice(calls):
    for of, logits, *_ in calls:
        assert (logits - of["logits_if_norm_applied_once"][0]).abs().max() > 1e-3


def test_the_best_draft_tokens_and_their_target_ids(calls, random_head):
    for of, logits, *_ in calls:
        best = logits.topk(25, dim=-1)
        assert torch.equal(best.indices, of["top25_draft_ids"])
        assert torch.equal(random_head.to_target(best.indices), of["top25_target_ids"])
        torch.testing.assert_close(best.values.softmax(-1), of["top25_softmax_over_top25"], **CLOSE)


def test_a_checkpoint_is_recognised(golden_pair):
    head = golden_pair("dart_tiny").drafter
    assert isinstance(head, DartDrafter)
    assert head.positions == 8
    assert not any(parameter.requires_grad for parameter in head.parameters())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"draft_length": 0}, "draft_length"),
        ({"draft_length": "seven"}, "draft_length"),
        ({"head_dim": 0}, "head_dim"),
        ({"draft_length": None}, "unexpected tensor 'midlayer.mask_rep'"),  # an EAGLE-3 head by its config
    ],
)
def test_a_config_that_cannot_serve(checkpoint, golden, refusal, config, message):
    folder = checkpoint("dart_tiny", "drafter").edit_config(**config)
    assert message in refusal(golden / "eagle3_tiny" / "target", folder)


def test_a_missing_mask_vector(checkpoint, golden, refusal):
    folder = checkpoint("dart_tiny", "drafter").edit_weights(lambda weights: weights.pop("midlayer.mask_rep"))
    assert "lacks tensor 'midlayer.mask_rep'" in refusal(golden / "eagle3_tiny" / "target", folder)


def test_an_eagle3_config_makes_no_dart_head(golden_pair):
    config = golden_pair("eagle3_tiny").drafter.config
    assert isinstance(config, FeatureHeadConfig)
    with pytest.raises(CastError, match="draft_length"):
        DartDrafter(config)
    with pytest.raises(CastError, match="needs a drafter of kind EAGLE-3 and the pair holds one of kind DART"):
        cast.generate(golden_pair("dart_tiny"), torch.tensor([1, 2, 3]), "eagle3")
