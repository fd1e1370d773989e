"""Train a DFlash, EAGLE-3 or DART head for any supported target: write data, train, evaluate, export.

    python scripts/train_drafter.py                                         # all stages, our own head
    python scripts/train_drafter.py stage=generate 'generate.worker=[0,2]'  # one of two generating processes
    python scripts/train_drafter.py stage=evaluate export_to=<folder of a head>
    python scripts/train_drafter.py name=qwen3-4b target.source=Qwen/Qwen3-4B target.name=qwen3_4b \\
        head.layers=5 head.mask_token_id=151669 device=cuda

Stages share the folder `out`: `data/` and `held_out/` hold shards, `checkpoint.pt` the state of training, `curve.csv`
and `evaluation.csv` the learning curve. Its evaluations are on training prompts kept out of training, and choose the
exported snapshot; the prompts of `held_out` serve the evaluate stage alone. Every stage continues where an
interrupted one stopped.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console
from rich.progress import Progress

from cast.errors import CastError
from cast.experiments.device import resolve_kind
from cast.experiments.prompts import Prompt, load_prompts
from jobs import pairs, schema, tracking
from jobs.entry import run

DOMAINS = Path(__file__).resolve().parents[1] / "conf" / "domain"


class Stage(StrEnum):
    generate = "generate"
    train = "train"
    evaluate = "evaluate"
    export = "export"
    all = "all"


@dataclass
class TrainDrafter:
    """The root's types; the recipe's dataclasses are those of `head`, `generate` and `training`."""

    name: str = MISSING
    stage: Stage = MISSING
    target: schema.Target = MISSING
    device: schema.Device = MISSING
    tracking: schema.Tracking = MISSING
    dtype: schema.DType = MISSING
    head: dict[str, Any] = MISSING
    generate: dict[str, Any] = MISSING
    training: dict[str, Any] = MISSING
    out: str = MISSING
    export_to: str = MISSING
    grow: bool = False
    pause_file: str | None = None
    seed: int = 0
    data: schema.Data = field(default_factory=schema.Data)
    avoid: list[str] = MISSING
    held_out: list[str] = MISSING
    held_out_limit: int = MISSING


class Training:
    """One run of the script: the configuration, typed, and the loaded target."""

    def __init__(self, config: DictConfig):
        self.config = config
        self.kind = resolve_kind(config.device.kind.value)
        if config.device.threads < 1:
            raise CastError(f"device.threads must be 1 or more, not {config.device.threads}")
        pairs.set_threads(config.device.threads)
        from cast.training.specs import DataSpec, HeadSpec, TrainSpec

        self.head = _typed(HeadSpec(), config.head)
        self.data = _typed(DataSpec(seed=config.seed), config.generate)
        self.training = _typed(TrainSpec(), config.training)
        self.avoid = [prompt.text for prompt in _prompts(config, config.avoid, raw=True)]
        self.held_out = _prompts(config, config.held_out, limit=config.held_out_limit)
        if not self.held_out:
            raise CastError("held_out is empty; name domains whose prompts the finished head is evaluated on")
        self.out, self.export_to = Path(config.out), Path(config.export_to)
        self.tick = _pause_while(config.pause_file)
        self.target, self.tokenizer = _target(config, self.kind)

    def check_head(self) -> None:
        from cast.training.recipe import check_head

        check_head(self.training, self.head, self.target)

    def generate_data(self) -> None:
        from cast.training.data import training_prompts

        folder = self.out / "data"
        prompts = training_prompts(self.data, self.target, self.tokenizer, folder, self.avoid, self.tick)
        self._write_shards("training data", self.data, prompts, folder)

    def generate_held_out(self) -> None:
        from cast.training.prompts import TrainingPrompt

        prompts = [TrainingPrompt(prompt.id, prompt.domain, prompt.text) for prompt in self.held_out]
        spec = dataclasses.replace(self.data, worker=(0, 1), branches=1)
        self._write_shards("held-out data", spec, prompts, self.out / "held_out")

    def _write_shards(self, what: str, spec: Any, prompts: Iterable[Any], folder: Path) -> None:
        from cast.training.data import generate_data

        shards = generate_data(spec, self.head, self.target, self.tokenizer, prompts, folder, self.tick)
        for shard in shards:
            speed = f"{shard['new_tokens']} tokens at {shard['tokens_per_second']:.0f} a second"
            print(f"{what}: {shard['shard']}, {speed}", flush=True)

    def train(self) -> None:
        from cast.training.recipe import train

        # On a CPU the parts of a step run side by side, one thread each.
        pairs.set_threads(1 if self.kind == "cpu" else self.config.device.threads)
        steps, console = self.training.steps, Console(highlight=False, soft_wrap=True)
        with Progress(*Progress.get_default_columns(), "{task.completed}/{task.total}", console=console) as bar:
            task = bar.add_task("training", total=steps)

            def show(row: dict[str, Any]) -> None:
                if "domain" in row:
                    bar.print(f"step {row['step']}: {_in_words(row)}")
                    return
                bar.update(task, completed=row["step"], description=f"loss {row['smooth_loss']:.3f}")
                if not console.is_terminal:
                    left = row["seconds"] / row["step"] * (steps - row["step"])
                    told = f"loss {row['smooth_loss']:.3f}, about {left / 60:.0f} minutes left"
                    bar.print(f"step {row['step']}/{steps}: {told}")

            trainer = train(
                self.training,
                self.head,
                self.target,
                self.out / "data",
                self.out,
                export_to=self.export_to,
                grow=self.config.grow,
                tick=self.tick,
                on_log=show,
            )
        _track(self.config, self.out, trainer.seconds)

    def evaluate(self) -> None:
        from cast.models.loading import load_drafter
        from cast.training.batches import load_sequences
        from cast.training.recipe import evaluate

        drafter = load_drafter(self.export_to, device=self.kind, dtype=self.config.dtype.value)
        drafter.check_fits(self.target.config)
        pairs.set_threads(1 if self.kind == "cpu" else self.config.device.threads)
        held_out = load_sequences(self.out / "held_out")
        for row in evaluate(drafter, self.target, held_out, tick=self.tick):
            print(_in_words(row))


def train_drafter(config: DictConfig) -> None:
    if config.stage is Stage.export:
        from cast.training.recipe import export_checkpoint

        export_checkpoint(Path(config.out), Path(config.export_to))
        return
    job, every = Training(config), config.stage is Stage.all
    if every or config.stage in (Stage.generate, Stage.train):
        job.check_head()
    if every or config.stage is Stage.generate:
        job.generate_data()
    if job.data.worker[0] == 0:
        job.generate_held_out()  # does nothing where it is complete
    if every or config.stage is Stage.train:
        job.train()
    if every or config.stage is Stage.evaluate:
        job.evaluate()


def _pause_while(path: str | None) -> Callable[[], None]:
    """A function that sleeps as long as a file exists, so that a background run can be paused from outside."""

    def tick() -> None:
        while path and os.path.exists(path):
            time.sleep(1)

    return tick


def _typed(defaults: Any, values: DictConfig) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(defaults), values))


def _prompts(config: DictConfig, names: list[str], *, limit: int | None = None, raw: bool = False) -> list[Prompt]:
    """Prompts of some domains; raw: without the instruction around them, which training prompts may share."""
    prompts = []
    for name in names:
        path = DOMAINS / f"{name}.yaml"
        if not path.exists():
            known = ", ".join(sorted(path.stem for path in DOMAINS.glob("*.yaml")))
            raise CastError(f"unknown domain {name!r}; known: {known}")
        domain = OmegaConf.to_container(OmegaConf.load(path))
        if raw:
            domain["template"] = "{text}"
        prompts += load_prompts(domain, limit=limit, data_root=config.data.root)
    return prompts


def _target(config: DictConfig, kind: str) -> tuple[Any, Any]:
    from transformers.utils import logging

    from cast.models.embedded import embedded_target
    from cast.models.loading import load_pair

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    source = embedded_target() if config.target.source == "embedded" else config.target.source
    pair = load_pair(source, device=kind, dtype=config.dtype.value, revision=config.target.revision)
    return pair.target, pair.tokenizer


def _in_words(row: dict[str, Any]) -> str:
    where = f"{row['domain']} ({row['repeats']}, {row['sequences']} outputs, {row['rounds']} rounds)"
    reached = f"R chain {row['r_chain']:.2f}, universe {row['r_universe']:.2f}"
    depth_1 = f"depth-1 accuracy {row['accuracy']:.2f} at confidence {row['confidence']:.2f}"
    return f"{where}: {reached}, {depth_1}, calibration error {row['ece']:.3f}"


def _track(config: DictConfig, out: Path, seconds: float) -> None:
    """The finished learning curve as one W&B run, if tracking is on."""

    def log(chosen: DictConfig) -> None:
        import pandas as pd
        import wandb

        with wandb.init(
            project=chosen.tracking.project,
            entity=chosen.tracking.entity,
            mode=chosen.tracking.mode.value,
            dir=str(out),
            name=chosen.name,
            job_type="train_drafter",
            config=OmegaConf.to_container(chosen, resolve=True, enum_to_str=True),
        ) as tracked:
            for row in pd.read_csv(out / "curve.csv").to_dict("records"):
                tracked.log(row, step=row["step"])
            tracked.summary["train_seconds"] = seconds

    tracking.guarded(config, log)


if __name__ == "__main__":
    ConfigStore.instance().store(name="train_drafter_schema", node=TrainDrafter)
    run(train_drafter, config_name="train_drafter")
