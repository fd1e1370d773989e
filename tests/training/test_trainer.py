"""Training learns, and a run that was cut off goes on as if it had not been."""

import csv
from dataclasses import replace

import pytest
import torch

from cast import CastError
from cast.models.loading import load_drafter
from cast.training.batches import Batches, BatchSpec
from cast.training.evaluate import _walk, calibration_error, replay, summarise
from cast.training.export import export_head
from cast.training.generate import greedy_batch
from cast.training.prompts import in_validation
from cast.training.recipe import _shard_count, best_score, evaluate, train
from cast.training.shards import write_shard
from cast.training.specs import HeadSpec, TrainSpec
from cast.training.trainer import Schedule, Trainer

SPEC = BatchSpec(sequences=2, anchors=3, block_size=6, frequent_tokens=20, sampled_tokens=8)
SCHEDULE = Schedule(steps=12, learning_rate=2e-3)


@pytest.fixture
def batches(target, sequences):
    return Batches(sequences, SPEC, target.vocab_size)


def trainer(target, raw_config, drafter, folder):
    scale = torch.linspace(0.5, 8.0, drafter.fc.weight.shape[1])
    return Trainer(target, raw_config, drafter.state_dict(), folder, parts=2, feature_scale=scale)


def curve(folder):
    with open(folder / "curve.csv", newline="") as rows:
        return [(row["step"], row["loss"], row["learning_rate"]) for row in csv.DictReader(rows)]


def test_resumed_run_continues_the_same_curve(target, raw_config, drafter, batches, tmp_path):
    whole = trainer(target, raw_config, drafter, tmp_path / "whole")
    whole.run(batches, SCHEDULE, checkpoint_every=4, log_every=1)
    # Cut off at step 7: what was done after the checkpoint of step 4 is lost, as after kill -9.
    trainer(target, raw_config, drafter, tmp_path / "cut").run(
        batches, SCHEDULE, until=4, checkpoint_every=4, log_every=1
    )
    lost = trainer(target, raw_config, drafter, tmp_path / "cut")
    lost.resume()
    for _ in range(3):
        lost.train_step(batches, SCHEDULE)
    resumed = trainer(target, raw_config, drafter, tmp_path / "cut")
    assert resumed.resume() and resumed.step == 4
    resumed.run(batches, SCHEDULE, checkpoint_every=4, log_every=1)
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert all(torch.equal(weight, whole.weights()[name]) for name, weight in resumed.weights().items())


def test_columns_of_fc_learn_in_proportion_to_the_size_of_their_features(
    target, raw_config, drafter, batches, tmp_path
):
    scale = torch.tensor([1.0, 10.0]).repeat_interleave(target.hidden_size)
    scaled = Trainer(target, raw_config, drafter.state_dict(), tmp_path, feature_scale=scale, weight_decay=0.0)
    torch.testing.assert_close(scaled.weights()["fc.weight"], drafter.fc.weight)
    before = scaled.weights()["fc.weight"].detach().clone()
    scaled.train_step(batches, SCHEDULE)
    torch.testing.assert_close(scaled.drafter.fc.weight.detach(), scaled.weights()["fc.weight"])
    small, large = (scaled.weights()["fc.weight"] - before).abs().chunk(2, dim=1)
    # Adam's first step is the learning rate for every weight, here in units of the features.
    assert small.median() / large.median() == pytest.approx(10, rel=0.01)


def test_resuming_another_head_is_refused(target, raw_config, drafter, batches, tmp_path):
    trainer(target, raw_config, drafter, tmp_path).save()
    other = Trainer(target, raw_config | {"block_size": 4}, drafter.state_dict(), tmp_path)
    with pytest.raises(CastError, match="another shape"):
        other.resume()


def test_batches_depend_on_the_step_only(target, sequences, batches):
    again = Batches(sequences, SPEC, target.vocab_size)
    again.at(5)
    for name, value in vars(batches.at(3)).items():
        same = getattr(again.at(3), name)
        assert torch.equal(value, same) if isinstance(value, torch.Tensor) else value == same


def validated(sequences):
    """Prompts for sequences such that the last two are kept out of training."""
    inside = [text for text in map(str, range(40)) if not in_validation({"text": text}, 0.5)]
    outside = [text for text in map(str, range(40)) if in_validation({"text": text}, 0.5)]
    texts = inside[: len(sequences) - 2] + outside[:2]
    return [{"id": "self", "domain": "any", "text": text} for text in texts]


