"""EAGLE-3 and DART heads: the training forward is the drafting forward; training learns, resumes and exports."""

import csv
from dataclasses import replace

import pytest
import torch

import cast
from cast import CastError
from cast.models.dart import DartDrafter
from cast.models.loading import load_drafter
from cast.models.random_models import random_pair
from cast.training.batches import Batches, BatchSpec, token_counts
from cast.training.evaluate import replay
from cast.training.generate import greedy_batch
from cast.training.initial_features import feature_head_config, initial_feature_head
from cast.training.objectives import depth_of, drafter_loss, hidden_behind, target_logits
from cast.training.recipe import evaluate, export_checkpoint, train
from cast.training.shards import write_shard
from cast.training.specs import HeadSpec, TrainSpec

KINDS = ("eagle3", "dart")
LAYERS = (1, 3, 5)  # of the 8 layers, those that `taps=3` stores
BATCH = BatchSpec(sequences=2, anchors=3, block_size=5, frequent_tokens=20, sampled_tokens=0)


@pytest.fixture(scope="module")
def target():
    return random_pair("llama", None).target


@pytest.fixture(scope="module")
def sequences(target):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 280, (n,), generator=generator) for n in (3, 9, 6, 5, 7, 4)]
    out = greedy_batch(target, prompts, max_new_tokens=20, taps=LAYERS, soft_labels=4)
    for index, sequence in enumerate(out):
        sequence.prompt = {"id": str(index), "domain": ("odd", "even")[index % 2], "text": str(index)}
    return out


@pytest.fixture(scope="module", params=KINDS)
def head(request, target, sequences):
    raw = feature_head_config(
        target, request.param, taps=list(LAYERS), draft_vocab_size=96, block_size=6, intermediate_size=None
    )
    head = initial_feature_head(target, raw, token_counts(sequences, target.vocab_size))
    torch.manual_seed(1)
    for parameter in head.parameters():  # no symmetry of the start may hide a difference
        parameter.data += 0.05 * torch.randn_like(parameter)
    return head


def forward(head, target, sequence, anchors):
    """Logits [A, depth, V] of the training pass."""
    tokens = sequence.tokens.long()
    with torch.no_grad():
        hidden = hidden_behind(
            head, target.embedding, sequence.features[None], tokens[None], anchors[None], depth_of(head)
        )
        return target_logits(head, target, hidden[0])


def test_training_forward_equals_drafting(target, head, sequences):
    sequence = sequences[1]
    tokens, anchors = sequence.tokens.long(), torch.tensor([1, 9, 14, 20])
    trained = forward(head, target, sequence, anchors)
    for anchor, logits in zip(anchors.tolist(), trained, strict=True):
        cache = head.new_cache(64)
        features, paired = sequence.features[:anchor], tokens[1 : anchor + 1]
        if isinstance(head, DartDrafter):
            drafted = head.draft(target, features, paired, cache)
            shown = head.to_target(torch.arange(96))
            torch.testing.assert_close(logits[:, shown], drafted, atol=1e-5, rtol=1e-5)
            continue
        # Drafting follows its own first choices; so the training pass is given them as the target's tokens.
        drafted = head.draft(target, features, paired, cache, draft_steps=7, top_k=1)
        own = replace(sequence, tokens=torch.cat((tokens[: anchor + 1], drafted.tokens)))
        own.features = torch.nn.functional.pad(sequence.features[:anchor], (0, 0, 0, 8))
        scores = forward(head, target, own, torch.tensor([anchor]))[0].log_softmax(-1)
        assert scores.argmax(-1).tolist() == drafted.tokens.tolist()
        torch.testing.assert_close(scores.max(-1).values.cumsum(0), drafted.log_mass, atol=1e-5, rtol=1e-5)


def test_loss_leaves_out_what_the_draft_vocabulary_lacks(target, head, sequences):
    """Equal to a plain sum over the target's vocabulary, label by label."""
    batch = Batches(sequences, BATCH, target.vocab_size).at(0)
    # As if the draft vocabulary had been taken from other outputs: the first label is not in it.
    known = set(head.to_target(torch.arange(96)).tolist())
    batch.labels[0] = next(i for i, token in enumerate(batch.vocabulary.tolist()) if token in known)
    batch.vocabulary[-1] = next(token for token in range(target.vocab_size) if token not in known)
    batch.labels[1] = len(batch.vocabulary) - 1
    with torch.no_grad():
        loss, losses = drafter_loss(head, target.embedding, None, batch, soft_share=0.3)
        hidden = hidden_behind(head, target.embedding, batch.features, batch.tokens, batch.anchors, 4)
        scores = target_logits(head, target, hidden)
    logits = scores.flatten(0, 1)[batch.rows, batch.slots - 1].log_softmax(-1)
    for row in range(len(losses)):
        pairs = [(batch.labels[row], 0.7), *zip(batch.soft_ids[row], 0.3 * batch.soft_weights[row], strict=True)]
        terms = [(int(batch.vocabulary[index]), float(mass)) for index, mass in pairs]
        expected = -sum(mass * float(logits[row, token]) for token, mass in terms if token in known)
        assert float(losses[row]) == pytest.approx(expected, abs=1e-5)
    assert float(loss) == pytest.approx(float((losses * batch.weights).sum() / batch.weights.sum()))


