"""DART decoding: the public code's tree search and traces, and best-first trees over the same marginals."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import cast
from cast import CastError
from cast.decode.proposers import dart
from cast.models.loading import load_drafter
from cast.models.ngram_trie import NgramTrie

EOS = 94


@pytest.fixture(scope="module")
def trace(golden):
    return json.loads((golden / "dart_tiny" / "dart_generate_trace.json").read_text())["configs"]


@pytest.fixture(scope="module")
def trie(golden):
    return NgramTrie.read(golden / "dart_tiny" / "tiny.trie")


@pytest.fixture
def pair(golden_pair):
    return golden_pair("dart_tiny")


def paths(tokens, parents):
    """The node set as token paths; the root's own entry leads both lists, as the reference writes them."""
    of = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        of.append((*of[parent], token))
    return sorted(of)


def tree_paths(tree):
    return paths([None, *tree.tokens.tolist()], [-1, *(tree.parent + 1).tolist()])


def test_golden_tree_searches(golden, trie):
    head = load_drafter(golden / "dart_tiny" / "random_head", device="cpu")
    logits = load_file(golden / "dart_tiny" / "head_forward.safetensors")
    for case in json.loads((golden / "dart_tiny" / "tree_search_cases.json").read_text())["cases"]:
        best = logits[case["name"].split("_")[2] + ".logits"][0].topk(25, dim=-1)
        tokens = head.to_target(best.indices)
        tree = dart.ngram_tree(best.values, tokens, case["remain_total"], case["preceding_ids"], trie, (EOS,))
        assert tree_paths(tree) == paths(case["draft_tokens"], case["parents"])
        assert (tree.parent < torch.arange(len(tree))).all()


@pytest.mark.parametrize("name", ["remain16", "remain60"])
def test_golden_trace(golden, pair, trace, trie, name, monkeypatch):
    """Outputs, acceptance lengths, every round's node set, and the logits where they were recorded; in fp64, so
    that near-ties fall alike on every machine.
    """
    pair = pair.to(torch.float64)
    trees, logits, build, draft = [], [], dart.ngram_tree, type(pair.drafter).draft
    recorded = load_file(golden / "dart_tiny" / "dart_generate_round_logits.safetensors")
    monkeypatch.setattr(dart, "ngram_tree", lambda *a: trees.append(build(*a)) or trees[-1])
    monkeypatch.setattr(type(pair.drafter), "draft", lambda *a: logits.append(draft(*a)) or logits[-1])
    for index, case in enumerate(trace[name]["prompts"]):
        trees.clear(), logits.clear()
        prompt, expected = case["prompt"], case["output_ids"][len(case["prompt"]) :]
        out = cast.generate(
            pair,
            torch.tensor(prompt),
            "dart",
            budget=int(name.removeprefix("remain")),
            trie=trie,
            max_new_tokens=len(expected),
            stop_token_ids=[],
        )
        assert out.tokens.tolist() == expected
        assert out.committed == case["accept_length_plus_one"]
        assert out.run.drafter_passes == len(case["rounds"])
        for tree, round_ in zip(trees, case["rounds"], strict=True):
            assert tree_paths(tree) == paths(round_["draft_tokens"], round_["parents"])
        if name == "remain60" and f"prompt{index}.logits" in recorded:
            torch.testing.assert_close(
                torch.stack(logits).float(), recorded[f"prompt{index}.logits"], atol=2e-5, rtol=1e-4
            )


def test_best_first_trees_keep_plain_decodings_tokens(pair, trace):
    """At the paper's rank cap 8, wider budgets commit no less."""
    for case in trace["remain60"]["prompts"][:1]:
        prompt, expected = torch.tensor(case["prompt"]), case["output_ids"][len(case["prompt"]) :][:48]
        rounds = []
        for budget in (0, 1, 8, 63):
            out = cast.generate(pair, prompt, "dart", budget=budget, max_new_tokens=48, stop_token_ids=[])
            assert out.tokens.tolist() == expected
            assert out.run.drafter_passes == len(out.committed)
            assert max(out.committed) <= 9
            rounds.append(len(out.committed))
        assert rounds == sorted(rounds, reverse=True)


