"""The registry of methods, and the page that says how to join it: its code runs as printed."""

import re
from pathlib import Path

import pytest
import torch

import cast
from cast import CastError
from cast.decode import METHODS, Proposer, make_proposer, register
from cast.experiments import records
from cast.trees import CandidateTree

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def registry_as_it_was():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def page_code():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-drafter.md").read_text(), flags=re.DOTALL)
    return code


def test_the_pages_example_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {}
    exec(compile(page_code(), "docs/own-drafter.md", "exec"), names)
    assert float(capsys.readouterr().out.split()[0]) > 1
    assert max(names["drafted"].committed) > 1
    plain = cast.generate(names["pair"], names["prompt"], "autoregressive", max_new_tokens=40, temperature=1.0, seed=3)
    drafted = cast.generate(names["pair"], names["prompt"], "bigram", max_new_tokens=40, temperature=1.0, seed=3)
    assert drafted.tokens.tolist() == plain.tokens.tolist()


def test_the_pages_example_is_forty_lines():
    (of_class,) = re.findall(r"@register.*?\n\n\n", page_code(), flags=re.DOTALL)
    assert len(of_class.strip().splitlines()) <= 40


def test_a_name_serves_one_method():
    with pytest.raises(CastError, match="'cast' is registered already"):
        register("cast")(Proposer)


def test_records_know_the_methods():
    """Records are read without the decoder, so they keep a list of their own."""
    assert list(records.METHODS) == list(METHODS)


def test_every_registered_method_has_a_proposer(golden_pair):
    heads = {"eagle3": "eagle3_tiny", "dart": "dart_tiny"}
    for method in METHODS:
        proposer = make_proposer(golden_pair(heads.get(method, "dflash_tiny_qwen3")), method, budget=7)
        assert isinstance(proposer, Proposer)
        assert proposer.lookahead >= 1
        assert list(proposer.taps) == sorted(set(proposer.taps))


class Adversary(Proposer):
    """Proposes random trees, of every shape, and now and then none."""

    def __init__(self, pair):
        self.random = torch.Generator().manual_seed(0)
        self.vocabulary, self.lookahead = pair.target.vocab_size, 9

    def propose(self, features, root, trace=None):
        size = int(torch.randint(0, 9, (1,), generator=self.random))
        if not size:
            return None
        parent, seen = [], set()
        tokens, depth = [], []
        while len(tokens) < size:
            above = int(torch.randint(-1, len(tokens), (1,), generator=self.random)) if tokens else -1
            token = int(torch.randint(0, self.vocabulary, (1,), generator=self.random))
            if (above, token) in seen:
                continue
            seen.add((above, token))
            parent.append(above), tokens.append(token), depth.append(1 if above < 0 else depth[above] + 1)
        return CandidateTree(
            torch.tensor(tokens), torch.tensor(parent), torch.tensor(depth), torch.full((size,), torch.nan)
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_tree_leaves_the_output_as_it_is(golden_pair, temperature):
    register("adversary")(Adversary)
    pair, prompt = golden_pair("dart_tiny").to(torch.float64), torch.tensor([47, 75, 4])
    for seed in range(3):
        options = {"max_new_tokens": 30, "temperature": temperature, "seed": seed, "stop_token_ids": []}
        plain = cast.generate(pair, prompt, "autoregressive", **options)
        out = cast.generate(pair, prompt, "adversary", **options)
        assert out.tokens.tolist() == plain.tokens.tolist()
