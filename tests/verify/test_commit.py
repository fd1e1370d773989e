"""Caches after a commit equal caches rebuilt from scratch, and a contiguous path moves nothing."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cast.models import KVCache
from cast.verify import verify

ATOL = 1e-9


class CountOperations(TorchDispatchMode):
    """Counts every tensor operation made inside."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def prefill(target, tokens, capacity, taps=()):
    cache = target.new_cache(capacity)
    out = target.forward(tokens, torch.arange(len(tokens)), cache, causal=True, taps=taps, last_logits_only=True)
    cache.commit(len(tokens))
    return cache, out.taps


def held(cache):
    return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]


def assert_same_entries(ours, rebuilt):
    assert ours.length == rebuilt.length
    for mine, reference in zip(held(ours), held(rebuilt), strict=True):
        torch.testing.assert_close(mine, reference, atol=ATOL, rtol=0)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), prefix_length=st.integers(1, 30), rounds=st.integers(1, 4))
def test_both_caches_equal_rebuilt_ones(exact_pair, pair_name, random_tree, path_rows, seed, prefix_length, rounds):
    """Several rounds, each committing a random path of a random tree: contiguous or not, or root only."""
    pair = exact_pair(pair_name)
    target, drafter, taps = pair.target, pair.drafter, pair.drafter.target_layer_ids
    generator = torch.Generator().manual_seed(seed)
    vocabulary = target.vocab_size
    sequence = torch.randint(vocabulary, (prefix_length,), generator=generator)
    capacity = prefix_length + 40 * rounds
    cache, tapped = prefill(target, sequence, capacity, taps)
    features, drafter_cache = torch.cat(tapped, -1), drafter.new_cache(capacity)
    for _ in range(rounds):
        root = torch.randint(vocabulary, (1,), generator=generator)
        drafted = drafter.draft(target, features, root, drafter_cache)
        nodes = int(torch.randint(1, 25, (), generator=generator))
        tree = random_tree(nodes, vocabulary, generator)
        out = verify(target, cache, root, tree, taps)
        rows = path_rows(tree, int(torch.randint(-1, nodes, (), generator=generator)))
        cache.commit(rows)
        features = torch.cat([tap[rows] for tap in out.taps], -1)
        sequence = torch.cat((sequence, torch.cat((root, tree.tokens))[rows]))

        rebuilt, all_taps = prefill(target, sequence, len(sequence), taps)
        assert_same_entries(cache, rebuilt)
        before = len(sequence) - len(rows)
        from_scratch = drafter.new_cache(capacity)
        redrafted = drafter.draft(target, torch.cat(all_taps, -1)[:before], root, from_scratch)
        assert_same_entries(drafter_cache, from_scratch)
        torch.testing.assert_close(drafted, redrafted, atol=ATOL, rtol=0)
        torch.testing.assert_close(features, torch.cat(all_taps, -1)[before:], atol=ATOL, rtol=0)


def small_cache(length=5, capacity=20):
    cache = KVCache(2, 3, 4, capacity, torch.float32, torch.device("cpu"))
    cache.keys.copy_(torch.randn(cache.keys.shape))
    cache.values.copy_(torch.randn(cache.values.shape))
    cache.length = length
    return cache


def test_a_contiguous_path_moves_nothing():
    for rows in ([0], [0, 1, 2, 3], 4, 0, []):
        cache = small_cache()
        with CountOperations() as operations:
            cache.commit(rows)
        assert operations.count == 0
        assert cache.length == 5 + (rows if isinstance(rows, int) else len(rows))


def test_only_the_rows_behind_the_contiguous_start_move():
    cache = small_cache()
    keys, values = cache.keys.clone(), cache.values.clone()
    cache.commit([0, 1, 4, 5, 9])
    assert cache.length == 10
    assert torch.equal(cache.keys[:, :, 5:10], keys[:, :, [5, 6, 9, 10, 14]])
    assert torch.equal(cache.values[:, :, 5:10], values[:, :, [5, 6, 9, 10, 14]])
    assert torch.equal(cache.keys[:, :, :7], keys[:, :, :7])
    assert torch.equal(cache.keys[:, :, 10:], keys[:, :, 10:])


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 14), min_size=1))
def test_any_ascending_rows_overlapping_or_not(chosen):
    rows = sorted(chosen)
    cache = small_cache()
    keys, values = cache.keys.clone(), cache.values.clone()
    cache.commit(rows)
    moved = [5 + row for row in rows]
    assert torch.equal(cache.keys[:, :, 5 : cache.length], keys[:, :, moved])
    assert torch.equal(cache.values[:, :, 5 : cache.length], values[:, :, moved])
    assert torch.equal(cache.keys[:, :, :5], keys[:, :, :5])