def test_a_best_first_tree_is_over_the_target_vocabulary(golden, pair):
    """Node by node: the product of the full draft softmax, and the draft table's target ids."""
    logits = load_file(golden / "dart_tiny" / "dart_generate_round_logits.safetensors")["prompt0.logits"][0]
    proposer = dart.DartTree(pair, budget=40)
    proposer.start(64)
    proposer.drafter.draft, own = lambda *a: logits, proposer.drafter.draft
    try:
        proposer.observe([1, 2])
        tree = proposer.propose(torch.zeros(1, 192), torch.tensor([2]))
    finally:
        proposer.drafter.draft = own
    scores = {}
    for depth, row in enumerate(logits.log_softmax(-1), start=1):
        for draft_id in row.topk(8).indices.tolist():
            scores[depth, draft_id + int(pair.drafter.d2t[draft_id])] = row[draft_id]
    for node in range(len(tree)):
        parent = int(tree.parent[node])
        above = tree.log_mass[parent] if parent >= 0 else 0.0
        expected = above + scores[int(tree.depth[node]), int(tree.tokens[node])]
        torch.testing.assert_close(tree.log_mass[node], expected, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 40))
def test_the_search_by_hand(trie, seed, levels, top_k, beam_width, budget):
    """The formula of the public code, candidate by candidate, in plain Python and fp64."""
    random = np.random.default_rng(seed)
    log_probs = -np.sort(random.exponential(size=(levels, top_k)), axis=1)
    tokens = np.stack([random.permutation(96)[:top_k] for _ in range(levels)])
    context = random.integers(0, 96, 5).tolist()
    candidates, beam = [], [((), 0.0)]
    for level in range(levels):
        p = np.exp(log_probs[level]) / np.exp(log_probs[level]).sum()
        extended = []
        for path, score in beam:
            for chance, token in zip(p, tokens[level].tolist(), strict=True):
                gain = 0.9**level * np.log(chance + 1e-10)
                if level:
                    history = np.array([[*context, *path]])
                    gain += 0.5 * np.log(trie.probability(history, np.array([[token]]))[0, 0] + 1e-10)
                extended.append(((*path, token), score + (level + 1) ** -0.7 * gain))
        candidates += extended
        beam = sorted(extended, key=lambda entry: (entry[0][-1] == EOS, -entry[1]))[:beam_width]
    tree = dart.ngram_tree(
        torch.from_numpy(log_probs), torch.from_numpy(tokens), budget, context, trie, (EOS,), beam_width
    )
    best = sorted(candidates, key=lambda entry: -entry[1])
    scores = sorted(score for _, score in candidates)
    nearest = np.diff(scores).min() if len(scores) > 1 else 1.0
    if nearest > 1e-4:  # fp32 orders them alike
        assert tree_paths(tree) == sorted([(), *(path for path, _ in best[:budget])])
    assert len(tree) == min(budget, len(candidates))


def test_a_stop_token_stays_behind_in_the_beam(trie):
    """The likeliest token of the first level ends the text: it is a candidate, and no beam of one extends it."""
    log_probs, tokens = torch.tensor([[-0.1, -3.0], [-0.1, -3.0]]), torch.tensor([[EOS, 7], [8, 9]])
    tree = dart.ngram_tree(log_probs, tokens, 4, [1, 2], trie, (EOS,), beam_width=1)
    assert tree_paths(tree) == [(), (7,), (7, 8), (7, 9), (EOS,)]


def test_a_trie_with_wrong_counts_still_gives_a_tree():
    """Token 3 is said to follow token 2 a million times, token 2 to occur once: no child may outrank its parent."""
    trie = NgramTrie(2, np.array([1, 1, 10**6]), np.array([0, 1]), np.array([2, 3]), np.array([1, 2]))
    log_probs, tokens = torch.tensor([[-0.1, -3.0], [-0.1, -3.0]]), torch.tensor([[1, 2], [4, 3]])
    for budget in range(1, 7):
        tree = dart.ngram_tree(log_probs, tokens, budget, [1], trie)
        above = torch.cat((tree.depth, torch.zeros(1, dtype=torch.int64)))[tree.parent]  # of the root 0
        assert torch.equal(tree.depth, above + 1)


def test_refusals(pair, tmp_path):
    prompt = torch.tensor([1, 2, 3])
    with pytest.raises(CastError, match="budget must be at least 0"):
        cast.generate(pair, prompt, "dart", budget=-1)
    with pytest.raises(CastError, match="cannot be read"):
        cast.generate(pair, prompt, "dart", trie=tmp_path / "absent.trie")
    with pytest.raises(CastError, match="cannot be read"):
        cast.generate(pair, prompt, "dart", trie="a\0b")
    with pytest.raises(CastError, match="trie must be"):
        cast.generate(pair, prompt, "dart", trie=5)
    with pytest.raises(CastError, match="NaN"):
        dart.ngram_tree(torch.full((1, 2), torch.nan), torch.tensor([[1, 2]]), 2, [1, 2], None)
