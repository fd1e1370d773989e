"""A new head starts from its target."""

import math

import pytest
import torch
from torch.testing import assert_close

from cast.errors import CastError
from cast.models.layers import dense
from cast.models.random_models import random_pair
from cast.training.batches import BatchSpec
from cast.training.data import training_prompts
from cast.training.recipe import check_head, export_checkpoint
from cast.training.specs import DataSpec, HeadSpec, TrainSpec
from cast.training.trainer import REFERENCE_SIZE, Trainer


def test_layers_norm_and_last_tap_are_the_targets(target, drafter):
    hidden = target.hidden_size
    assert_close(drafter.norm.weight, target.final_norm)
    features = torch.randn(3, 2 * hidden)
    assert_close(drafter.fc(features), features[:, hidden:])
    for layer, source in zip(drafter.layers, target.decoder_layers[-2:], strict=True):
        assert_close(layer.self_attn.o_proj.weight, dense(source.out))
        fused = torch.cat((layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight))
        assert_close(fused, dense(source.gate_up))


def test_normed_queries_have_the_targets_size(target, drafter, sequences):
    """The norm's weights restore the root mean square that queries have in the target without a norm."""
    source, layer = target.decoder_layers[-1], drafter.layers[-1]
    weight = layer.self_attn.q_norm.weight
    assert (weight > 0).all() and weight.chunk(2)[0].equal(weight.chunk(2)[1])
    queries = layer.self_attn._split(torch.randn(400, target.hidden_size) @ layer.self_attn.q_proj.weight.T)
    size = layer.self_attn.q_norm(queries).square().mean().sqrt()
    assert size.item() == pytest.approx(weight.square().mean().sqrt().item(), rel=0.2)
    assert source.query_norm is None


def test_matrices_learn_in_proportion_to_their_size(target, raw_config, drafter, tmp_path):
    trainer = Trainer(target, raw_config, drafter.state_dict(), tmp_path)
    groups = trainer.optimiser.param_groups
    scales = [group["scale"] for group in groups if group["params"][0].ndim > 1]
    assert scales[0] == pytest.approx(drafter.fc.weight.square().mean().sqrt().item() / REFERENCE_SIZE)
    assert sum(len(group["params"]) for group in groups) == len(list(drafter.parameters()))


def test_what_no_head_can_begin_from_is_told_before_generating(target):
    experts = random_pair("qwen3_moe", None).target
    for shape, given, message in (
        (HeadSpec(layers=1, taps=1), experts, "these have experts where a head has one MLP; name a head to go on from"),
        (HeadSpec(kind="eagle3", taps=3), experts, "these have experts"),
        (HeadSpec(layers=target.layers, taps=1), target, f"{target.layers - 1} at most, not {target.layers}"),
        (HeadSpec(layers=1, taps=1, intermediate_size=10**6), target, "MLP width 1000000 exceeds the target's"),
        (HeadSpec(layers=1, taps=1, mask_token_id=10**6), target, "head.mask_token_id 1000000 is no token"),
    ):
        with pytest.raises(CastError, match=message):
            check_head(TrainSpec(), shape, given)
    with pytest.raises(CastError, match="no/such"):
        check_head(TrainSpec(start_from="no/such/head"), HeadSpec(layers=1, taps=1), target)
    check_head(TrainSpec(), HeadSpec(layers=1, taps=1), target)


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (HeadSpec, {"layers": 0}, "head.layers must be 1 or more, not 0"),
        (HeadSpec, {"mask_token_id": -1}, "head.mask_token_id must be 0 or more"),
        (DataSpec, {"batch_size": 0}, "generate.batch_size must be 1 or more"),
        (DataSpec, {"worker": (0,)}, r"generate.worker \[0\] is none"),
        (DataSpec, {"templates": 0, "library": 0, "self_written": 0}, "generate names no prompts"),
        (TrainSpec, {"learning_rate": math.nan}, "training.learning_rate must be 0 or more, not nan"),
        (TrainSpec, {"data_share": 0.0}, "training.data_share must be a finite number above 0"),
        (TrainSpec, {"short_share": 1.5}, "training.short_share must be from 0 to 1, not 1.5"),
        (TrainSpec, {"evaluate_every": 0}, "training.evaluate_every must be 1 or more"),
        (BatchSpec, {"decay": 0.0}, "training.batch.decay must be a finite number above 0"),
    ],
)
def test_values_out_of_range_are_told_at_once(spec, values, message):
    with pytest.raises(CastError, match=message):
        spec(**values)


@pytest.mark.parametrize("content", [None, '{"prompt": 3}', "{", '{"other": "x"}', "[1]"])
def test_a_file_of_prompts_that_cannot_be_read_is_named(content, target, tmp_path):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    spec = DataSpec(0, 0, 0, files=[{"path": str(path), "field": "prompt", "domain": "mine"}])
    with pytest.raises(CastError, match=r"generate.files: .*prompts.jsonl.* cannot be read"):
        next(training_prompts(spec, target, None, tmp_path))


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CastError, match=r"checkpoint.pt is no checkpoint of a training"):
        export_checkpoint(tmp_path, tmp_path / "head")
