"""The packed pass equals N + 1 separate forwards: of our own target and of stock transformers."""

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cast.models.layers import additive_mask
from cast.models.random_models import random_config, random_pair
from cast.models.target import FAMILIES as MODEL_TYPES
from cast.trees import ancestor_mask, chain_tree
from cast.verify import verify

FAMILIES = ("llama", "smollm2", "qwen3", "qwen3_moe")  # smollm2: three query heads for a key head, tied embeddings

FIXTURES_ARE_STATELESS = [HealthCheck.function_scoped_fixture]


def prefilled(target, prefix, room):
    cache = target.new_cache(len(prefix) + room)
    target.forward(prefix, torch.arange(len(prefix)), cache, causal=True, last_logits_only=True)
    cache.commit(len(prefix))
    return cache


def separate(target, tokens, taps):
    """Logits and taps of the last token of a sequence, from scratch."""
    cache = target.new_cache(len(tokens))
    out = target.forward(tokens, torch.arange(len(tokens)), cache, causal=True, taps=taps)
    return out.logits[-1], [tap[-1] for tap in out.taps]


def sequences(prefix, root, tree, path_rows):
    """The token sequence that ends in each packed row."""
    packed = torch.cat((root, tree.tokens))
    for node in range(-1, len(tree)):
        yield torch.cat((prefix, packed[path_rows(tree, node)]))


def case(seed, prefix_length, nodes, vocabulary, random_tree):
    generator = torch.Generator().manual_seed(seed)
    prefix = torch.randint(vocabulary, (prefix_length,), generator=generator)
    root = torch.randint(vocabulary, (1,), generator=generator)
    return prefix, root, random_tree(nodes, vocabulary, generator)


seeds, prefix_lengths, sizes = st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 18)


@functools.cache
def random_target(family, dtype):
    target = random_pair(family, None).target
    return target if dtype == torch.float32 else target.to(dtype)


def test_every_model_type_that_is_decoded_is_among_the_families():
    assert {random_config(family).model_type for family in FAMILIES} == set(MODEL_TYPES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 2e-5)], ids=["fp64", "fp32"])
