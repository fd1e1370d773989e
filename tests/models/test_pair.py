"""Pairs: exchanging the drafter, copies in another dtype, and methods that need a drafter."""

import pytest
import torch

import cast
from cast import CastError
from cast.models.loading import load_drafter

PAIRS = ("dflash_tiny_qwen3", "dflash_tiny_llama")


def test_with_drafter(target, drafter, golden, golden_pair):
    bare = cast.load_pair(target.folder, device="cpu")
    assert bare.drafter is None
    paired = bare.with_drafter(drafter.folder)
    assert bare.drafter is None
    assert paired.target is bare.target
    assert paired.with_drafter(paired.drafter).drafter is paired.drafter
    assert bare.with_drafter(str(drafter.folder)).drafter.block_size == 8
    assert paired.with_drafter(None).drafter is None
    with pytest.raises(CastError, match="hidden size"):
        bare.with_drafter(golden / "dflash_tiny_llama" / "drafter")
    with pytest.raises(CastError, match="hidden size"):
        bare.with_drafter(golden_pair("dflash_tiny_llama").drafter)
    with pytest.raises(CastError):
        bare.with_drafter(target.folder / "absent")


def test_with_drafter_takes_the_targets_dtype(target, drafter):
    pair = cast.load_pair(target.folder, device="cpu", dtype="bfloat16").with_drafter(drafter.folder)
    assert pair.drafter.fc.weight.dtype == torch.bfloat16


def test_a_loaded_head_of_another_dtype_serves_or_is_refused(target, drafter):
    """Never a torch error from the middle of a generation."""
    head = load_drafter(drafter.folder, device="cpu", dtype="bfloat16")
    try:
        pair = cast.load_pair(target.folder, head, device="cpu", dtype="float32")
        out = cast.generate(pair, torch.arange(5), max_new_tokens=4, stop_token_ids=[])
    except CastError as error:
        assert "\n" not in str(error)
    else:
        assert len(out.tokens) == 4


@pytest.mark.parametrize("method", ["dflash", "cast"])
def test_a_method_that_drafts_needs_a_drafter(target, method):
    pair = cast.load_pair(target.folder, device="cpu")
    with pytest.raises(CastError, match="drafter"):
        cast.generate(pair, torch.arange(5), method)
    assert len(cast.generate(pair, torch.arange(5), "autoregressive", max_new_tokens=3).tokens) == 3


@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_in_another_dtype(golden_pair, name):
    pair = golden_pair(name)
    exact = pair.to(torch.float64)
    assert (exact.dtype, exact.drafter.fc.weight.dtype) == (torch.float64, torch.float64)
    assert (pair.dtype, pair.drafter.fc.weight.dtype) == (torch.float32, torch.float32)
    assert pair.with_drafter(None).to(torch.float64).drafter is None
    outputs = [cast.generate(p, torch.arange(1, 9), max_new_tokens=24, stop_token_ids=[]) for p in (pair, exact)]
    assert outputs[0].tokens.tolist() == outputs[1].tokens.tolist()
