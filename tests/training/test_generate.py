"""Batched generation gives what one sequence at a time gives."""

from dataclasses import replace

import pytest
import torch

from cast.training.batched import BatchedTarget
from cast.training.generate import greedy_batch
from cast.training.shards import read_shard, write_shard


def alone(target, prompt, new_tokens, taps):
    """Greedy decoding with `Target.forward`: tokens, features of all but the last, log-probabilities."""
    cache = target.new_cache(len(prompt) + new_tokens)
    out = target.forward(prompt, torch.arange(len(prompt)), cache, causal=True, taps=taps)
    cache.commit(len(prompt))
    tokens, features, scores = prompt.tolist(), [torch.cat(out.taps, -1)], []
    for index in range(new_tokens):
        scores.append(out.logits[-1].log_softmax(-1))
        tokens.append(int(scores[-1].argmax()))
        if tokens[-1] in target.stop_token_ids or index + 1 == new_tokens:
            break
        out = target.forward(torch.tensor(tokens[-1:]), torch.tensor([len(tokens) - 1]), cache, taps=taps)
        cache.commit(1)
        features.append(torch.cat(out.taps, -1))
    return tokens, torch.cat(features), torch.stack(scores)


def test_batch_equals_single_sequences(target, prompts, sequences, taps):
    for prompt, sequence in zip(prompts, sequences, strict=True):
        tokens, features, scores = alone(target, prompt, 20, taps)
        assert sequence.tokens.tolist() == tokens
        torch.testing.assert_close(sequence.features, features, atol=1e-4, rtol=1e-4)
        kept = scores.gather(1, sequence.label_ids.long())
        torch.testing.assert_close(sequence.label_logp.float(), kept, atol=2e-2, rtol=0)
        assert (sequence.label_ids[:, 0] == scores.argmax(-1)).all()


def test_branches_are_greedy_behind_a_sampled_start(target, prompts, sequences, taps):
    out = greedy_batch(target, prompts, 20, taps, soft_labels=4, branches=3, branch_tokens=2, seed=1)
    first = [s for s in out if s.prompt_tokens == len(prompts[s.prompt["row"]])]
    assert [s.tokens.tolist() for s in first] == [s.tokens.tolist() for s in sequences]
    others = [s for s in out if s.prompt_tokens == len(prompts[s.prompt["row"]]) + 2]
    assert len(first) + len(others) == len(out) and len(others) > len(prompts)
    for s in others[::4]:
        left = 20 - 2
        tokens, features, _ = alone(target, s.tokens[: s.prompt_tokens].long(), left, taps)
        assert s.tokens.tolist() == tokens and len(s.label_ids) == len(tokens) - s.prompt_tokens
        torch.testing.assert_close(s.features, features, atol=1e-4, rtol=1e-4)


def test_dropped_rows_do_not_disturb_the_others(target, prompts, taps):
    whole, part = (BatchedTarget(target, prompts[:3], 20, taps) for _ in range(2))
    logits, _ = whole.prefill()
    part.prefill()
    part.keep(torch.tensor([0, 2]))
    expected, _ = whole.step(logits.argmax(-1))
    actual, _ = part.step(logits.argmax(-1)[[0, 2]])
    torch.testing.assert_close(actual, expected[[0, 2]])


def test_shards_return_what_was_written(sequences, tmp_path):
    path = tmp_path / "shard-00000.safetensors"
    write_shard(path, sequences, [s.prompt for s in sequences])
    for read, written in zip(read_shard(path), sequences, strict=True):
        assert read.prompt == written.prompt and read.prompt_tokens == written.prompt_tokens
        for name in ("tokens", "features", "label_ids", "label_logp"):
            assert torch.equal(getattr(read, name), getattr(written, name))


def test_repeat_share_counts_repeated_8_grams(sequences):
    looping = replace(sequences[0], tokens=torch.arange(5).repeat(8), prompt_tokens=0)
    assert looping.repeat_share() == pytest.approx(1 - 5 / 33)
    assert replace(looping, tokens=torch.arange(40)).repeat_share() == 0
    assert replace(looping, tokens=torch.arange(7)).repeat_share() == 0
