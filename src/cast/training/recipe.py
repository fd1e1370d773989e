"""Training a head on generated data, over plain settings: train, evaluate, export."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from cast.errors import CastError
from cast.models.dflash import default_target_layers
from cast.models.drafters import new_head
from cast.models.feature_head import FeatureHead
from cast.models.head import DraftHead
from cast.models.loading import load_drafter
from cast.models.target import Target
from cast.training.batches import Batches, MixedBatches, load_sequences, token_counts
from cast.training.evaluate import LOOPING, Replay, replay, summarise
from cast.training.export import export_head
from cast.training.initial import check_start, head_config, initial_drafter
from cast.training.initial_features import KINDS, feature_head_config, initial_feature_head
from cast.training.prompts import in_validation
from cast.training.shards import Sequence
from cast.training.specs import HeadSpec, TrainSpec
from cast.training.trainer import Schedule, Trainer, append_csv, read_checkpoint


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
