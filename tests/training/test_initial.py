"""A new head starts from its target."""

import pytest
import torch
from torch.testing import assert_close

from cast.models.layers import dense
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
