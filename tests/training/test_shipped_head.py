"""The head in the repository: small, in the public layout, and made for the embedded target."""

import pytest

from cast.models.dflash import default_target_layers
from cast.models.embedded import HEAD
from cast.models.loading import load_drafter

pytestmark = pytest.mark.skipif(not (HEAD / "model.safetensors").exists(), reason="no head is shipped here")


def test_head_is_small_and_documented():
    assert (HEAD / "model.safetensors").stat().st_size <= 25e6
    assert {path.name for path in HEAD.iterdir()} >= {"config.json", "README.md", "learning_curve.csv"}


def test_head_fits_smollm2():
    config = load_drafter(HEAD).config
    assert (config.hidden_size, config.vocab_size, config.block_size) == (576, 49152, 16)
    assert list(config.target_layer_ids) == default_target_layers(30, 5)
    assert all(value.isfinite().all() for value in load_drafter(HEAD).state_dict().values())
