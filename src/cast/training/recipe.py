"""The stages of training a head, over plain settings: generate, train, evaluate, export."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cast.errors import CastError
from cast.models.target import Target
from cast.training.batches import Batches, BatchSpec, load_sequences
from cast.training.evaluate import Replay, replay, summarise
from cast.training.export import export_head
from cast.training.generate import generate, sampled_user_turns
from cast.training.initial import head_config, initial_drafter
from cast.training.prompts import Contamination, TrainingPrompt, template_prompts
from cast.training.shards import Sequence
from cast.training.trainer import Schedule, Trainer, append_csv


@dataclass
class HeadSpec:
    """Shape of the head: layers, tapped target layers, B, the id behind the masked slots, MLP width (None:
    the target's).
    """

    layers: int = 3
    taps: int = 5
    block_size: int = 16
    mask_token_id: int = 16
    intermediate_size: int | None = None


@dataclass
class DataSpec:
    """What to generate.

    Attributes:
        templates: prompts from our templates, domains taking turns.
        self_written: user turns sampled from the target (attempts; some are dropped).
        files: JSON-lines files of further prompts, each with `path`, `field` and `domain`.
        worker: (k, n), this process writes every n-th shard, starting with the k-th.
    """

    templates: int = 6000
    self_written: int = 1600
    files: list[dict[str, str]] = field(default_factory=list)
    batch_size: int = 96
    max_new_tokens: int = 128
    soft_labels: int = 8
    seed: int = 0
    worker: tuple[int, int] = (0, 1)


@dataclass
class TrainSpec:
    """How to train.

    Attributes:
        short_share, short_block: the first share of the steps uses blocks of `short_block` slots. Near
            positions decide R, so they are learnt first, at half the cost a block.
        parts: batches per step (see `Trainer`).
        data_share: share of the training sequences that is used, the first ones.
        max_repeat_share: sequences whose 8-grams repeat more than this are left out.
    """

    steps: int = 6000
    learning_rate: float = 1e-3
    warm_up: float = 0.04
    weight_decay: float = 0.01
    gradient_norm: float = 1.0
    soft_share: float = 0.5
    short_share: float = 0.8
    short_block: int = 6
    parts: int = 2
    data_share: float = 1.0
    max_repeat_share: float = 0.5
    evaluate_every: int = 1000
    evaluate_sequences: int = 60
    checkpoint_every: int = 200
    batch: BatchSpec = field(default_factory=BatchSpec)


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
    contaminated = Contamination(avoid)

    def candidates() -> Iterator[TrainingPrompt]:
        yield from template_prompts(spec.templates, spec.seed)
        for source in spec.files:
            for index, line in enumerate(Path(source["path"]).read_text(encoding="utf-8").splitlines()):
                yield TrainingPrompt(
                    f"{source['domain']}-file-{index}", source["domain"], json.loads(line)[source["field"]]
                )
        for batch in range(-(-spec.self_written // spec.batch_size)):
            path = folder / "self_written" / f"{spec.seed}-{batch:04d}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                texts = sampled_user_turns(
                    target, tokenizer, spec.batch_size, seed=spec.seed * 100_003 + batch, tick=tick
                )
                path.write_text(json.dumps(texts), encoding="utf-8")
            for index, text in enumerate(json.loads(path.read_text(encoding="utf-8"))):
                yield TrainingPrompt(f"self-{batch}-{index}", "self", text)

    seen = set()
    for prompt in candidates():
        if prompt.text not in seen and not contaminated(prompt.text):
            seen.add(prompt.text)
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
        CastError: the target has no chat template to prompt it with.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise CastError("the target has no chat template, so it cannot be prompted; use a checkpoint with one")
    taps = tuple(_raw_config(head, target)["dflash_config"]["target_layer_ids"])
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
        tick=tick,
    )


def train(
    spec: TrainSpec,
    head: HeadSpec,
    target: Target,
    data: Path,
    held_out: Path | None,
    out: Path,
    *,
    export_to: Path | None = None,
    grow: bool = False,
    tick: Callable[[], None] = lambda: None,
    on_log: Callable[[dict], None] = lambda _: None,
) -> Trainer:
    """Train a head, or go on from the checkpoint in `out`.

    Args:
        data, held_out: folders of shards.
        export_to: where the head is written whenever the held-out evaluation improves.
        grow: on resuming, take in shards written since the run began (the curve is then no longer the one an
            uninterrupted run would have given).
        on_log: receives the rows of the learning curve and, with a key `domain`, of the evaluations.
    """
    sequences = load_sequences(data, _shard_count(data, out, grow), spec.max_repeat_share)
    sequences = sequences[: max(1, round(spec.data_share * len(sequences)))]
    raw = _raw_config(head, target)
    sample = [s.tokens.long().to(target.device) for s in sequences[:16]]
    trainer = Trainer(
        target,
        raw,
        initial_drafter(target, raw, sample).state_dict(),
        out,
        soft_share=spec.soft_share,
        weight_decay=spec.weight_decay,
        gradient_norm=spec.gradient_norm,
        parts=spec.parts,
    )
    trainer.resume()
    schedule = Schedule(spec.steps, spec.learning_rate, spec.warm_up)
    whole = Batches(sequences, replace(spec.batch, block_size=head.block_size), target.vocab_size)
    short = Batches(
        sequences, replace(spec.batch, block_size=min(spec.short_block, head.block_size)), target.vocab_size
    )
    switch = round(spec.short_share * spec.steps)
    judged = _spread(load_sequences(held_out), spec.evaluate_sequences) if held_out else []
    best = float("-inf")
    while trainer.step < spec.steps:
        batches, stage_end = (short, switch) if trainer.step < switch else (whole, spec.steps)
        until = min(stage_end, (trainer.step // spec.evaluate_every + 1) * spec.evaluate_every)
        trainer.run(batches, schedule, until=until, checkpoint_every=spec.checkpoint_every, tick=tick, on_log=on_log)
        if judged and (until % spec.evaluate_every == 0 or until == spec.steps):
            rows = [{"step": trainer.step, **row} for row in evaluate(trainer.drafter, target, judged, tick=tick)]
            append_csv(out / "evaluation.csv", rows)
            for row in rows:
                on_log(row)
            score = rows[-1]["r_chain"] + rows[-1]["r_universe"]
            if export_to and score > best:
                best = score
                export_head(export_to, raw, trainer.masters)
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
    with ThreadPoolExecutor(threads if target.device.type == "cpu" else 1) as pool:
        replays: list[Replay | None] = list(pool.map(lambda s: replay(drafter, target, s, tick=tick), sequences))
    return summarise([item for item in replays if item is not None])


def _raw_config(head: HeadSpec, target: Target) -> dict:
    return head_config(
        target,
        layers=head.layers,
        taps=head.taps,
        block_size=head.block_size,
        mask_token_id=head.mask_token_id,
        intermediate_size=head.intermediate_size,
    )


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
    share = max(1, count // len(by_domain))
    return [s for group in by_domain.values() for s in group[:share]]


def export_checkpoint(out: Path, folder: Path) -> None:
    """Write the head of the checkpoint in `out`.

    Raises:
        CastError: there is no checkpoint.
    """
    path = Path(out) / "checkpoint.pt"
    if not path.exists():
        raise CastError(f"no checkpoint in {out}; run the train stage first")
    state = torch.load(path, map_location="cpu", weights_only=True)
    export_head(folder, state["raw_config"], state["masters"])
