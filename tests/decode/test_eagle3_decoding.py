"""EAGLE-3 decoding: the public code's trees and traces, plain decoding's tokens, and what a round costs."""

import json

import pytest
import torch
from safetensors.torch import load_file

import cast
from cast import CastError
from cast.decode.proposers import eagle3
from cast.models.eagle3 import DraftedCandidates
from cast.models.loading import load_drafter
from cast.trees import ancestor_mask

CONFIGS = ["total16_depth7_topk10", "total60_depth7_topk10", "total8_depth7_topk1"]


@pytest.fixture(scope="module")
def trace(golden):
    return json.loads((golden / "eagle3_tiny" / "eagenerate_trace.json").read_text())["configs"]


@pytest.fixture
def pair(golden_pair):
    return golden_pair("eagle3_tiny")


@pytest.fixture
def drafted_trees(monkeypatch):
    """Every tree proposed from here on."""
    trees, build = [], eagle3.best_candidates
    monkeypatch.setattr(eagle3, "best_candidates", lambda *a: trees.append(build(*a)) or trees[-1])
    return trees


@pytest.mark.parametrize("total", [16, 60])
def test_golden_trees(golden, total):
    """Tokens, parents, depths, mask and final order of both recorded calls."""
    of = load_file(golden / "eagle3_tiny" / "topk_genrate.safetensors")
    head = load_drafter(golden / "eagle3_tiny" / "random_head", device="cpu", dtype=torch.float64)
    calls = json.loads((golden / "eagle3_tiny" / "topk_genrate.json").read_text())["calls"]
    cache = head.new_cache(128)
    for number in ("1", "2"):
        features = of["feat" + number][0].double()
        tokens = of["ids" + number][0, -len(features) :]
        tree = eagle3.best_candidates(head.draft(None, features, tokens, cache, draft_steps=7, top_k=10), total - 1)
        name = f"t{total}_call{number}"
        assert tree.tokens.tolist() == calls[name]["draft_tokens"][1:]
        assert (tree.parent + 1).tolist() == calls[name]["parents"][1:]
        assert tree.depth.tolist() == calls[name]["tree_position_ids"][1:]
        assert torch.equal(ancestor_mask(tree), of[name + ".tree_mask"][0, 0].bool())


@pytest.mark.parametrize("name", CONFIGS)
def test_golden_trace(pair, trace, name, drafted_trees):
    """Outputs, acceptance lengths and every round's tree of the official end-to-end runs.

    In fp64: the recorded masses come as close as 1e-5, which rounding of our own would not always tell apart.
    """
    pair = pair.to(torch.float64)
    config = trace[name]
    options = {"budget": config["total_token"] - 1, "top_k": config["top_k"], "draft_steps": config["depth"]}
    for case in config["prompts"]:
        drafted_trees.clear()
        prompt, expected = case["prompt"], case["output_ids"][len(case["prompt"]) :]
        out = cast.generate(
            pair, torch.tensor(prompt), "eagle3", max_new_tokens=len(expected), stop_token_ids=[], **options
        )
        assert out.tokens.tolist() == expected
        assert out.committed == case["accept_length_plus_one"]
        assert len(drafted_trees) == len(case["rounds"])
        for tree, round_ in zip(drafted_trees, case["rounds"], strict=True):
            assert tree.tokens.tolist() == round_["draft_tokens"][1:]
            assert (tree.parent + 1).tolist() == round_["parents"][1:]
            assert tree.depth.tolist() == round_["tree_position_ids"][1:]
        # Seven draft steps are eight passes: the first reads the committed tokens.
        assert out.run.drafter_passes == 8 * len(out.committed)


@pytest.mark.parametrize(
    "options",
    [{"budget": 0}, {"budget": 1}, {"draft_steps": 0}, {"draft_steps": 1, "top_k": 3}, {"budget": 200, "top_k": 4}],
)
def test_any_shape_emits_plain_decodings_tokens(pair, trace, options, drafted_trees):
    for case in trace[CONFIGS[0]]["prompts"][:1]:
        prompt, expected = torch.tensor(case["prompt"]), case["output_ids"][len(case["prompt"]) :][:30]
        out = cast.generate(pair, prompt, "eagle3", max_new_tokens=30, stop_token_ids=[], **options)
        assert out.tokens.tolist() == expected
        steps, width = options.get("draft_steps", 7), options.get("top_k", 10)
        assert out.run.drafter_passes == (steps + 1) * len(out.committed)
        assert max(len(tree) for tree in drafted_trees) == min(options.get("budget", 59), width + steps * width**2)


