"""Prompts cut to their first tokens, and the long domain made of Python's own help topics."""

from pathlib import Path

import pytest
import yaml

from cast.experiments.prompts import encode, load_prompts
from cast.models.random_models import ByteTokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def longdoc():
    return yaml.safe_load((ROOT / "conf" / "domain" / "longdoc.yaml").read_text())


def file_domain(folder, text, **changes):
    path = folder / "long.jsonl"
    path.write_text(f'{{"id": 0, "prompt": "{text}"}}\n', encoding="utf-8")
    return {"name": "toy", "source": "file", "path": str(path), "field": "prompt", "template": "<{text}>"} | changes


@pytest.mark.parametrize(
    ("cut", "expected"), [(None, "<abcdé fgh>"), (99, "<abcdé fgh>"), (3, "<abc>"), (5, "<abcd>"), (6, "<abcdé>")]
)
def test_only_the_first_tokens_of_a_text_enter_the_template(tmp_path, cut, expected):
    """Tokens are bytes here, and é has two: a cut between them leaves it out."""
    (prompt,) = load_prompts(file_domain(tmp_path, "abcdé fgh", cut_tokens=cut))
    assert prompt.text == "<abcdé fgh>"
    assert bytes(encode(ByteTokenizer(), prompt).tolist()).decode() == expected


def test_the_manual_gives_long_texts_that_differ_and_stay_the_same(longdoc):
    prompts = load_prompts(longdoc)
    assert prompts == load_prompts(longdoc)
    assert len(prompts) >= 15
    assert [prompt.id for prompt in prompts[:2]] == ["longdoc/000", "longdoc/001"]
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert all(longdoc["characters"] <= len(prompt.cut.text) < 2 * longdoc["characters"] for prompt in prompts)
    before, after = longdoc["template"].split("{text}")
    for prompt in prompts[:3]:
        ids = encode(ByteTokenizer(), prompt)
        kept = prompt.cut.text.encode()[: longdoc["cut_tokens"]].decode(errors="ignore")
        assert bytes(ids.tolist()).decode() == before + kept + after
