"""Write training data: the target's own greedy continuations, with features and soft labels, to shards on
disk.

The pass that produces a token also produces the features the head will read and the distribution it should
learn, so both are kept instead of being computed a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from cast.models.target import Target
from cast.training.batched import BatchedTarget
from cast.training.prompts import TrainingPrompt
from cast.training.shards import Sequence, write_shard

Tick = Callable[[], None]  # called between steps; may sleep


def greedy_batch(
    target: Target,
    prompts: list[Tensor],
    max_new_tokens: int,
    taps: tuple[int, ...],
    soft_labels: int,
    tick: Tick = lambda: None,
    branches: int = 1,
    branch_tokens: int = 16,
    seed: int = 0,
) -> list[Sequence]:
    """Greedy continuations of a batch of prompts, in prompt order.

    Args:
        prompts: int64 [T_r] each.
        soft_labels: how many of the target's largest log-probabilities are kept per new token.
        tick: called before every pass.
        branches: continuations of each prompt. All but the first start with `branch_tokens` tokens sampled at
            temperature 1, which then count as part of the prompt: another greedy output without another prefill.
        seed: of those samples.

    A row ends with the first stop token, which is part of it; one that ends inside its sampled start is dropped. The
    last token of a row was never fed to the target, so a sequence of T tokens has T - 1 feature rows. The
    sequences of a prompt follow each other.
    """
    longest, generator = max(len(prompt) for prompt in prompts), torch.Generator().manual_seed(seed)
    batch = BatchedTarget(target, prompts, longest + max_new_tokens, taps)
    stop = torch.tensor(target.stop_token_ids or (-1,), device=target.device)
    tick()
    logits, prefill = batch.prefill()
    count = len(prompts) * branches
    source = torch.arange(len(prompts)).repeat_interleave(branches)
    sampled = torch.where(torch.arange(count) % branches > 0, branch_tokens, 0)
    if branches > 1:
        batch.keep(source.to(target.device))
        logits = logits[source]
    rows, padding = torch.arange(count), batch.padding.clone()
    features = prefill.new_empty(count, max_new_tokens, prefill.shape[-1])
    tokens = torch.empty(count, max_new_tokens, dtype=torch.long, device=target.device)
    label_ids = torch.empty(count, max_new_tokens, soft_labels, dtype=torch.int32)
    label_logp = torch.empty(count, max_new_tokens, soft_labels, dtype=torch.float16)
    new = torch.full((count,), max_new_tokens)
    for index in range(max_new_tokens):
        logits = logits.float()  # the CPU finds maxima faster in it; the order of bf16 values is kept
        top = logits.topk(soft_labels).indices if soft_labels else None
        normaliser = logits.logsumexp(-1, keepdim=True)
        choice = logits.argmax(-1)
        drawn = (index < sampled[rows]).nonzero().flatten()
        if len(drawn):
            choice[drawn] = sample(logits[drawn], generator)
        tokens[rows, index] = choice
        if top is not None:
            label_ids[rows, index] = top.to(torch.int32).cpu()
            label_logp[rows, index] = (logits.gather(1, top) - normaliser).half().cpu()
        ended = torch.isin(choice, stop)
        if ended.any():
            new[rows[ended.cpu()]] = index + 1
            keep = (~ended).nonzero().flatten()
            rows, choice = rows[keep.cpu()], choice[keep]
            if not len(rows):
                break
            batch.keep(keep)
        if index + 1 == max_new_tokens:
            break
        tick()
        logits, feature = batch.step(choice)
        features[rows, index] = feature[:, 0]
    sequences = []
    for row in range(count):
        prompt, first, last, start = prompts[source[row]], int(sampled[row]), int(new[row]), int(padding[row])
        if last <= first:
            continue
        sequences.append(
            Sequence(
                tokens=torch.cat((prompt, tokens[row, :last].to(prompt.device))).to(torch.int32).cpu(),
                prompt_tokens=len(prompt) + first,
                features=torch.cat((prefill[source[row], start:], features[row, : last - 1])).cpu(),
                label_ids=label_ids[row, first:last],
                label_logp=label_logp[row, first:last],
                prompt={"row": int(source[row])},
            )
        )
    return sequences


def sample(logits: Tensor, generator: torch.Generator, top_p: float = 0.95, top_k: int = 256) -> Tensor:
    """One token for each row of float logits [n, V], at temperature 1 from the smallest set of mass `top_p`:
    int64 [n].
    """
    probabilities, order = logits.softmax(-1).topk(min(top_k, logits.shape[-1]))
    probabilities[(probabilities.cumsum(-1) - probabilities) > top_p] = 0
    picked = torch.multinomial(probabilities.cpu(), 1, generator=generator).to(order.device)
    return order.gather(1, picked).flatten()


def encode(tokenizer, text: str) -> Tensor:
    """A user turn behind the chat template, ready for the target's answer, thinking off (Qwen3): int64
    [T].
    """
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        enable_thinking=False,
    )
    return torch.tensor(ids, dtype=torch.long)


def generate(
    target: Target,
    tokenizer,
    prompts: Iterable[TrainingPrompt],
    folder: Path,
    *,
    taps: tuple[int, ...],
    batch_size: int,
    max_new_tokens: int,
    soft_labels: int,
    max_prompt_tokens: int = 320,
    pool: int = 4,
    worker: tuple[int, int] = (0, 1),
    branches: int = 1,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> Iterator[dict]:
    """Continue every prompt and write one shard per batch; shards already there are skipped, so a run
    resumes.

    Prompts are taken in pools of `pool` batches and sorted by length inside a pool, which keeps padding small
    without disturbing the balance of domains. With `worker` (k, n), n processes share the shards: this is the
    k-th. `branches` and `seed` as in `greedy_batch`. Yields one progress record per shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    window: list[tuple[TrainingPrompt, Tensor]] = []
    number = 0

    def flush(window):
        nonlocal number
        window.sort(key=lambda item: len(item[1]))
        size = max(1, batch_size // branches)
        for first in range(0, len(window), size):
            chunk = window[first : first + size]
            path, mine = folder / f"shard-{number:05d}.safetensors", number % worker[1] == worker[0]
            number += 1
            if not mine or path.exists():
                continue
            started = time.perf_counter()
            sequences = greedy_batch(
                target,
                [ids for _, ids in chunk],
                max_new_tokens,
                taps,
                soft_labels,
                tick,
                branches=branches,
                seed=seed * 100_003 + number,
            )
            write_shard(path, sequences, [chunk[s.prompt["row"]][0].as_dict() for s in sequences])
            tokens = sum(len(s.label_ids) for s in sequences)
            yield {
                "shard": path.name,
                "new_tokens": tokens,
                "tokens_per_second": tokens / (time.perf_counter() - started),
            }

    for prompt in prompts:
        ids = encode(tokenizer, prompt.text)
        if len(ids) <= max_prompt_tokens:
            window.append((prompt, ids))
        if len(window) == pool * batch_size:
            yield from flush(window)
            window = []
    yield from flush(window)