def test_recipe_trains_validates_exports_and_resumes(target, prompts, tmp_path):
    head = HeadSpec(layers=1, taps=1, block_size=6, mask_token_id=1)
    out = greedy_batch(target, prompts, 20, taps=(target.layers // 2,), soft_labels=4)
    write_shard(tmp_path / "shard-00000.safetensors", out, validated(out))
    spec = TrainSpec(
        steps=60,
        learning_rate=3e-3,
        evaluate_every=30,
        checkpoint_every=10,
        short_block=3,
        validation_share=0.5,
        batch=SPEC,
    )
    rows = []
    trained = train(spec, head, target, tmp_path, tmp_path, export_to=tmp_path / "head", on_log=rows.append)
    losses = [row["smooth_loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    assert {row["step"] for row in rows if "domain" in row} == {30, 60}
    assert {row["sequences"] for row in rows if "domain" in row} == {2}
    drafter = load_drafter(tmp_path / "head")
    assert drafter.fc.weight.dtype == torch.bfloat16
    # Judged on what it was trained on, the head must have learnt something of it.
    judged = evaluate(drafter.float(), target, out[:4])
    assert judged[0]["r_universe"] >= judged[0]["r_chain"] > 1.3
    assert train(spec, head, target, tmp_path, tmp_path).step == trained.step == 60
    best = max(row["r_chain"] + row["r_universe"] for row in rows if row.get("domain") == "mean")
    assert best_score(tmp_path / "evaluation.csv") == pytest.approx(best)


def test_training_starts_from_another_head(target, prompts, tmp_path):
    head = HeadSpec(layers=1, taps=1, block_size=6, mask_token_id=1)
    out = greedy_batch(target, prompts, 20, taps=(target.layers // 2,), soft_labels=4)
    write_shard(tmp_path / "shard-00000.safetensors", out, validated(out))
    spec = TrainSpec(steps=2, evaluate_every=10, validation_share=0.5, batch=SPEC)
    first = train(spec, head, target, tmp_path, tmp_path / "first")
    export_head(tmp_path / "head", first.raw_config, first.weights(), torch.float32)
    later = replace(spec, start_from=str(tmp_path / "head"), learning_rate=0.0)
    second = train(later, head, target, tmp_path, tmp_path / "second")
    for name, weight in first.weights().items():
        torch.testing.assert_close(second.weights()[name], weight)
    with pytest.raises(CastError, match="another shape"):
        train(later, replace(head, block_size=5), target, tmp_path, tmp_path / "third")


def test_data_written_later_is_taken_only_when_asked(tmp_path):
    for count, grow, expected in ((2, False, 2), (3, False, 2), (3, True, 3), (4, False, 3)):
        for number in range(count):
            (tmp_path / f"shard-{number:05d}.safetensors").touch()
        assert _shard_count(tmp_path, tmp_path, grow) == expected


def test_replay_equals_decoding(target, drafter, sequences):
    """R of the chain, replayed, is what drafting round by round accepts."""
    sequence = sequences[1]
    tokens, depth = sequence.tokens.long(), drafter.block_size - 1
    rounds, anchor = [], sequence.prompt_tokens
    while anchor < len(tokens) - depth:
        cache = drafter.new_cache(anchor + drafter.block_size)
        logits = drafter.draft(target, sequence.features[:anchor], tokens[anchor : anchor + 1], cache)
        matched = (logits.argmax(-1) == tokens[anchor + 1 : anchor + 1 + depth]).long().cumprod(0).sum()
        rounds.append(int(matched) + 1)
        anchor += rounds[-1]
    assert replay(drafter, target, sequence).chain == rounds


def test_a_sequence_shorter_than_a_block_is_not_replayed(target, drafter, sequences):
    whole, depth = sequences[1], drafter.block_size - 1
    for length, rounds in ((1, None), (depth, None), (depth + 1, 1)):
        end = whole.prompt_tokens + length
        part = replace(whole, tokens=whole.tokens[:end], features=whole.features[: end - 1])
        item = replay(drafter, target, part)
        assert (item and len(item.chain)) == rounds


def test_walk_steps_over_what_a_round_committed():
    assert _walk(torch.tensor([2, 0, 0, 1, 5, 0])) == [3, 2, 1]


def test_summary_pools_rounds_and_averages_domains(target, drafter, sequences):
    replays = [replay(drafter, target, s, k=4) for s in sequences]
    rows = {(row["domain"], row["repeats"]): row for row in summarise(replays)}
    odd = [r for item in replays if item.domain == "odd" for r in item.chain]
    assert rows["odd", "all"]["r_chain"] == pytest.approx(sum(odd) / len(odd))
    mean = (rows["odd", "all"]["r_universe"] + rows["even", "all"]["r_universe"]) / 2
    assert rows["mean", "all"]["r_universe"] == pytest.approx(mean)


def test_calibration_error():
    confidence = torch.tensor([0.25, 0.25, 0.95, 0.95])
    assert calibration_error(confidence, torch.tensor([0.0, 0.0, 1.0, 1.0])) == pytest.approx(0.5 * 0.25 + 0.5 * 0.05)


def test_export_writes_the_public_layout(target, raw_config, drafter, tmp_path):
    export_head(tmp_path, raw_config, drafter.state_dict(), torch.float32)
    loaded = load_drafter(tmp_path)
    loaded.check_fits(target.config)
    assert loaded.config == drafter.config
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in drafter.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_schedule_warms_up_and_decays():
    schedule = Schedule(steps=100, learning_rate=1.0, warm_up=0.1, floor=0.1)
    rates = [schedule.at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True) and 0.1 <= rates[-1] < 0.11
    held = [Schedule(steps=100, learning_rate=1.0, warm_up=0.1, decay=0.3, floor=0.1).at(step) for step in range(100)]
    assert held[9:71] == [1.0] * 62 and held[70:] == sorted(held[70:], reverse=True) and held[-1] < 0.11
