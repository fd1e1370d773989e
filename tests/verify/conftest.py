"""Golden pairs in two precisions, and random trees, for the verification tests."""

import functools
from collections import Counter

import pytest
import torch

from cast.trees import CandidateTree
from cast.verify.chance import Chance

PAIRS = ("dflash_tiny_qwen3", "dflash_tiny_llama")


@pytest.fixture(params=PAIRS)
def pair_name(request):
    return request.param


@pytest.fixture(scope="session")
def exact_pair(golden_pair):
    """A golden pair in fp64, converted once."""
    return functools.cache(lambda name: golden_pair(name).to(torch.float64))


@pytest.fixture(scope="session")
def stock_model(golden):
    """The stock transformers model of a golden target, in fp32."""
    from transformers import AutoModelForCausalLM

    @functools.cache
    def load(name):
        return AutoModelForCausalLM.from_pretrained(golden / name / "target", dtype=torch.float32).eval()

    return load


@pytest.fixture(scope="session")
def random_tree():
    """(nodes, vocabulary, generator) to a random tree, ancestors first, in no particular order of scores."""

    def build(nodes, vocabulary, generator):
        def draw(high):
            return int(torch.randint(high, (), generator=generator))

        tokens, parents, depths, used = [], [], [], set()
        while len(tokens) < nodes:
            # Half the nodes extend the newest one, so that deep paths and wide fans both occur.
            parent = len(tokens) - 1 if draw(2) else draw(len(tokens) + 1) - 1
            token = draw(vocabulary)
            if (parent, token) in used:
                continue
            used.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            depths.append(1 if parent == -1 else depths[parent] + 1)
        as_int = functools.partial(torch.tensor, dtype=torch.int64)
        return CandidateTree(as_int(tokens), as_int(parents), as_int(depths), torch.full((nodes,), torch.nan))

    return build


@pytest.fixture(scope="session")
def path_rows():
    """(tree, node) to the packed rows from the root to that node, root first."""

    def rows(tree, node):
        path = []
        while node != -1:
            path.append(node + 1)
            node = int(tree.parent[node])
        return [0, *reversed(path)]

    return rows


@pytest.fixture(scope="session")
def tree_of():
    """(token, parent) pairs to a tree."""

    def build(*nodes):
        depth = []
        for _, parent in nodes:
            depth.append(1 if parent == -1 else depth[parent] + 1)
        columns = [[token for token, _ in nodes], [parent for _, parent in nodes], depth]
        tokens, parents, depths = (torch.tensor(column, dtype=torch.int64) for column in columns)
        return CandidateTree(tokens, parents, depths, torch.zeros(len(nodes)))

    return build


class _Scripted(Chance):
    """Decides as a script says; where that ends, it ends the run and tells the probabilities of what may follow."""

    def __init__(self, script):
        self.script, self.place, self.probability = script, 0, 1.0

    def _decide(self, probabilities):
        if self.place == len(self.script):
            raise _Open(probabilities)
        choice = self.script[self.place]
        self.place += 1
        self.probability *= probabilities[choice]
        return choice

    def happens(self, probability):
        sure = min(max(probability, 0.0), 1.0)
        return bool(self._decide([1 - sure, sure]))

    def index(self, weights):
        return self._decide([weight / sum(weights) for weight in weights])

    def token(self, cumulative):
        weights = cumulative.diff(prepend=cumulative.new_zeros(1))
        return self._decide((weights / cumulative[-1]).tolist())


class _Open(Exception):
    def __init__(self, probabilities):
        self.probabilities = probabilities


@pytest.fixture(scope="session")
def law_of_code():
    """A function of a `Chance` to {its result: probability}, over all random decisions it may meet."""

    def enumerate_outcomes(run):
        outcomes, scripts = Counter(), [[]]
        while scripts:
            script = scripts.pop()
            chance = _Scripted(script)
            try:
                outcomes[run(chance)] += chance.probability
            except _Open as decision:
                scripts += [[*script, i] for i, chances in enumerate(decision.probabilities) if chances > 0]
        return outcomes

    return enumerate_outcomes
