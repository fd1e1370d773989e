"""The stages of training a head, over plain settings: generate, train, evaluate, export."""

from __future__ import annotations

import csv
import heapq
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cast.errors import CastError
from cast.models.dflash import default_target_layers
from cast.models.drafters import new_head
from cast.models.feature_head import FeatureHead
from cast.models.head import DraftHead
from cast.models.loading import load_drafter
from cast.models.target import Target
from cast.training.batches import Batches, BatchSpec, MixedBatches, load_sequences, token_counts
from cast.training.evaluate import LOOPING, Replay, replay, summarise
from cast.training.export import export_head
from cast.training.generate import generate
from cast.training.initial import check_start, head_config, initial_drafter
from cast.training.initial_features import KINDS, feature_head_config, initial_feature_head
from cast.training.library_prompts import library_prompts
from cast.training.prompts import Contamination, TrainingPrompt, in_validation, template_prompts
from cast.training.ranges import check_ranges
from cast.training.self_written import common_words, opening, sampled_user_turns
from cast.training.shards import Sequence
from cast.training.trainer import Schedule, Trainer, append_csv, read_checkpoint

ANY, SOME, SHARE = (0, math.inf), (1, math.inf), (0, 1)


@dataclass
class HeadSpec:
    """Kind and shape of the head.

    Attributes:
        kind: dflash, eagle3 or dart.
        layers: of a DFlash head; the others have one.
        taps: target layers the data hold features of, evenly spaced. A DFlash head reads them all, the others the
            first, the middle and the last.
        block_size: B, one more than the positions a draft is trained on; of EAGLE-3, one more than its draft steps.
        mask_token_id: the id behind a DFlash head's masked slots.
        intermediate_size: MLP width; None: the target's.
        draft_vocab_size: of EAGLE-3 and DART heads, the most frequent tokens of the target's outputs.
    """

    kind: str = "dflash"
    layers: int = 3
    taps: int = 5
    block_size: int = 16
    mask_token_id: int = 16
    intermediate_size: int | None = None
    draft_vocab_size: int = 4096

    def __post_init__(self):
        sizes = dict.fromkeys(("layers", "taps", "intermediate_size", "draft_vocab_size"), SOME)
        check_ranges("head", self, **sizes, block_size=(2, math.inf), mask_token_id=ANY)


@dataclass
class DataSpec:
    """What to generate.

    Attributes:
        templates: prompts from our templates, domains taking turns.
        library: prompts about functions of the Python standard library (fewer where it has fewer).
        self_written: user turns the target writes behind varied openings (attempts; some are dropped).
        files: JSON-lines files of further prompts, each with `path`, `field` and `domain`.
        branches: outputs of each prompt (see `cast.training.generate.greedy_batch`).
        worker: (k, n), this process writes every n-th shard, starting with the k-th.
    """

    templates: int = 2000
    library: int = 2000
    self_written: int = 12000
    files: list[dict[str, str]] = field(default_factory=list)
    branches: int = 2
    batch_size: int = 96
    max_new_tokens: int = 128
    soft_labels: int = 8
    seed: int = 0
    worker: tuple[int, int] = (0, 1)

    def __post_init__(self):
        counts = dict.fromkeys(("templates", "library", "self_written", "soft_labels", "seed"), ANY)
        check_ranges("generate", self, **counts, branches=SOME, batch_size=SOME, max_new_tokens=SOME)
        if len(self.worker) != 2 or not 0 <= self.worker[0] < self.worker[1]:
            raise CastError(
                f"generate.worker {list(self.worker)} is none; of n processes they are [0, n] to [n - 1, n]"
            )
        if not (self.templates or self.library or self.self_written or self.files):
            raise CastError("generate names no prompts; raise templates, library or self_written, or give files")


@dataclass
class TrainSpec:
    """How to train.

    Attributes:
        short_share, short_block: this share of the steps uses blocks of `short_block` slots, the others, spread
            evenly among them, whole blocks, half as many. Near positions decide R, and short blocks teach them cheaply.
        parts: batches per step (see `Trainer`).
        data_share: share of the training sequences that is used, evenly taken.
        max_repeat_share: sequences whose 8-grams repeat more than this are left out.
        validation_share: share of the prompts, templates aside, whose outputs choose the snapshot that is exported.
        validation_sequences: how many of those outputs, taken from the domains in turn.
        start_from: folder of a head whose weights training starts from; None: the target's last layers.
    """

    steps: int = 6000
    learning_rate: float = 1e-3
    warm_up: float = 0.04
    decay: float = 1.0
    weight_decay: float = 0.01
    gradient_norm: float = 1.0
    soft_share: float = 0.5
    short_share: float = 0.8
    short_block: int = 6
    parts: int = 2
    data_share: float = 1.0
    max_repeat_share: float = 0.5
    validation_share: float = 0.04
    validation_sequences: int = 90
    start_from: str | None = None
    evaluate_every: int = 1000
    checkpoint_every: int = 200
    batch: BatchSpec = field(default_factory=BatchSpec)

    def __post_init__(self):
        counts = ("steps", "parts", "validation_sequences", "evaluate_every", "checkpoint_every")
        shares = ("warm_up", "decay", "soft_share", "short_share", "max_repeat_share", "validation_share", "data_share")
        ranges = dict.fromkeys(counts, SOME) | dict.fromkeys(shares, SHARE)
        ranges |= {"short_block": (2, math.inf), "weight_decay": ANY, "learning_rate": ANY}
        check_ranges("training", self, ("gradient_norm", "data_share"), **ranges)


