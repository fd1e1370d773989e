"""The training loop: bf16 passes, fp32 master weights, checkpoints from which the same curve goes on."""

from __future__ import annotations

import csv
import math
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cast.errors import CastError
from cast.models.drafters import new_head
from cast.models.layers import dense
from cast.models.target import Target
from cast.training.batches import Batches, MixedBatches
from cast.training.objective import Batch
from cast.training.objectives import drafter_loss

REFERENCE_SIZE = 0.1  # root mean square of a matrix that learns at the schedule's own rate


@dataclass(frozen=True)
class Schedule:
    """Step count and learning rate: linear warm-up, a constant middle, and a cosine to a floor.

    Attributes:
        steps: of the whole run; the cosine ends there.
        learning_rate: at the peak, for a matrix of REFERENCE_SIZE.
        warm_up, decay: shares of the steps at the beginning and at the end; decay 1 falls right after the warm-up.
        floor: last learning rate, as a share of the peak.
    """

    steps: int
    learning_rate: float = 1e-3
    warm_up: float = 0.04
    decay: float = 1.0
    floor: float = 0.02

    def at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        start = max(warm, round((1 - self.decay) * self.steps))
        progress = min(1.0, max(0, step - start) / max(1, self.steps - start))
        return self.learning_rate * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


class Trainer:
    """Holds the head, its fp32 master weights and the optimiser.

    Args:
        target: lends embedding table and language-model head, both frozen.
        raw_config: the head's `config.json`.
        initial: fp32 state dict of a new head.
        folder: where the checkpoint and the learning curve live.
        feature_scale: root mean square of every feature channel, [taps * H], or None. `fc` then learns as if its
            inputs had unit size: early layers of a target are ten times smaller than late ones, and with one rate
            for all columns the head hardly ever reads them.
        parts: batches per step, whose gradients are averaged. On a CPU they run side by side, one thread
            each: with other work on the machine that keeps all cores busy, which one pass on many threads
                does not.
    """

    def __init__(
        self,
        target: Target,
        raw_config: dict,
        initial: dict[str, Tensor],
        folder: Path,
        *,
        soft_share: float = 0.5,
        weight_decay: float = 0.01,
        gradient_norm: float = 1.0,
        chunk: int = 512,
        parts: int = 1,
        feature_scale: Tensor | None = None,
    ):
        self.target, self.raw_config, self.folder = target, raw_config, Path(folder)
        self.soft_share, self.gradient_norm, self.chunk, self.parts = soft_share, gradient_norm, chunk, parts
        self.drafter = new_head(raw_config).to(target.device, target.dtype)
        self.drafter.load_state_dict(initial)
        self.masters = {
            name: initial[name].detach().clone().float().to(target.device)
            for name, _ in self.drafter.named_parameters()
        }
        self.feature_scale = None if feature_scale is None else feature_scale.float().to(target.device)
        if self.feature_scale is not None:
            self.masters["fc.weight"].mul_(self.feature_scale)
        for master in self.masters.values():
            master.grad = torch.zeros_like(master)
        # A step moves every matrix by the same share of its size. The layers come from a target with large
        # weights and `fc` reads features with large values: one rate starves the first or shakes the other.
        groups = [
            {
                "params": [m],
                "weight_decay": weight_decay,
                "scale": m.square().mean().sqrt().item() / REFERENCE_SIZE,
            }
            for m in self.masters.values()
            if m.ndim > 1
        ]
        norms = [m for m in self.masters.values() if m.ndim == 1]
        groups.append({"params": norms, "weight_decay": 0.0, "scale": 1.0})
        self.optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.step, self.seconds, self.smooth_loss = 0, 0.0, None
        self._lm_head = dense(target.lm_head)  # the loss takes rows of it
        self._pool = ThreadPoolExecutor(parts if target.device.type == "cpu" else 1)
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / "checkpoint.pt"

    def train_step(self, batches: Batches | MixedBatches, schedule: Schedule) -> float:
        """One optimiser step; returns its loss."""
        started = time.perf_counter()
        indices = range(self.step * self.parts, (self.step + 1) * self.parts)
        done = list(self._pool.map(self._gradients, [batches.at(index) for index in indices]))
        # Into the same buffers at every step: a new allocation of this size costs more than the sum.
        slopes = [master.grad for master in self.masters.values()]
        torch._foreach_copy_(slopes, done[0][1])
        for _, gradients in done[1:]:
            torch._foreach_add_(slopes, [gradient.float() for gradient in gradients])
        if self.feature_scale is not None:
            self.masters["fc.weight"].grad.div_(self.feature_scale)
        torch.nn.utils.clip_grad_norm_(self.masters.values(), self.gradient_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = schedule.at(self.step) * group["scale"]
        self.optimiser.step()
        self._publish()
        value = sum(loss for loss, _ in done)
        if not math.isfinite(value):
            raise CastError(f"the loss became {value} at step {self.step}; lower the learning rate")
        self.smooth_loss = value if self.smooth_loss is None else 0.98 * self.smooth_loss + 0.02 * value
        self.step += 1
        self.seconds += time.perf_counter() - started
        return value

    def weights(self) -> dict[str, Tensor]:
        """The head's state dict, weights in fp32."""
        weights = self.masters | dict(self.drafter.named_buffers())
        if self.feature_scale is not None:
            weights["fc.weight"] = self.masters["fc.weight"] / self.feature_scale
        return weights

    @torch.no_grad()
    def _publish(self) -> None:
        weights = self.weights()
        for name, parameter in self.drafter.named_parameters():
            parameter.copy_(weights[name])

    def _gradients(self, batch: Batch) -> tuple[float, tuple[Tensor, ...]]:
        loss, _ = drafter_loss(
            self.drafter,
            self.target.embedding,
            self._lm_head,
            batch.to(self.target.device),
            self.soft_share,
            self.chunk,
        )
        loss = loss / self.parts
        return loss.item(), torch.autograd.grad(loss, list(self.drafter.parameters()))

    def run(
        self,
        batches: Batches | MixedBatches,
        schedule: Schedule,
        *,
        until: int | None = None,
        checkpoint_every: int = 200,
        log_every: int = 20,
        tick: Callable[[], None] = lambda: None,
        on_log: Callable[[dict], None] = lambda _: None,
    ) -> None:
        """Train up to `until` (the schedule's end when None), writing checkpoints and the learning curve.

        Args:
            tick: called before every step; may sleep.
            on_log: receives each row of the learning curve.
        """
        end = schedule.steps if until is None else min(until, schedule.steps)
        while self.step < end:
            tick()
            loss = self.train_step(batches, schedule)
            if self.step % log_every == 0 or self.step == end:
                row = {
                    "step": self.step,
                    "seconds": round(self.seconds, 1),
                    "loss": round(loss, 4),
                    "smooth_loss": round(self.smooth_loss, 4),
                    "learning_rate": schedule.at(self.step - 1),
                }
                append_csv(self.folder / "curve.csv", [row])
                on_log(row)
            if self.step % checkpoint_every == 0 or self.step == end:
                self.save()

    def save(self) -> None:
        """Write the checkpoint; it replaces the last one only when complete."""
        state = {
            "masters": self.masters,
            "feature_scale": self.feature_scale,
            "weights": self.weights(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "smooth_loss": self.smooth_loss,
            "raw_config": self.raw_config,
        }
        partial = self.checkpoint_path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint_path)

    def resume(self) -> bool:
        """Continue from the checkpoint if there is one; curve rows written after it are forgotten.

        Raises:
            CastError: the checkpoint is another head's.
        """
        if not self.checkpoint_path.exists():
            return False
        state = read_checkpoint(self.checkpoint_path, self.target.device)
        if state["raw_config"] != self.raw_config:
            raise CastError(f"{self.checkpoint_path} holds a head of another shape; choose another output folder")
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        for name, buffer in self.drafter.named_buffers():  # the draft vocabulary, whatever data have joined since
            buffer.copy_(state["weights"][name])
        self.feature_scale = state["feature_scale"]
        self._publish()
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds, self.smooth_loss = state["step"], state["seconds"], state["smooth_loss"]
        truncate_csv(self.folder / "curve.csv", self.step)
        truncate_csv(self.folder / "evaluation.csv", self.step)
        return True


def append_csv(path: Path, rows: list[dict]) -> None:
    """Add rows to a CSV file, with a header if it is new."""
    new = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def truncate_csv(path: Path, step: int) -> None:
    """Drop the rows of a CSV file whose `step` lies behind `step`."""
    if not path.exists():
        return
    with open(path, newline="", encoding="utf-8") as source:
        reader = csv.DictReader(source)
        fields, rows = reader.fieldnames, [row for row in reader if int(row["step"]) <= step]
    with open(path, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=fields)
        writer.writeheader()
        writer.writerows(rows)


def read_checkpoint(path: Path, device: str | torch.device) -> dict:
    """What a training left to go on from.

    Raises:
        CastError: the file is damaged or no checkpoint.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CastError(f"{path} is no checkpoint of a training ({reason}); delete it to begin anew") from None
    if not isinstance(state, dict) or "raw_config" not in state:
        raise CastError(f"{path} is no checkpoint of a training; delete it to begin anew")
    return state
