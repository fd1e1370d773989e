"""The first stage of training a head: prompts from every source, and the target's outputs to them in shards."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cast.errors import CastError
from cast.models.dflash import default_target_layers
from cast.models.target import Target
from cast.training.generate import generate
from cast.training.library_prompts import library_prompts
from cast.training.prompts import Contamination, TrainingPrompt, template_prompts
from cast.training.self_written import common_words, opening, sampled_user_turns
from cast.training.specs import DataSpec, HeadSpec


def training_prompts(
    spec: DataSpec,
    target: Target,
    tokenizer,
    folder: Path,
    avoid: Iterable[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> Iterator[TrainingPrompt]:
    """All prompts of a data set; self-written turns are kept on disk once sampled.

    Args:
        avoid: texts of evaluation prompts; a prompt that shares a 13-gram of words with one is dropped.
    """
    contaminated, seen = Contamination(avoid), set()
    sources = [
        (spec.templates, template_prompts(spec.templates, spec.seed)),
        (spec.library, library_prompts(spec.library, spec.seed)),
        (spec.self_written * 3 // 4, _self_written(spec, target, tokenizer, folder, tick)),
        *map(_from_file, spec.files),
    ]
    for prompt in interleave(sources):
        if prompt.text not in seen and not contaminated(prompt.text):
            seen.add(prompt.text)
            yield prompt


def interleave(sources: Iterable[tuple[int, Iterator[TrainingPrompt]]]) -> Iterator[TrainingPrompt]:
    """All prompts of (about how many, prompts) pairs, each source spread evenly, so that every part of the data has
    the mixture of the whole.
    """
    heap = [(1 / count, index, count, prompts) for index, (count, prompts) in enumerate(sources) if count]
    heapq.heapify(heap)
    while heap:
        due, index, count, prompts = heap[0]
        prompt = next(prompts, None)
        if prompt is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (due + 1 / count, index, count, prompts))
            yield prompt


def generate_data(
    spec: DataSpec,
    head: HeadSpec,
    target: Target,
    tokenizer,
    prompts: Iterable[TrainingPrompt],
    folder: Path,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[dict]:
    """Continue prompts and write the shards; yields one progress record per shard.

    Raises:
        CastError: the target has no chat template to prompt it with, or fewer tokens than soft labels.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise CastError("the target has no chat template, so it cannot be prompted; use a checkpoint with one")
    if spec.soft_labels > target.vocab_size:
        raise CastError(
            f"generate.soft_labels {spec.soft_labels} exceed the target's {target.vocab_size} tokens; lower it"
        )
    taps = tuple(default_target_layers(target.layers, head.taps))
    yield from generate(
        target,
        tokenizer,
        prompts,
        folder,
        taps=taps,
        batch_size=spec.batch_size,
        max_new_tokens=spec.max_new_tokens,
        soft_labels=spec.soft_labels,
        worker=spec.worker,
        branches=spec.branches,
        seed=spec.seed,
        tick=tick,
    )


def _from_file(source: dict[str, str]) -> tuple[int, Iterator[TrainingPrompt]]:
    try:
        path, name, domain = (source[key] for key in ("path", "field", "domain"))
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        texts = [json.loads(line)[name] for line in lines if line.strip()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a prompt must be a string")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CastError(
            f"generate.files: {source} cannot be read ({type(error).__name__}: {error}); each is {{path, field, "
            "domain}} of a file with one JSON object a line, whose field holds the prompt"
        ) from None
    return len(texts), (TrainingPrompt(f"file-{index}", domain, text) for index, text in enumerate(texts))


def _self_written(spec: DataSpec, target: Target, tokenizer, folder: Path, tick) -> Iterator[TrainingPrompt]:
    for batch in range(-(-spec.self_written // spec.batch_size)):
        path = folder / "self_written" / f"{spec.seed}-{batch:04d}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            rng, words = random.Random(f"{spec.seed}/{batch}"), common_words(tokenizer)
            openings = [opening(rng, words) for _ in range(spec.batch_size)]
            turns = sampled_user_turns(target, tokenizer, openings, spec.seed * 100_003 + batch, tick=tick)
            path.write_text(json.dumps(turns), encoding="utf-8")
        for index, (domain, text) in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            yield TrainingPrompt(f"self-{batch}-{index}", domain, text)
