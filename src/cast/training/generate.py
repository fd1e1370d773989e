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
) -> list[Sequence]:
    """Greedy continuations of a batch of prompts, in prompt order.

    Args:
        prompts: int64 [T_r] each.
        soft_labels: how many of the target's largest log-probabilities are kept per new token.
        tick: called before every pass.

    A row ends with the first stop token, which is part of it. The last token of a row was never fed to the
    target, so a sequence of T tokens has T - 1 feature rows.
    """
    longest = max(len(prompt) for prompt in prompts)
    batch = BatchedTarget(target, prompts, longest + max_new_tokens, taps)
    stop = torch.tensor(target.stop_token_ids or (-1,), device=target.device)
    tick()
    logits, prefill = batch.prefill()
    rows, padding = torch.arange(len(prompts)), batch.padding.clone()
    features = prefill.new_empty(len(prompts), longest + max_new_tokens, prefill.shape[-1])
    features[:, :longest] = prefill
    del prefill
    tokens = torch.empty(len(prompts), max_new_tokens, dtype=torch.long, device=target.device)
    label_ids = torch.empty(len(prompts), max_new_tokens, soft_labels, dtype=torch.int32)
    label_logp = torch.empty(len(prompts), max_new_tokens, soft_labels, dtype=torch.float16)
    new = torch.full((len(prompts),), max_new_tokens)
    for index in range(max_new_tokens):
        top = logits.topk(max(soft_labels, 1)).indices if soft_labels else None
        normaliser = logits.float().logsumexp(-1, keepdim=True)
        choice = logits.argmax(-1)
        tokens[rows, index] = choice
        if top is not None:
            label_ids[rows, index] = top.to(torch.int32).cpu()
            label_logp[rows, index] = (logits.gather(1, top).float() - normaliser).half().cpu()
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
        features[rows, longest + index] = feature[:, 0]
    sequences = []
    for row, prompt in enumerate(prompts):
        count, start = int(new[row]), int(padding[row])
        sequences.append(
            Sequence(
                tokens=torch.cat((prompt, tokens[row, :count].to(prompt.device))).to(torch.int32).cpu(),
                prompt_tokens=len(prompt),
                features=features[row, start : longest + count - 1].cpu(),
                label_ids=label_ids[row, :count],
                label_logp=label_logp[row, :count],
            )
        )
    return sequences


@torch.inference_mode()
def sampled_user_turns(
    target: Target,
    tokenizer,
    count: int,
    seed: int,
    max_tokens: int = 80,
    top_p: float = 0.95,
    tick: Tick = lambda: None,
) -> list[str]:
    """User turns the target writes itself, sampled at temperature 1 behind the chat template's opening.

    Turns that did not end within `max_tokens`, or are shorter than three words, are dropped, so fewer than
    `count` texts may come back.
    """
    marker = "\x00"
    opening = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False).split(marker)[0]
    prefix = torch.tensor(tokenizer(opening, add_special_tokens=False)["input_ids"])
    generator = torch.Generator().manual_seed(seed)
    batch = BatchedTarget(target, [prefix] * count, len(prefix) + max_tokens, ())
    logits, _ = batch.prefill()
    rows, texts = [[] for _ in range(count)], []
    live = torch.arange(count)
    stop = torch.tensor(target.stop_token_ids)
    for _ in range(max_tokens):
        probabilities, order = logits.float().softmax(-1).topk(256)
        probabilities[(probabilities.cumsum(-1) - probabilities) > top_p] = 0
        picked = torch.multinomial(probabilities.cpu(), 1, generator=generator).to(order.device)
        choice = order.gather(1, picked).flatten()
        ended = torch.isin(choice, stop.to(choice.device)).cpu()
        for row, token, over in zip(live.tolist(), choice.tolist(), ended.tolist(), strict=True):
            if over:
                texts.append(tokenizer.decode(rows[row], skip_special_tokens=True).strip())
            else:
                rows[row].append(token)
        keep = (~ended).nonzero().flatten()
        live = live[keep]
        if not len(live):
            break
        batch.keep(keep.to(target.device))
        tick()
        logits, _ = batch.step(choice[keep.to(choice.device)])
    return [text for text in texts if len(text.split()) >= 3]


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
    tick: Tick = lambda: None,
) -> Iterator[dict]:
    """Continue every prompt and write one shard per batch; shards already there are skipped, so a run
    resumes.

    Prompts are taken in pools of `pool` batches and sorted by length inside a pool, which keeps padding small
    without disturbing the balance of domains. With `worker` (k, n), n processes share the shards: this is the
    k-th. Yields one progress record per shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    window: list[tuple[TrainingPrompt, Tensor]] = []
    number = 0

    def flush(window):
        nonlocal number
        window.sort(key=lambda item: len(item[1]))
        for first in range(0, len(window), batch_size):
            chunk = window[first : first + batch_size]
            path, mine = folder / f"shard-{number:05d}.safetensors", number % worker[1] == worker[0]
            number += 1
            if not mine or path.exists():
                continue
            started = time.perf_counter()
            sequences = greedy_batch(target, [ids for _, ids in chunk], max_new_tokens, taps, soft_labels, tick)
            write_shard(path, sequences, [prompt.as_dict() for prompt, _ in chunk])
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