def pause_while(path: str | None) -> Callable[[], None]:
    """A function that sleeps as long as a file exists, so that a background run can be paused from
    outside.
    """

    def tick() -> None:
        while path and os.path.exists(path):
            time.sleep(1)

    return tick


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


def check_head(spec: TrainSpec, head: HeadSpec, target: Target) -> None:
    """Refuse a head that cannot be trained for a target, before hours of generating.

    Raises:
        CastError: a shape that does not fit the target, or no weights of that shape to begin with.
    """
    raw = _raw_config(head, target)
    if spec.start_from is None:
        check_start(target, head.layers if head.kind == "dflash" else 1, head.intermediate_size)
    else:
        _head_to_go_on_from(spec.start_from, raw)


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


def train(
    spec: TrainSpec,
    head: HeadSpec,
    target: Target,
    data: Path,
    out: Path,
    *,
    export_to: Path | None = None,
    grow: bool = False,
    tick: Callable[[], None] = lambda: None,
    on_log: Callable[[dict], None] = lambda _: None,
) -> Trainer:
    """Train a head, or go on from the checkpoint in `out`.

    Args:
        data: folder of shards.
        export_to: where the head is written whenever it is better than before on the validation outputs.
        grow: on resuming, take in shards written since the run began (the curve is then no longer the one an
            uninterrupted run would have given).
        on_log: receives the rows of the learning curve and, with a key `domain`, of the evaluations.
    """
    every = load_sequences(data, _shard_count(data, out, grow), spec.max_repeat_share)
    kept_out = [in_validation(s.prompt or {}, spec.validation_share) for s in every]
    sequences = [s for s, out_of_training in zip(every, kept_out, strict=True) if not out_of_training]
    sequences = [sequences[int(n / spec.data_share)] for n in range(max(1, int(spec.data_share * len(sequences))))]
    judged = [s for s, out_of_training in zip(every, kept_out, strict=True) if out_of_training]
    judged = _spread([s for s in judged if s.repeat_share() < LOOPING], spec.validation_sequences)
    raw = _raw_config(head, target)
    columns = feature_columns(new_head(raw), target, sequences[0])
    trainer = Trainer(
        target,
        raw,
        _initial_weights(spec, target, raw, sequences),
        out,
        soft_share=spec.soft_share,
        weight_decay=spec.weight_decay,
        gradient_norm=spec.gradient_norm,
        parts=spec.parts,
        feature_scale=feature_scale(sequences[:: max(1, len(sequences) // 64)])[columns],
    )
    trainer.resume()
    schedule = Schedule(spec.steps, spec.learning_rate, spec.warm_up, spec.decay)
    batches = MixedBatches(
        Batches(
            sequences,
            replace(spec.batch, block_size=min(spec.short_block, head.block_size)),
            target.vocab_size,
            columns,
        ),
        Batches(
            sequences,
            replace(spec.batch, block_size=head.block_size, anchors=-(-spec.batch.anchors // 2)),
            target.vocab_size,
            columns,
        ),
        spec.short_share,
        spec.parts,
    )
    best = best_score(out / "evaluation.csv")
    while trainer.step < spec.steps:
        until = min(spec.steps, (trainer.step // spec.evaluate_every + 1) * spec.evaluate_every)
        trainer.run(batches, schedule, until=until, checkpoint_every=spec.checkpoint_every, tick=tick, on_log=on_log)
        if judged and (until % spec.evaluate_every == 0 or until == spec.steps):
            rows = [{"step": trainer.step, **row} for row in evaluate(trainer.drafter, target, judged, tick=tick)]
            append_csv(out / "evaluation.csv", rows)
            for row in rows:
                on_log(row)
            score = rows[-1]["r_chain"] + rows[-1]["r_universe"]
            if export_to and score > best:
                best = score
                export_head(export_to, raw, trainer.weights())
    return trainer


def evaluate(
    drafter,
    target: Target,
    sequences: list[Sequence],
    threads: int = 2,
    tick: Callable[[], None] = lambda: None,
) -> list[dict]:
    """Replay sequences and summarise them, the last row being the mean over domains without looping
    outputs.
    """
    if sequences:
        columns = feature_columns(drafter, target, sequences[0])
        sequences = [replace(s, features=s.features[:, columns]) for s in sequences]
    with ThreadPoolExecutor(threads if target.device.type == "cpu" else 1) as pool:
        replays: list[Replay | None] = list(pool.map(lambda s: replay(drafter, target, s, tick=tick), sequences))
    return summarise([item for item in replays if item is not None])


def feature_columns(drafter: DraftHead, target: Target, sequence: Sequence) -> torch.Tensor | slice:
    """Columns of the stored features that a head reads; the data's layers are evenly spaced.

    Raises:
        CastError: the data lack one of its layers.
    """
    if not isinstance(drafter, FeatureHead):
        return slice(None)  # the data were generated with its layers
    size = target.hidden_size
    stored = default_target_layers(target.layers, sequence.features.shape[1] // size)
    wanted = drafter.tapped_layers(target.layers)
    if missing := set(wanted) - set(stored):
        raise CastError(f"the data hold the target's layers {stored}, not {min(missing)}, which the head reads")
    return torch.cat([torch.arange(size) + stored.index(layer) * size for layer in wanted])


def _raw_config(head: HeadSpec, target: Target) -> dict:
    if head.kind in KINDS:
        stored = default_target_layers(target.layers, head.taps)
        return feature_head_config(
            target,
            head.kind,
            taps=[stored[0], stored[len(stored) // 2], stored[-1]],
            draft_vocab_size=head.draft_vocab_size,
            block_size=head.block_size,
            intermediate_size=head.intermediate_size,
        )
    if head.kind != "dflash":
        raise CastError(f"unknown head.kind {head.kind!r}; use dflash, {' or '.join(KINDS)}")
    return head_config(
        target,
        layers=head.layers,
        taps=head.taps,
        block_size=head.block_size,
        mask_token_id=head.mask_token_id,
        intermediate_size=head.intermediate_size,
    )


def _initial_weights(spec: TrainSpec, target: Target, raw: dict, sequences: list[Sequence]) -> dict[str, torch.Tensor]:
    """fp32 weights to begin with.

    Raises:
        CastError: `start_from` holds a head of another shape.
    """
    if spec.start_from is None:
        if raw.get("draft_vocab_size"):
            return initial_feature_head(target, raw, token_counts(sequences, target.vocab_size)).state_dict()
        sample = [s.tokens.long().to(target.device) for s in sequences[:16]]
        return initial_drafter(target, raw, sample).state_dict()
    return _head_to_go_on_from(spec.start_from, raw).state_dict()


def _head_to_go_on_from(source: str, raw: dict) -> DraftHead:
    drafter = load_drafter(source, device="cpu", dtype="float32")
    if drafter.config != new_head(raw).config:
        raise CastError(f"{source} holds a head of another shape; change `head` or leave start_from empty")
    return drafter


def feature_scale(sequences: list[Sequence]) -> torch.Tensor:
    """Root mean square of every feature channel over some sequences, float32 [taps * H].

    The first three positions are left out: their huge values ("attention sinks") would hide all others.
    """
    return torch.cat([s.features[3:] for s in sequences]).float().square().mean(0).sqrt().clamp(min=1e-3)


def best_score(path: Path) -> float:
    """The best sum of both R in the evaluations so far, so that a resumed run exports only what beats them."""
    if not path.exists():
        return float("-inf")
    with open(path, newline="", encoding="utf-8") as source:
        rows = [row for row in csv.DictReader(source) if row["domain"] == "mean"]
    return max((float(row["r_chain"]) + float(row["r_universe"]) for row in rows), default=float("-inf"))


def _shard_count(data: Path, out: Path, grow: bool) -> int:
    """How many shards the run trains on: those there when it began, so that a resumed run sees the same
    batches.
    """
    record = Path(out) / "data.json"
    if grow or not record.exists():
        count = len(list(Path(data).rglob("shard-*.safetensors")))
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"shards": count}) + "\n", encoding="utf-8")
    return json.loads(record.read_text(encoding="utf-8"))["shards"]


def _spread(sequences: list[Sequence], count: int) -> list[Sequence]:
    """At most `count` sequences, taken from all domains in turn."""
    by_domain: dict[str, list[Sequence]] = {}
    for s in sequences:
        by_domain.setdefault((s.prompt or {}).get("domain", ""), []).append(s)
    share = max(1, count // max(1, len(by_domain)))
    return [s for group in by_domain.values() for s in group[:share]]


def export_checkpoint(out: Path, folder: Path) -> None:
    """Write the head of the checkpoint in `out`.

    Raises:
        CastError: there is no checkpoint.
    """
    path = Path(out) / "checkpoint.pt"
    if not path.exists():
        raise CastError(f"no checkpoint in {out}; run the train stage first")
    state = read_checkpoint(path, "cpu")
    export_head(folder, state["raw_config"], state["weights"])
