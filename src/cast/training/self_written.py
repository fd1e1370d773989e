"""User turns the target writes itself, continued from varied openings at temperature 1."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cast.models.target import Target
from cast.training.batched import BatchedTarget
from cast.training.generate import sample
from cast.training.prompt_parts import parts

_PARTS, _MATH, _CODE = parts("self"), parts("math"), parts("code")
_KINDS = ("chat", "chat", "chat", "chat", "math", "math", "math", "code", "function", "function")
_DOCSTRING_END = '"""'


@dataclass(frozen=True)
class Opening:
    """The first words of a user turn.

    Attributes:
        domain: the turn's.
        text: what the target continues.
        form: what is done with the finished turn; a format string with {text}.
        ends_with: a string that ends the turn, besides the target's own stop tokens.
    """

    domain: str
    text: str
    form: str = "{text}"
    ends_with: str | None = None


@functools.cache
def common_words(tokenizer) -> tuple[str, ...]:
    """Lower-case words of four letters and more that are one token of the vocabulary."""
    pattern = re.compile(r"Ġ([a-z]{4,})")
    return tuple(sorted(m[1] for token in tokenizer.get_vocab() if (m := pattern.fullmatch(token))))


def opening(rng: random.Random, words: tuple[str, ...]) -> Opening:
    """A random opening; chat, mathematics and code at 4 : 3 : 3."""
    kind = rng.choice(_KINDS)
    if kind == "function":
        name = "_".join([rng.choice(_PARTS["function_verbs"]), *rng.sample(words, rng.randint(1, 2))])
        arguments, result = rng.choice(_PARTS["function_arguments"]), rng.choice(_PARTS["function_results"])
        header = "from typing import List\n\n\n" if "List[" in arguments + result else ""
        text = f"{header}def {name}({arguments}){result}:\n    {_DOCSTRING_END}"
        before, after = rng.choice(_CODE["wrappers"]).split("{code}")
        return Opening("code", before + text, "{text}\n" + after, _DOCSTRING_END)
    names = iter(rng.sample(_MATH["names"], 2))
    text = rng.choice(_PARTS[kind])
    text = re.sub("{name}", lambda _: next(names), text)
    text = re.sub("{n}", lambda _: str(rng.randint(2, 60)), text)
    text = re.sub("{word}", lambda _: rng.choice(words), text)
    text = re.sub("{Word}", lambda _: rng.choice(words).capitalize(), text)
    ending = rng.choice(_MATH["endings"]) if kind == "math" else ""
    return Opening(kind, text, "{text}" + ending.replace("{", "{{").replace("}", "}}"))


@torch.inference_mode()
def sampled_user_turns(
    target: Target,
    tokenizer,
    openings: list[Opening],
    seed: int,
    max_tokens: int = 64,
    tick: Callable[[], None] = lambda: None,
) -> list[tuple[str, str]]:
    """Turns sampled behind the chat template and an opening each: (domain, text).

    Turns that did not end within `max_tokens`, or are shorter than three words, are dropped, so fewer texts than
    openings may come back.
    """
    marker = "\x00"
    template = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False).split(marker)[0]
    prompts = [
        torch.tensor(tokenizer(template + start.text, add_special_tokens=False)["input_ids"]) for start in openings
    ]
    batch = BatchedTarget(target, prompts, max(map(len, prompts)) + max_tokens, ())
    generator = torch.Generator().manual_seed(seed)
    logits, _ = batch.prefill()
    live, rows = list(range(len(openings))), [[] for _ in openings]
    stop, closing = set(target.stop_token_ids), _tokens_with(tokenizer, _DOCSTRING_END)
    texts = []
    for step in range(max_tokens):
        choice = sample(logits.float(), generator)
        keep = []
        for index, (row, token) in enumerate(zip(live, choice.tolist(), strict=True)):
            start = openings[row]
            if token not in stop:
                rows[row].append(token)
            if token in stop or (start.ends_with and token in closing):
                text = start.text + tokenizer.decode(rows[row], skip_special_tokens=True)
                if start.ends_with:
                    if token in stop:
                        continue
                    text = text[: text.rindex(start.ends_with) + len(start.ends_with)]
                if len(text.split()) >= 3:
                    texts.append((start.domain, start.form.format(text=text.strip())))
            else:
                keep.append(index)
        live = [live[index] for index in keep]
        if not live or step + 1 == max_tokens:
            break
        kept = torch.tensor(keep, device=target.device)
        if len(keep) < len(choice):
            batch.keep(kept)
        tick()
        logits, _ = batch.step(choice[kept])
    return texts


@functools.cache
def _tokens_with(tokenizer, text: str) -> frozenset[int]:
    return frozenset(index for token, index in tokenizer.get_vocab().items() if text in token)
