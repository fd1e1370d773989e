"""Whether our autoregressive baseline is a fair one: our loop against `generate` of transformers, paired."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cast.decode import generate
from cast.decode.timer import garbage_collection_off, now_ms
from cast.experiments.prompts import Prompt
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.models.loading import checkpoint_folder


def run(pair: Pair, stock, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield, for each prompt, both decoders' milliseconds per decoded token (the prefill's token excluded).

    The two alternate in who goes first, and neither stops early, so that both decode the same number of
    tokens. transformers times no prefill of its own: a call for one token stands in for it.

    Args:
        stock: the same checkpoint as a transformers model, in the same dtype and on the same device.
        max_new_tokens: at least 2.
    """
    for index, prompt in enumerate(prompts):
        input_ids = encode_for(pair, prompt, max_new_tokens).to(pair.device)
        if index == 0:
            for decoder in (_ours, _transformers):
                decoder(pair, stock, input_ids, 8)
        order = (_ours, _transformers) if index % 2 == 0 else (_transformers, _ours)
        measured = {decoder: decoder(pair, stock, input_ids, max_new_tokens) for decoder in order}
        (ours_ms, ours), (stock_ms, theirs) = measured[_ours], measured[_transformers]
        yield {
            "prompt_id": prompt.id,
            "ours_ms_per_token": ours_ms,
            "transformers_ms_per_token": stock_ms,
            "ratio": ours_ms / stock_ms,
            "same_tokens": torch.equal(ours, theirs),
        }


def stock_model(pair: Pair):
    """The pair's target as transformers loads and runs it, in the pair's dtype and on its device."""
    from transformers import AutoModelForCausalLM

    folder = checkpoint_folder(pair.name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=pair.dtype, trust_remote_code=False)
    return model.to(pair.device).eval()


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _ours(pair: Pair, stock, input_ids: Tensor, tokens: int) -> tuple[float, Tensor]:
    out = generate(pair, input_ids, "autoregressive", max_new_tokens=tokens, stop_token_ids=[])
    return out.decode_ms / (tokens - 1), out.tokens


def _transformers(pair: Pair, stock, input_ids: Tensor, tokens: int) -> tuple[float, Tensor]:
    def timed(count: int) -> tuple[float, Tensor]:
        with garbage_collection_off():
            started = now_ms(pair.device)
            output = stock.generate(
                input_ids[None],
                attention_mask=torch.ones_like(input_ids)[None],
                max_new_tokens=count,
                eos_token_id=-1,  # no stop token
                do_sample=False,
            )
            elapsed = now_ms(pair.device) - started
        return elapsed, output[0, len(input_ids) :].cpu()

    prefill_ms, _ = timed(1)
    total_ms, new_tokens = timed(tokens)
    return (total_ms - prefill_ms) / (tokens - 1), new_tokens
