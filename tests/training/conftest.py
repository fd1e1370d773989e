"""A tiny target with some of its own output, and a head begun from it."""

import pytest
import torch

from cast.training.generate import greedy_batch
from cast.training.initial import head_config, initial_drafter


@pytest.fixture(scope="session")
def taps():
    return 1, 2


@pytest.fixture(scope="session")
def target(golden_pair):
    return golden_pair("dflash_tiny_llama").target


@pytest.fixture(scope="session")
def prompts(target):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, target.vocab_size, (n,), generator=generator) for n in (3, 9, 6, 5, 7, 4)]


@pytest.fixture(scope="session")
def sequences(target, prompts, taps):
    """Six prompts with 20 new tokens each, every second one labelled with another domain."""
    out = greedy_batch(target, prompts, max_new_tokens=20, taps=taps, soft_labels=4)
    for index, sequence in enumerate(out):
        sequence.prompt = {"id": str(index), "domain": ("odd", "even")[index % 2]}
    return out


@pytest.fixture(scope="session")
def raw_config(target, taps):
    raw = head_config(target, layers=2, taps=1, block_size=6, mask_token_id=1)
    raw["dflash_config"]["target_layer_ids"] = list(taps)
    return raw


@pytest.fixture
def drafter(target, raw_config, sequences):
    torch.manual_seed(0)
    return initial_drafter(target, raw_config, [s.tokens.long() for s in sequences])
