"""The worked example: one round, chain and tree from the same scores, told apart by what the target wants."""

import dataclasses

import pandas as pd
import pytest
import torch

from cast.errors import CastError
from cast.experiments import worked_example
from cast.experiments.records import EXAMPLE
from cast.experiments.worked_example import WorkedExampleSpec
from cast.trees import best_first_tree_from_topk


@pytest.fixture
def tiny_pair(golden_pair, stopping_at):
    return stopping_at(golden_pair("dflash_tiny_qwen3"))


@pytest.fixture
def tiny_prompts(golden_prompts):
    return golden_prompts("dflash_tiny_qwen3")


@pytest.fixture
def spec():
    return WorkedExampleSpec(budget=15, top_k=4, lead=1, max_new_tokens=24)


@pytest.fixture
def rows(tiny_pair, tiny_prompts, spec):
    return pd.DataFrame(worked_example.run(tiny_pair, tiny_prompts, spec))


def test_the_tree_is_the_best_first_tree_of_the_recorded_candidates(rows, spec):
    candidates = rows[rows["kind"] == "candidate"].sort_values(["depth", "rank"])
    scores = torch.tensor(candidates.pivot(index="depth", columns="rank", values="log_probability").to_numpy())
    tokens = torch.tensor(candidates.pivot(index="depth", columns="rank", values="token_id").to_numpy())
    expected = best_first_tree_from_topk(scores.float(), tokens.long(), spec.budget)
    tree = rows[rows["kind"] == "tree"]
    assert tree["token_id"].tolist() == expected.tokens.tolist()
    assert tree["parent"].tolist() == expected.parent.tolist()


def test_the_chain_is_the_first_candidate_of_each_position(rows):
    first = rows[(rows["kind"] == "candidate") & (rows["rank"] == 1)]
    assert rows[rows["kind"] == "chain"]["token_id"].tolist() == first["token_id"].tolist()


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_accepted_nodes_are_the_longest_path_the_target_wants(rows, kind):
    wanted = rows[rows["kind"] == "target"].sort_values("depth")["token_id"].tolist()
    nodes = rows[rows["kind"] == kind].set_index("node")
    accepted = nodes[nodes["accepted"].astype(bool)].sort_values("depth")
    assert accepted["token_id"].tolist() == wanted[: len(accepted)]
    assert accepted["parent"].tolist() == [-1, *accepted.index[:-1]]
    last = accepted.index[-1] if len(accepted) else -1
    children = nodes[nodes["parent"] == last]["token_id"].tolist()
    assert len(accepted) == len(wanted) or wanted[len(accepted)] not in children


def test_the_round_is_the_first_with_the_lead(rows, spec, tiny_pair, tiny_prompts):
    lead = rows.groupby("kind")["accepted"].sum()
    assert lead["tree"] - lead["chain"] >= spec.lead
    earlier = worked_example.run(tiny_pair, tiny_prompts, dataclasses.replace(spec, lead=0))
    first, shown = earlier[0], rows.iloc[0]
    order = [prompt.id for prompt in tiny_prompts]
    assert (order.index(first["prompt_id"]), first["round"]) <= (order.index(shown["prompt_id"]), shown["round"])


def test_its_rows_are_records(rows, as_records):
    record = as_records(rows.to_dict("records"), EXAMPLE)
    assert (record["status"] == "measured").all()


def test_no_round_to_show_is_one_clear_line(tiny_pair, tiny_prompts, spec):
    with pytest.raises(CastError, match="no prompt has a round to show"):
        worked_example.run(tiny_pair, tiny_prompts[:1], dataclasses.replace(spec, max_new_tokens=2))
