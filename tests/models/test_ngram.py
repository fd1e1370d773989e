"""DART's n-gram trie: the public file format, and probabilities against counting by hand."""

import json
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cast import CastError
from cast.models.ngram_trie import NgramTrie


@pytest.fixture(scope="module")
def file(golden):
    return golden / "dart_tiny" / "tiny.trie"


def test_the_golden_file(file):
    trie = NgramTrie.read(file)
    assert trie.order == 3
    assert len(trie.counts) == 1691


def test_the_golden_query(golden, file):
    query = json.loads((golden / "dart_tiny" / "tree_search_cases.json").read_text())["ngram_query"]
    chance = NgramTrie.read(file).probability(np.array([query["context"]]), np.array([query["tokens"]]))
    np.testing.assert_allclose(chance[0], query["probabilities"], rtol=1e-6)


def test_an_unknown_context_and_tokens_outside(file):
    trie = NgramTrie.read(file)
    assert not trie.probability(np.array([[10**6, 10**6]]), np.array([[1, 2, 3]])).any()
    assert not trie.probability(np.array([[24, 12]]), np.array([[-1, 10**6]])).any()
    assert not trie.probability(np.zeros((1, 0), np.int64), np.array([[1]])).any()


@pytest.mark.parametrize("keep", [0, 8, 16, 500, -1])
def test_a_truncated_file(file, tmp_path, keep):
    (tmp_path / "cut.trie").write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CastError, match="truncated or of another format"):
        NgramTrie.read(tmp_path / "cut.trie")


def test_other_files(file, tmp_path):
    with pytest.raises(CastError, match="cannot be read"):
        NgramTrie.read(tmp_path / "absent.trie")
    (tmp_path / "long.trie").write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CastError, match="another format"):
        NgramTrie.read(tmp_path / "long.trie")
    (tmp_path / "text.trie").write_text("no trie at all, but long enough for a header")
    with pytest.raises(CastError, match="another format"):
        NgramTrie.read(tmp_path / "text.trie")


def trie_file(order, counts):
    """The bytes of a trie of these n-gram counts {tuple: count}; every prefix of an n-gram is counted, too."""
    names = [(), *sorted(counts, key=len)]
    place = {name: index for index, name in enumerate(names)}
    data = struct.pack("<QQ", order, len(names))
    for name in names:
        children = [child for child in names if len(child) == len(name) + 1 and child[:-1] == name]
        token, parent = (name[-1], place[name[:-1]]) if name else (-1, 0)
        data += struct.pack("<iQiQ", token, parent, counts.get(name, 0), len(children))
        data += b"".join(struct.pack("<iQ", child[-1], place[child]) for child in children)
    return data


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=30),
    st.integers(2, 4),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_probabilities_by_counting(tmp_path_factory, text, order, context):
    counts = Counter(tuple(text[i : i + n]) for n in range(1, order + 1) for i in range(len(text) - n + 1))
    path = tmp_path_factory.getbasetemp() / "counted.trie"
    path.write_bytes(trie_file(order, counts))
    chance = NgramTrie.read(path).probability(np.array([context]), np.arange(6)[None])[0]
    for token in range(6):
        expected = 0.0
        for length in range(1, order):  # the longest that has the continuation wins
            suffix = tuple(context[-length:])
            if len(suffix) == length and counts[(*suffix, token)]:
                expected = counts[(*suffix, token)] / counts[suffix]
        assert chance[token] == pytest.approx(expected)
