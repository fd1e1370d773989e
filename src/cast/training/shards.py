"""Training sequences on disk: one safetensors file and one JSON-lines file of prompts per batch.

Tensors of a shard, N sequences, T tokens in all, F feature rows, R new tokens:
`lengths`, `prompt_tokens` int32 [N]; `tokens` int32 [T]; `features` [F, taps * H] in the target's dtype, one
row per token but each sequence's last; `label_ids` int32 [R, K] and `label_logp` float16 [R, K], the target's
largest log-probabilities at each new token's position.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cast.errors import CastError


@dataclass
class Sequence:
    """One prompt and its continuation.

    Attributes:
        tokens: int32 [T].
        prompt_tokens: how many of them are the prompt's.
        features: [T - 1, taps * H].
        label_ids, label_logp: [T - prompt_tokens, K], the target's distribution for each new token.
        prompt: the prompt's id, domain and text, when read from disk.
    """

    tokens: Tensor
    prompt_tokens: int
    features: Tensor
    label_ids: Tensor
    label_logp: Tensor
    prompt: dict | None = None

    def repeat_share(self, n: int = 8) -> float:
        """Share of the continuation's n-grams that occurred before in it; 0 for short ones."""
        new = self.tokens[self.prompt_tokens :].tolist()
        grams = [tuple(new[i : i + n]) for i in range(len(new) - n + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0


def write_shard(path: Path, sequences: list[Sequence], prompts: list[dict]) -> None:
    """Write sequences and the prompts they answer; the file appears under its name only when complete."""
    tensors = {
        "lengths": torch.tensor([len(s.tokens) for s in sequences], dtype=torch.int32),
        "prompt_tokens": torch.tensor([s.prompt_tokens for s in sequences], dtype=torch.int32),
        "tokens": torch.cat([s.tokens for s in sequences]),
        "features": torch.cat([s.features for s in sequences]),
        "label_ids": torch.cat([s.label_ids for s in sequences]),
        "label_logp": torch.cat([s.label_logp for s in sequences]),
    }
    with open(path.with_suffix(".jsonl"), "w", encoding="utf-8") as out:
        out.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    os.replace(partial, path)


def read_shard(path: Path) -> list[Sequence]:
    """The sequences of a shard, as views of one memory-mapped file.

    Raises:
        CastError: the file, or that of its prompts, is damaged or gone.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        prompts = [json.loads(line) for line in path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    except (SafetensorError, OSError, ValueError) as error:
        raise CastError(f"{path} or its prompts cannot be read ({error}); delete both and generate again") from None
    lengths, heads = tensors["lengths"].tolist(), tensors["prompt_tokens"].tolist()
    tokens = tensors["tokens"].split(lengths)
    features = tensors["features"].split([n - 1 for n in lengths])
    new = [n - p for n, p in zip(lengths, heads, strict=True)]
    ids, logp = tensors["label_ids"].split(new), tensors["label_logp"].split(new)
    return [Sequence(*parts) for parts in zip(tokens, heads, features, ids, logp, prompts, strict=True)]