def test_prompts_of_one_token_and_the_last_position(pair):
    prompt = torch.tensor([5])
    plain = cast.generate(pair, prompt, "autoregressive", max_new_tokens=30, stop_token_ids=[])
    out = cast.generate(pair, prompt, "eagle3", max_new_tokens=30, stop_token_ids=[])
    assert out.tokens.tolist() == plain.tokens.tolist()
    long = torch.arange(pair.target.max_positions - 3) % 90
    plain = cast.generate(pair, long, "autoregressive", max_new_tokens=3, stop_token_ids=[])
    out = cast.generate(pair, long, "eagle3", max_new_tokens=3, stop_token_ids=[])
    assert out.tokens.tolist() == plain.tokens.tolist()


def test_interleaved_generations_share_a_head(pair, trace):
    """A generation inside another's callback leaves both as they were alone."""
    first, second = (torch.tensor(case["prompt"]) for case in trace[CONFIGS[0]]["prompts"][:2])
    options = {"method": "eagle3", "max_new_tokens": 20, "stop_token_ids": []}
    alone = [cast.generate(pair, prompt, **options).tokens.tolist() for prompt in (first, second)]
    inner = []

    def nested(_):
        if not inner:
            inner.append(cast.generate(pair, second, **options).tokens.tolist())

    assert [cast.generate(pair, first, on_tokens=nested, **options).tokens.tolist(), inner[0]] == alone


def test_stages_are_charged_to_drafting_and_verifying(pair, trace):
    prompt = torch.tensor(trace[CONFIGS[0]]["prompts"][0]["prompt"])
    out = cast.generate(pair, prompt, "eagle3", max_new_tokens=20, traced=True)
    assert set(out.run.trace_ms) == {"draft", "verify", "other"}
    assert out.run.trace_ms["draft"] > 0
    assert sum(out.run.trace_ms.values()) == pytest.approx(out.decode_ms, rel=0.2)


@pytest.mark.parametrize(
    "options", [{"budget": -1}, {"top_k": 0}, {"draft_steps": -1}, {"draft_steps": 8, "budget": 3}, {"draft_steps": 59}]
)
def test_settings_out_of_range(pair, options):
    with pytest.raises(CastError, match=f"{next(iter(options))} must be at"):
        cast.generate(pair, torch.tensor([1, 2]), "eagle3", **options)


def test_every_step_that_a_tree_can_use_is_allowed(pair, monkeypatch):
    """As deep as it has nodes, with one candidate a level; and no wider than a sort of its candidates is sane."""
    prompt = torch.tensor([47, 75, 4])
    plain = cast.generate(pair, prompt, "autoregressive", max_new_tokens=6, stop_token_ids=[]).tokens.tolist()
    for options in ({"budget": 12, "draft_steps": 11, "top_k": 1}, {"budget": 3, "draft_steps": 7}):
        out = cast.generate(pair, prompt, "eagle3", max_new_tokens=6, stop_token_ids=[], **options)
        assert out.tokens.tolist() == plain
    monkeypatch.setattr(eagle3, "MOST_CANDIDATES", 709)
    with pytest.raises(CastError, match="top_k 10 and draft_steps 7 record 710 candidates"):
        cast.generate(pair, prompt, "eagle3")


@pytest.mark.parametrize("steps", [1.5, "3", None, float("nan")])
def test_draft_steps_that_are_no_number(pair, steps):
    with pytest.raises(CastError, match="draft_steps must be a whole number"):
        cast.generate(pair, torch.tensor([1, 2]), "eagle3", draft_steps=steps)


def test_an_option_of_another_method(pair):
    with pytest.raises(CastError, match="method 'eagle3' has no option 'trie'; it takes draft_steps"):
        cast.generate(pair, torch.tensor([1, 2]), "eagle3", trie="x")
    with pytest.raises(CastError, match="method 'autoregressive' has no option 'max_new_token'; it has none of its"):
        cast.generate(pair, torch.tensor([1, 2]), "autoregressive", max_new_token=5)


def test_ties_keep_parents_before_children():
    """A certain child has its parent's mass; the parent was recorded first and wins."""
    drafted = DraftedCandidates(
        torch.tensor([4, 5, 6, 7]), torch.tensor([-1, -1, 0, 2]), torch.tensor([-0.5, -0.1, -0.5, -0.5])
    )
    tree = eagle3.best_candidates(drafted, 3)
    assert tree.tokens.tolist() == [4, 5, 6]
    assert tree.parent.tolist() == [-1, -1, 0]
    assert tree.depth.tolist() == [1, 1, 2]


def test_nan_scores_are_refused(golden, pair):
    broken = load_drafter(golden / "eagle3_tiny" / "drafter", device="cpu")
    broken.lm_head.weight[3] = torch.nan
    with pytest.raises(CastError, match="NaN"):
        cast.generate(pair.with_drafter(broken), torch.tensor([1, 2, 3]), "eagle3")