@settings(deadline=None, max_examples=6, suppress_health_check=FIXTURES_ARE_STATELESS)
@given(seed=seeds, prefix_length=prefix_lengths, nodes=sizes)
def test_rows_equal_separate_forwards(random_tree, path_rows, family, dtype, bound, seed, prefix_length, nodes):
    """Lemma 1 for every family that can be decoded: one packed pass is N + 1 separate ones, taps included.

    ``bound`` is of a row's largest value: every operation rounds in proportion to it, and a row of these targets
    reaches 20 in its logits and 70 in its hidden states.
    """
    target = random_target(family, dtype)
    prefix, root, tree = case(seed, prefix_length, nodes, target.vocab_size, random_tree)
    taps = range(target.layers - 1)
    packed = verify(target, prefilled(target, prefix, nodes + 1), root, tree, taps)
    assert packed.logits.shape == (nodes + 1, target.vocab_size)
    assert len(packed.taps) == target.layers - 1
    for row, tokens in enumerate(sequences(prefix, root, tree, path_rows)):
        logits, tapped = separate(target, tokens, taps)
        for ours, reference in zip((packed.logits, *packed.taps), (logits, *tapped), strict=True):
            torch.testing.assert_close(ours[row], reference, atol=bound * reference.abs().max().item(), rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lemma_needs_its_mask_and_its_positions(random_tree, path_rows, family):
    """Guards the test above: a row that also sees its sibling, or stands one place further, is far off."""
    target = random_target(family, torch.float64)
    prefix, root, tree = case(1, 12, 9, target.vocab_size, random_tree)
    rows = torch.cat((root, tree.tokens))
    for mistake in ("mask", "position"):
        visible, positions = ancestor_mask(tree), torch.nn.functional.pad(tree.depth, (1, 0)) + len(prefix)
        if mistake == "mask":
            visible |= torch.ones_like(visible).tril()
        else:
            positions[1:] += 1
        cache = prefilled(target, prefix, 10)
        mask = additive_mask(visible, len(prefix), target.dtype, target.device)
        wrong = target.forward(rows, positions, cache, mask=mask).logits
        right = verify(target, prefilled(target, prefix, 10), root, tree).logits
        assert (wrong - right).abs().max() > 1e-3 * right.abs().max()


@settings(deadline=None, max_examples=8, suppress_health_check=FIXTURES_ARE_STATELESS)
@given(seed=seeds, prefix_length=prefix_lengths, nodes=sizes)
def test_fp32_rows_equal_stock_transformers(
    golden_pair, stock_model, pair_name, random_tree, path_rows, seed, prefix_length, nodes
):
    target, stock = golden_pair(pair_name).target, stock_model(pair_name)
    prefix, root, tree = case(seed, prefix_length, nodes, target.vocab_size, random_tree)
    taps = range(target.layers - 1)
    packed = verify(target, prefilled(target, prefix, nodes + 1), root, tree, taps)
    for row, tokens in enumerate(sequences(prefix, root, tree, path_rows)):
        with torch.no_grad():
            reference = stock(tokens[None], output_hidden_states=True, use_cache=False)
        torch.testing.assert_close(packed.logits[row], reference.logits[0, -1], atol=1e-4, rtol=0)
        for layer, ours in zip(taps, packed.taps, strict=True):
            torch.testing.assert_close(ours[row], reference.hidden_states[layer + 1][0, -1], atol=1e-4, rtol=0)


def test_no_tree_an_empty_tree_and_a_lone_root_agree(exact_pair, pair_name, random_tree):
    target = exact_pair(pair_name).target
    prefix, root, tree = case(3, 9, 5, target.vocab_size, random_tree)
    wide = verify(target, prefilled(target, prefix, 6), root, tree)
    for empty in (None, random_tree(0, 5, torch.Generator())):
        alone = verify(target, prefilled(target, prefix, 1), root, empty)
        assert alone.logits.shape == (1, target.vocab_size)
        assert alone.taps == []
        torch.testing.assert_close(alone.logits[0], wide.logits[0], atol=1e-9, rtol=0)


def test_a_chain_is_a_plain_continuation(exact_pair, pair_name):
    target = exact_pair(pair_name).target
    tokens = torch.randint(target.vocab_size, (30,), generator=torch.Generator().manual_seed(5))
    prefix, root, chain = tokens[:20], tokens[20:21], chain_tree(tokens[21:])
    packed = verify(target, prefilled(target, prefix, 10), root, chain)
    whole = target.forward(tokens, torch.arange(30), target.new_cache(30), causal=True)
    torch.testing.assert_close(packed.logits, whole.logits[20:], atol=1e-9, rtol=0)


def test_taps_do_not_change_logits_and_come_in_layer_order(golden_pair, pair_name, random_tree):
    target = golden_pair(pair_name).target
    prefix, root, tree = case(11, 7, 8, target.vocab_size, random_tree)
    without = verify(target, prefilled(target, prefix, 9), root, tree)
    every = verify(target, prefilled(target, prefix, 9), root, tree, range(target.layers - 1))
    some = verify(target, prefilled(target, prefix, 9), root, tree, (0, 2))
    assert torch.equal(without.logits, every.logits)
    assert torch.equal(some.taps[0], every.taps[0])
    assert torch.equal(some.taps[1], every.taps[2])
    assert without.taps == []


def test_garbage_behind_the_committed_entries_is_never_read(golden_pair, pair_name, random_tree):
    target = golden_pair(pair_name).target
    prefix, root, tree = case(12, 6, 9, target.vocab_size, random_tree)
    cache = prefilled(target, prefix, 20)
    clean = verify(target, cache, root, tree).logits
    cache.keys[:, :, cache.length :] = torch.nan
    cache.values[:, :, cache.length :] = torch.nan
    assert torch.equal(verify(target, cache, root, tree).logits, clean)
    assert cache.length == len(prefix)


def test_bf16_packed_pass_is_near_fp32(golden_pair, pair_name, random_tree):
    pair = golden_pair(pair_name)
    target, low = pair.target, pair.target.to(torch.bfloat16)
    prefix, root, tree = case(13, 12, 16, target.vocab_size, random_tree)
    packed = verify(low, prefilled(low, prefix, 17), root, tree).logits
    assert packed.dtype == torch.bfloat16
    reference = verify(target, prefilled(target, prefix, 17), root, tree).logits
    assert (packed.float() - reference).abs().mean() < 0.05 * reference.std()
