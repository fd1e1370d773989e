"""The n-gram counts that DART's tree search reads, from the public code's trie files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from cast.errors import CastError

_HEAD, _NODE, _COUNT = struct.Struct("<QQ"), struct.Struct("<iQiQ"), struct.Struct("<Q")
_CHILD = np.dtype([("token", "<i4"), ("node", "<u8")])  # packed: 12 bytes
ROOT = 0
ABSENT = -1


class NgramTrie:
    """Token n-grams with counts; the path from the root to a node spells its n-gram.

    Attributes:
        order: longest n-gram stored; a context has at most `order` - 1 tokens.
        counts: int64 [nodes], occurrences of each node's n-gram.
    """

    def __init__(self, order: int, counts: np.ndarray, parents: np.ndarray, tokens: np.ndarray, nodes: np.ndarray):
        """Args:
        parents, tokens, nodes: int64 [edges], the token that leads from a parent node to a node.
        """
        self.order, self.counts = order, counts
        self._stride = int(tokens.max(initial=0)) + 1
        keys = parents * self._stride + tokens
        by_key = np.argsort(keys)
        self._keys, self._nodes = keys[by_key], nodes[by_key]

    @classmethod
    def read(cls, path: str | Path) -> NgramTrie:
        """Load a `.trie` file, all integers little-endian and packed.

        The file holds u64 order and u64 node count, then each node as i32 token, u64 parent, i32 count, u64 child
        count and its children as i32 token and u64 node.

        Raises:
            CastError: no such file, or one that does not parse to exactly its length.
        """
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise CastError(f"n-gram trie {str(path)!r} cannot be read: {reason}") from None
        try:
            order, size = _HEAD.unpack_from(data)
            counts, children = [], []
            place = _HEAD.size
            for _ in range(size):
                _, _, occurrences, degree = _NODE.unpack_from(data, place)
                place += _NODE.size
                counts.append(occurrences)
                children.append(np.frombuffer(data, _CHILD, degree, place))
                place += degree * _CHILD.itemsize
        except (struct.error, ValueError, OverflowError):
            raise CastError(f"n-gram trie {path} is truncated or of another format") from None
        edges = np.concatenate(children) if children else np.empty(0, _CHILD)
        nodes = edges["node"].astype(np.int64)
        if place != len(data) or order < 2 or not len(nodes) or not 0 < nodes.min() <= nodes.max() < size:
            raise CastError(f"n-gram trie {path} is truncated or of another format")
        parents = np.repeat(np.arange(size), [len(of) for of in children])
        return cls(int(order), np.array(counts, np.int64), parents, edges["token"].astype(np.int64), nodes)

    def child(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The node that each token leads to from each node, `ABSENT` where there is none; int64, broadcast."""
        nodes, tokens = np.broadcast_arrays(nodes, tokens)
        key = nodes * self._stride + tokens
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        known = (nodes != ABSENT) & (tokens >= 0) & (tokens < self._stride) & (self._keys[at] == key)
        return np.where(known, self._nodes[at], ABSENT)

    def probability(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Chance of each token after its context, counting with the longest context that has it.

        Shorter contexts step in token by token and undiscounted, so the values of one context need not sum to 1.
        A token that follows no suffix of its context has chance 0.

        Args:
            contexts: int64 [m, c], preceding tokens, the last at the end; at most `order` - 1 are read.
            tokens: int64 [m, k].

        Returns:
            float64 [m, k].
        """
        found = np.zeros(tokens.shape)
        missing = np.ones(tokens.shape, bool)
        for length in range(min(self.order - 1, contexts.shape[1]), 0, -1):
            node = np.full(len(contexts), ROOT)
            for column in range(contexts.shape[1] - length, contexts.shape[1]):
                node = self.child(node, contexts[:, column])
            after = self.child(node[:, None], tokens)
            fresh = missing & (after != ABSENT)
            chance = self.counts[after] / np.maximum(self.counts[node], 1)[:, None]
            found[fresh] = chance[fresh]
            missing &= ~fresh
        return found
