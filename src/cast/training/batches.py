"""Batches of anchored blocks, a pure function of the data, the seed and the step, so that a run can
resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from cast.errors import CastError
from cast.training.objective import Batch
from cast.training.ranges import check_ranges
from cast.training.shards import Sequence, read_shard


def load_sequences(folder: Path, shards: int | None = None, max_repeat_share: float = 1.0) -> list[Sequence]:
    """The sequences of the first `shards` shards (all of them when None), without the looping ones.

    Raises:
        CastError: there are none.
    """
    paths = sorted(Path(folder).rglob("shard-*.safetensors"))
    paths = paths if shards is None else paths[:shards]
    sequences = [s for path in paths for s in read_shard(path) if s.repeat_share() <= max_repeat_share]
    if not sequences:
        raise CastError(f"no training sequences in {folder}; run the generate stage first")
    return sequences


def token_counts(sequences: list[Sequence], vocab_size: int) -> torch.Tensor:
    """How often the continuations hold each token, int64 [V]."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for s in sequences:
        counts += torch.bincount(s.tokens[s.prompt_tokens :].long(), minlength=vocab_size)
    return counts


@dataclass
class BatchSpec:
    """How batches are drawn.

    Attributes:
        sequences: per batch.
        anchors: blocks per sequence.
        decay: gamma; slot k counts exp(-(k - 1) / gamma).
        loop_weight: weight of a sequence whose 8-grams repeat (share of 0.1 and more).
        frequent_tokens: how many of the data's most frequent tokens every step's softmax contains.
        sampled_tokens: how many random ones stand for all tokens that are neither frequent nor in the batch; None
            runs the softmax over the whole vocabulary.
    """

    sequences: int = 3
    anchors: int = 24
    block_size: int = 16
    decay: float = 8.0
    loop_weight: float = 0.25
    frequent_tokens: int = 4096
    sampled_tokens: int | None = 2048
    seed: int = 0

    def __post_init__(self):
        some = dict.fromkeys(("sequences", "anchors", "frequent_tokens"), (1, math.inf))
        any_ = dict.fromkeys(("loop_weight", "sampled_tokens", "seed"), (0, math.inf))
        check_ranges("training.batch", self, ("decay",), **some, **any_, block_size=(2, math.inf))


