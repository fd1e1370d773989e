"""Which token the target selects at a verified row: greedy, or sampled at a temperature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cast.errors import CastError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""As in transformers: (input_ids [1, T], logits [1, V]) to logits [1, V]."""

Selection = Callable[[int, list[int]], int]
"""(packed row, tokens accepted on the way to it) to the token the target selects there."""


class GreedySelector:
    """The arg-max of the target's logits, after the caller's processor if there is one."""

    def __init__(self, logits_processor: LogitsProcessor | None = None):
        self.logits_processor = logits_processor

    def over(self, logits: Tensor, emitted: Callable[[], list[int]]) -> Selection:
        """Selections over the rows of one pass.

        Args:
            logits: [n, V].
            emitted: gives prompt and output so far, up to and including the token of row 0; called only
                when a processor needs it.

        Raises:
            CastError: (from the selection) NaN among a visited row's logits.
        """
        if self.logits_processor is not None:
            return lambda row, path: _arg_max(_processed(self.logits_processor, logits[row], emitted() + path))
        if logits.device.type == "cpu":
            # The walk visits few rows, and reading one costs nothing here.
            return lambda row, path: _arg_max(logits[row])
        best, tokens = logits.max(dim=-1)
        chosen = torch.stack((tokens, best.isnan().long())).tolist()  # the round's one device-to-host copy

        def select(row: int, path: list[int]) -> int:
            _refuse_nan(chosen[1][row])
            return chosen[0][row]

        return select


class SampledSelector:
    """A draw from softmax(logits / T), temperature first, then the caller's processor.

    Walking a fixed tree with these draws (descend while the draw is a child) keeps the target's law: the
    token committed at a node is the draw itself, whatever the tree holds.
    """

    def __init__(
        self, temperature: float, seed: int, device: torch.device, logits_processor: LogitsProcessor | None = None
    ):
        self.temperature = temperature
        self.logits_processor = logits_processor
        self.generator = torch.Generator(device).manual_seed(seed)

    def over(self, logits: Tensor, emitted: Callable[[], list[int]]) -> Selection:
        """Selections over the rows of one pass; arguments as for `GreedySelector.over`."""

        def select(row: int, path: list[int]) -> int:
            scores = logits[row].float() / self.temperature
            if self.logits_processor is not None:
                scores = _processed(self.logits_processor, scores, emitted() + path)
            probabilities = scores.softmax(dim=-1)
            _refuse_nan(bool(probabilities.isnan().any()))
            return int(torch.multinomial(probabilities, 1, generator=self.generator))

        return select


def _processed(processor: LogitsProcessor, scores: Tensor, history: list[int]) -> Tensor:
    return processor(torch.tensor([history], device=scores.device), scores[None])[0]


def _arg_max(scores: Tensor) -> int:
    best, token = scores.max(dim=-1)
    _refuse_nan(bool(best.isnan()))  # max propagates NaN
    return int(token)


def _refuse_nan(found: bool | int) -> None:
    if found:
        raise CastError("the target returned NaN logits; check its checkpoint and dtype")
