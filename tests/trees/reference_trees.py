"""Slow, obvious versions of what `cast.trees` computes, to compare with."""

import heapq
import itertools

import numpy as np


def ranked(scores, top_k):
    """(scores [L, K], tokens [L, K]) of a [L, V] array: largest first, ties by token id."""
    order = np.array([sorted(range(len(row)), key=lambda token: (-row[token], token))[:top_k] for row in scores])
    return np.take_along_axis(scores, order, axis=1), order


def mass_of(scores, ranks):
    """Log mass of a rank tuple, accumulated in fp32 from the root to the leaf."""
    total = np.float32(0)
    for position, rank in enumerate(ranks):
        total = np.float32(total + np.float32(scores[position][rank]))
    return total


def universe(scores):
    """Every rank tuple of every length."""
    length, top_k = scores.shape
    return [ranks for depth in range(1, length + 1) for ranks in itertools.product(range(top_k), repeat=depth)]


def heap_order(scores, budget):
    """The first `budget` rank tuples from a heap: mass descending, shorter first, smaller ranks first."""
    length, top_k = scores.shape

    def entry(ranks):
        return -mass_of(scores, ranks), len(ranks), ranks

    heap = [entry((rank,)) for rank in range(top_k)]
    heapq.heapify(heap)
    popped = []
    while heap and len(popped) < budget:
        _, depth, ranks = heapq.heappop(heap)
        popped.append(ranks)
        if depth < length:
            for rank in range(top_k):
                heapq.heappush(heap, entry((*ranks, rank)))
    return popped


def tree_lists(scores, tokens, rank_tuples):
    """(tokens, parents, depths, log masses) of rank tuples in the given order."""
    index = {ranks: i for i, ranks in enumerate(rank_tuples)} | {(): -1}
    return (
        [int(tokens[len(ranks) - 1][ranks[-1]]) for ranks in rank_tuples],
        [index[ranks[:-1]] for ranks in rank_tuples],
        [len(ranks) for ranks in rank_tuples],
        [float(mass_of(scores, ranks)) for ranks in rank_tuples],
    )


def lists(tree):
    """The same four lists of a CandidateTree."""
    return tree.tokens.tolist(), tree.parent.tolist(), tree.depth.tolist(), tree.log_mass.tolist()


def prefix_closed_sets(scores, size):
    """Every prefix-closed set of `size` rank tuples, as frozensets."""
    found = {frozenset()}
    nodes = universe(scores)
    for _ in range(size):
        found = {
            grown | {ranks}
            for grown in found
            for ranks in nodes
            if ranks not in grown and (len(ranks) == 1 or ranks[:-1] in grown)
        }
    return found


def best_total_by_size(scores):
    """Largest total mass of a prefix-closed set of each size from 0, by a knapsack over the full tree."""
    length, top_k = scores.shape

    def below(position, mass):
        """Best totals by size over the nodes under a node of that mass at depth `position`."""
        best = [0.0]
        if position == length:
            return best
        for rank in range(top_k):
            own = mass * float(np.exp(scores[position][rank].astype(np.float64)))
            with_child = [0.0] + [own + total for total in below(position + 1, own)]
            merged = [float("-inf")] * (len(best) + len(with_child) - 1)
            for i, left in enumerate(best):
                for j, right in enumerate(with_child):
                    merged[i + j] = max(merged[i + j], left + right)
            best = merged
        return best

    return below(0, 1.0)


def ancestors(parents, node):
    """The node and everything above it, the root as -1."""
    path = {node}
    while node != -1:
        node = parents[node]
        path.add(node)
    return path