class Batches:
    """Draws the batch of any step.

    Every epoch is a permutation of the sequences, cut into runs of similar length. The decay is applied by
    sampling, not by weighting: slot k is scored with probability exp(-(k - 1) / gamma). The expected
    gradient is the same and the language-model head, the dearest part of a step, sees a third of the
    positions. Its softmax runs over the data's most frequent tokens, every label of the batch and a fresh sample of
    the others, weighted up to their number, so that the estimated sum of exponentials has no bias.

    Args:
        vocab_size: of the target.
        columns: of the stored features, those the head reads.
    """

    def __init__(
        self, sequences: list[Sequence], spec: BatchSpec, vocab_size: int, columns: torch.Tensor | slice = slice(None)
    ):
        self.spec, self.columns = spec, columns
        self.sequences = [s for s in sequences if len(s.tokens) - s.prompt_tokens >= 3]
        self.loops = torch.tensor([s.repeat_share() >= 0.1 for s in self.sequences])
        self.per_epoch = len(self.sequences) // spec.sequences
        if not self.per_epoch:
            raise CastError(f"{len(self.sequences)} sequences do not fill one batch of {spec.sequences}; generate more")
        self._order: tuple[int, list[list[int]]] | None = None
        frequent = token_counts(self.sequences, vocab_size).topk(min(spec.frequent_tokens, vocab_size)).indices
        self._frequent = torch.zeros(vocab_size, dtype=torch.bool)
        self._frequent[frequent if spec.sampled_tokens is not None else slice(None)] = True

    def at(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        epoch, index = divmod(step, self.per_epoch)
        generator = torch.Generator().manual_seed(self.spec.seed * 1_000_003 + step)
        return self._assemble(self._epoch(epoch)[index], generator)

    def _epoch(self, epoch: int) -> list[list[int]]:
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.spec.seed * 7919 + epoch)
            order = torch.randperm(len(self.sequences), generator=generator).tolist()
            size, window = self.spec.sequences, 16 * self.spec.sequences
            groups = []
            for first in range(0, len(order), window):
                near = sorted(order[first : first + window], key=lambda i: len(self.sequences[i].tokens))
                groups += [near[i : i + size] for i in range(0, len(near) - size + 1, size)]
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
            while len(groups) < self.per_epoch:
                groups.append(groups[len(groups) % max(1, len(groups) - 1)])
            self._order = epoch, groups
        return self._order[1]

    def _vocabulary(
        self, used: list[torch.Tensor], generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens of a step's softmax and their biases [M], and the index among them of every token shown."""
        shown = self._frequent.clone()
        for ids in used:
            shown[ids.flatten()] = True
        shown, others = shown.nonzero().flatten(), (~shown).nonzero().flatten()
        count = min(self.spec.sampled_tokens or 0, len(others))
        drawn = others[torch.randint(max(1, len(others)), (count,), generator=generator)]
        bias = torch.zeros(len(shown) + count)
        if count:
            bias[len(shown) :] = math.log(len(others) / count)
        index = torch.empty(len(self._frequent), dtype=torch.long)
        index[shown] = torch.arange(len(shown))
        return torch.cat((shown, drawn)), bias, index

    def _assemble(self, members: list[int], generator: torch.Generator) -> Batch:
        spec = self.spec
        chosen = [self.sequences[i] for i in members]
        length = max(len(s.features) for s in chosen)
        shape = len(chosen), length, chosen[0].features[:1, self.columns].shape[1]
        features = torch.zeros(shape, dtype=chosen[0].features.dtype)
        tokens = torch.zeros(len(chosen), length + 1, dtype=torch.long)
        anchors = torch.empty(len(chosen), spec.anchors, dtype=torch.long)
        anchor_tokens = torch.empty_like(anchors)
        keep_probability = torch.exp(-torch.arange(spec.block_size - 1) / spec.decay)
        rows, slots, labels, soft_ids, soft_logp, weights = [], [], [], [], [], []
        for n, (member, s) in enumerate(zip(members, chosen, strict=True)):
            features[n, : len(s.features)] = s.features[:, self.columns]
            tokens[n, : len(s.tokens)] = s.tokens
            # The first anchor of a generation is the first new token; the last one has a token to predict.
            candidates = len(s.tokens) - 1 - s.prompt_tokens
            repeats = math.ceil(spec.anchors / candidates)
            picked = torch.cat([torch.randperm(candidates, generator=generator) for _ in range(repeats)])[
                : spec.anchors
            ]
            anchors[n] = picked + s.prompt_tokens
            anchor_tokens[n] = s.tokens[anchors[n]].long()
            scored = torch.rand(spec.anchors, spec.block_size - 1, generator=generator) < keep_probability
            block, slot = scored.nonzero(as_tuple=True)
            slot = slot + 1
            position = anchors[n][block] + slot
            inside = position < len(s.tokens)
            block, slot, position = block[inside], slot[inside], position[inside]
            rows.append(block + n * spec.anchors)
            slots.append(slot)
            labels.append(s.tokens[position].long())
            soft_ids.append(s.label_ids[position - s.prompt_tokens].long())
            soft_logp.append(s.label_logp[position - s.prompt_tokens].float())
            weights.append(torch.full((len(slot),), spec.loop_weight if self.loops[member] else 1.0))
        vocabulary, bias, index = self._vocabulary(labels + soft_ids, generator)
        return Batch(
            features,
            tokens,
            anchor_tokens,
            anchors,
            torch.cat(rows),
            torch.cat(slots),
            vocabulary,
            bias,
            index[torch.cat(labels)],
            index[torch.cat(soft_ids)],
            torch.cat(soft_logp).softmax(-1),
            torch.cat(weights),
            spec.block_size,
        )


class MixedBatches:
    """Short blocks at most steps and whole blocks at the others, evenly spread.

    Args:
        short_share: share of the steps with short blocks.
        parts: batches per step, which are all of one kind.
    """

    def __init__(self, short: Batches, whole: Batches, short_share: float, parts: int):
        self.short, self.whole, self.whole_share, self.parts = short, whole, 1 - short_share, parts

    def at(self, index: int) -> Batch:
        """The batch of an index, counted from 0: step * parts + part."""
        step = index // self.parts
        whole = int((step + 1) * self.whole_share + 1e-9) > int(step * self.whole_share + 1e-9)
        return (self.whole if whole else self.short).at(index)