def test_replay_equals_decoding(target, head, sequences):
    """R of the chain, replayed, is what drafting round by round accepts."""
    sequence, depth = sequences[1], depth_of(head)
    tokens, rounds, anchor = sequence.tokens.long(), [], sequence.prompt_tokens
    while anchor < len(tokens) - depth:
        cache, features, paired = head.new_cache(64), sequence.features[:anchor], tokens[1 : anchor + 1]
        if isinstance(head, DartDrafter):
            drafted = head.to_target(head.draft(target, features, paired, cache).argmax(-1))
        else:
            drafted = head.draft(target, features, paired, cache, draft_steps=depth - 1, top_k=1).tokens
        rounds.append(int((drafted == tokens[anchor + 1 : anchor + 1 + depth]).long().cumprod(0).sum()) + 1)
        anchor += rounds[-1]
    assert replay(head, target, sequence).chain == rounds


@pytest.mark.parametrize("kind", KINDS)
def test_recipe_trains_resumes_and_exports_a_head_that_decodes(kind, target, sequences, tmp_path):
    write_shard(tmp_path / "shard-00000.safetensors", sequences, [s.prompt for s in sequences])
    shape = HeadSpec(kind=kind, taps=3, block_size=5, draft_vocab_size=96)
    spec = TrainSpec(
        steps=40, learning_rate=2e-3, evaluate_every=20, checkpoint_every=10, parts=1, short_block=4, batch=BATCH
    )
    spec = replace(spec, validation_share=0.3, max_repeat_share=1.0)
    rows = []
    whole = train(spec, shape, target, tmp_path, tmp_path / "whole", export_to=tmp_path / "head", on_log=rows.append)
    losses = [row["smooth_loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.9 * losses[0]

    class Killed(Exception):
        pass

    steps = iter(range(16))  # six steps behind the last checkpoint

    def tick():
        if next(steps, None) is None:
            raise Killed

    with pytest.raises(Killed):
        train(spec, shape, target, tmp_path, tmp_path / "cut", tick=tick)
    resumed = train(spec, shape, target, tmp_path, tmp_path / "cut")
    assert all(torch.equal(weight, whole.weights()[name]) for name, weight in resumed.weights().items())
    curves = [(tmp_path / run / "curve.csv").read_text().splitlines() for run in ("whole", "cut")]
    without_times = [[(row["step"], row["loss"]) for row in csv.DictReader(curve)] for curve in curves]
    assert without_times[0] == without_times[1]

    export_checkpoint(tmp_path / "whole", tmp_path / "head")
    head = load_drafter(tmp_path / "head", dtype="float32")
    assert head.d2t.dtype == torch.int64 and head.tapped_layers(target.layers) == LAYERS
    assert evaluate(head, target, sequences)[0]["r_universe"] >= 1
    pair = cast.load_pair("random:llama", drafter=tmp_path / "head", dtype="float32")
    prompt = sequences[0].tokens[: sequences[0].prompt_tokens].long()
    plain, drafted = (
        cast.generate(pair, prompt, method=method, max_new_tokens=16) for method in ("autoregressive", kind)
    )
    assert torch.equal(drafted.tokens, plain.tokens)


def test_shapes_that_cannot_be_trained_are_refused(target, sequences, tmp_path):
    write_shard(tmp_path / "shard-00000.safetensors", sequences, [s.prompt for s in sequences])
    for shape, message in (
        (HeadSpec(kind="medusa"), "unknown head.kind"),
        (HeadSpec(kind="eagle3", taps=2), "three layers"),
        (HeadSpec(kind="dart", taps=3, block_size=2), "masked slot"),
        (HeadSpec(kind="dart", taps=4, block_size=5), "the data hold"),
    ):
        with pytest.raises(CastError, match=message):
            train(TrainSpec(batch=BATCH, max_repeat_share=1.0), shape, target, tmp_path, tmp_path / "out")
