"""Training prompts: our templates, prompts from files, and the filter that keeps evaluation prompts out."""

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from cast.errors import CastError
from cast.training.chat_prompts import chat_prompt
from cast.training.code_prompts import code_prompt
from cast.training.math_prompts import math_prompt

TEMPLATES: dict[str, Callable[[random.Random], str]] = {
    "math": math_prompt,
    "code": code_prompt,
    "chat": chat_prompt,
}
NGRAM = 13  # words; the usual contamination unit of language-model evaluations


@dataclass(frozen=True)
class TrainingPrompt:
    """One user turn the target answers, with the domain its statistics are kept under."""

    id: str
    domain: str
    text: str

    as_dict = asdict


def ngrams(text: str, n: int = NGRAM) -> set[tuple[str, ...]]:
    """The lower-cased word n-grams of `text`; a word is a run of letters, digits and underscores."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


class Contamination:
    """Says whether a text shares a 13-gram of words with any evaluation prompt."""

    def __init__(self, evaluation_texts: Iterable[str], n: int = NGRAM):
        self.n = n
        self.seen: set[tuple[str, ...]] = set()
        for text in evaluation_texts:
            self.seen |= ngrams(text, n)

    def __call__(self, text: str) -> bool:
        return not self.seen.isdisjoint(ngrams(text, self.n))


def template_prompts(count: int, seed: int, domains: Iterable[str] = tuple(TEMPLATES)) -> Iterator[TrainingPrompt]:
    """`count` distinct prompts, the domains taking turns so that every prefix of the sequence is balanced.

    The same seed gives the same sequence, and a longer sequence begins with the shorter one.
    """
    domains = tuple(domains)
    generators = {domain: random.Random(f"{seed}/{domain}") for domain in domains}
    seen: set[str] = set()
    for index in range(count):
        domain = domains[index % len(domains)]
        for _ in range(1000):
            text = TEMPLATES[domain](generators[domain])
            if text not in seen:
                break
        else:
            raise CastError(f"the {domain} templates gave no new prompt after {len(seen)}; ask for fewer prompts")
        seen.add(text)
        yield TrainingPrompt(f"{domain}-{seed}-{index}", domain, text)


def in_validation(prompt: dict, share: float) -> bool:
    """Whether a training prompt's outputs are kept out of training to choose snapshots by.

    A hash of the text decides, so that all outputs of a prompt fall on one side, in any order and amount of data.
    Template prompts always train: the same template with other fillings would be on both sides.

    Args:
        prompt: as `TrainingPrompt.as_dict` gives it.
        share: of the other prompts that are kept out.
    """
    if prompt.get("id", "").startswith(tuple(TEMPLATES)):
        return False
    digest = hashlib.sha256(prompt.get("text", "").encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
