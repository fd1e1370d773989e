"""What a training recipe is told: the head's shape, the data, the training itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cast.errors import CastError
from cast.training.batches import BatchSpec
from cast.training.ranges import check_ranges

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
