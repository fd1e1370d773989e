"""The walk of a tree that stays on the device is the walk."""

import pytest
import torch

from cast.errors import CastError
from cast.trees import best_first_tree_from_topk, best_first_tree_on_device, top_candidates
from cast.verify import GreedySelector, walk
from cast.verify.resident import greedy_walk_on_device


def trees(seed, vocabulary, budget):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(5, vocabulary, generator=generator).mul(3).log_softmax(-1)
    scores = top_candidates(log_probs, 8)
    return best_first_tree_from_topk(*scores, budget), best_first_tree_on_device(*scores, budget), generator


def test_commits_what_the_walk_commits():
    lengths = set()
    for seed in range(150):
        host, resident, generator = trees(seed, 3 + seed % 4, budget=1 + seed % 40)
        logits = torch.randn(len(host) + 1, 3 + seed % 4, generator=generator)
        expected = walk(host, GreedySelector().over(logits, list))
        assert greedy_walk_on_device(resident, logits) == expected
        assert GreedySelector().walk(resident, logits, list) == expected
        lengths.add(expected.committed)
    assert len(lengths) >= 4  # paths of several lengths were among them


def test_nan_counts_only_on_the_path():
    _, resident, generator = trees(1, 5, budget=10)
    logits = torch.randn(11, 5, generator=generator)
    rows = greedy_walk_on_device(resident, logits).rows
    off = next(row for row in range(11) if row not in rows)
    spoiled = logits.clone()
    spoiled[off] = torch.nan
    assert greedy_walk_on_device(resident, spoiled).rows == rows
    spoiled[rows[-1]] = torch.nan
    with pytest.raises(CastError, match="target returned NaN"):
        greedy_walk_on_device(resident, spoiled)
