"""Token-for-token and round-for-round agreement with traces of the public DFlash and DDTree implementations."""

import json

import pytest
import torch
from safetensors.torch import load_file

import cast
from cast.models import KVCache

PAIRS = ("dflash_tiny_qwen3", "dflash_tiny_llama")
TREE_CASES = [(pair, budget) for pair in PAIRS for budget in (7, 15, 31, 63)]


def needed_rounds(acceptance_lengths, new_tokens):
    """The reference's rounds without the one it still runs when its output is already exactly full."""
    full_before_last = 1 + sum(acceptance_lengths[:-1]) == new_tokens
    return len(acceptance_lengths) - full_before_last


def read(golden, pair, name):
    return json.loads((golden / pair / name).read_text())


@pytest.mark.parametrize("pair_name", PAIRS)
def test_target_hidden_states_match_stock_transformers(golden, golden_pair, pair_name):
    pair, tensors = golden_pair(pair_name), load_file(golden / pair_name / "draft_forward.safetensors")
    prompt = tensors["prompt_ids"][0]
    cache = pair.target.new_cache(len(prompt))
    output = pair.target.forward(
        prompt, torch.arange(len(prompt)), cache, causal=True, taps=range(pair.target.layers - 1)
    )
    for layer, hidden in enumerate(output.taps):
        torch.testing.assert_close(
            hidden, tensors["prompt_hidden_states_tuple"][layer + 1], atol=1e-4, rtol=0, msg=f"layer {layer}"
        )


@pytest.mark.parametrize("pair_name", PAIRS)
def test_three_consecutive_draft_calls(golden, golden_pair, pair_name):
    pair, tensors = golden_pair(pair_name), load_file(golden / pair_name / "draft_forward.safetensors")
    cache = pair.drafter.new_cache(128)
    for call in (1, 2, 3):
        of = {key.split(".", 1)[1]: value for key, value in tensors.items() if key.startswith(f"call{call}.")}
        assert cache.length == int(of["cache_len_before"])
        for layer in range(pair.drafter.config.layers) if call > 1 else ():
            held = cache.keys[layer, :, : cache.length], cache.values[layer, :, : cache.length]
            for ours, name in zip(held, ("keys", "values"), strict=True):
                torch.testing.assert_close(ours, of[f"cache_{name}_before.{layer}"][0], atol=1e-4, rtol=0)
        logits = pair.drafter.draft(pair.target, of["target_hidden"][0], of["block_input_ids"][0, :1], cache)
        torch.testing.assert_close(logits, of["draft_logits"][0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["autoregressive", "dflash"])
@pytest.mark.parametrize("pair_name", PAIRS)
def test_chain_trace(golden, golden_pair, pair_name, method):
    trace = read(golden, pair_name, "dflash_trace.json")
    for case in trace["prompts"]:
        out = cast.generate(
            golden_pair(pair_name), torch.tensor(case["prompt"]), method, max_new_tokens=64, stop_token_ids=[]
        )
        assert out.tokens.tolist() == case["new_tokens"]
        reference = case["acceptance_lengths"] if method == "dflash" else [1] * 64
        assert out.committed == reference[: needed_rounds(reference, 64)]


@pytest.mark.parametrize("pair_name", PAIRS)
def test_stop_cases(golden, golden_pair, pair_name):
    trace = read(golden, pair_name, "dflash_trace.json")
    for case in trace["stop_cases"]:
        prompt = trace["prompts"][case["prompt_index"]]["prompt"]
        out = cast.generate(
            golden_pair(pair_name),
            torch.tensor(prompt),
            "dflash",
            max_new_tokens=64,
            stop_token_ids=case["stop_token_ids"],
        )
        assert prompt + out.tokens.tolist() == case["output_ids"]
        assert out.committed == case["acceptance_lengths"]


@pytest.mark.parametrize(("pair_name", "budget"), TREE_CASES)
def test_tree_trace(golden, golden_pair, pair_name, budget, monkeypatch):
    """Outputs, acceptance lengths, every round's tree and every accepted path, at DDTree's rank cap min(N, V)."""
    trace, prompts = read(golden, pair_name, "ddtree_trace.json"), read(golden, pair_name, "prompts.json")
    trees, commits = [], []
    build, commit = cast.decode.proposers.block.best_first_tree_from_topk, KVCache.commit
    monkeypatch.setattr(
        cast.decode.proposers.block, "best_first_tree_from_topk", lambda *a: trees.append(build(*a)) or trees[-1]
    )
    monkeypatch.setattr(
        KVCache, "commit", lambda self, rows: (isinstance(rows, list) and commits.append(rows)) or commit(self, rows)
    )
    for case in trace["budgets"][str(budget)]["prompts"]:
        trees.clear(), commits.clear()
        prompt = prompts[case["prompt_index"]]
        out = cast.generate(
            golden_pair(pair_name),
            torch.tensor(prompt),
            "cast",
            budget=budget,
            top_k=budget,
            max_new_tokens=trace["max_new_tokens"],
            stop_token_ids=[],
        )
        assert prompt + out.tokens.tolist() == case["output_ids"]
        rounds = needed_rounds(case["acceptance_lengths"], trace["max_new_tokens"])
        assert out.committed == case["acceptance_lengths"][:rounds]
        assert len(trees) == rounds
        for tree, rows, reference in zip(trees, commits, case["rounds"][:rounds], strict=True):
            assert tree.tokens.tolist() == reference["node_token_ids"]
            assert tree.depth.tolist() == reference["node_depths"]
            assert (tree.parent + 1).tolist() == reference["parents"][1:]
            assert rows == reference["accepted_indices"]


@pytest.mark.parametrize("pair_name", PAIRS)
@pytest.mark.parametrize("budget", [1, 7, 63])
def test_rank_cap_of_eight_keeps_the_output(golden, golden_pair, pair_name, budget):
    for case in read(golden, pair_name, "dflash_trace.json")["prompts"]:
        out = cast.generate(
            golden_pair(pair_name),
            torch.tensor(case["prompt"]),
            "cast",
            budget=budget,
            max_new_tokens=64,
            stop_token_ids=[],
        )
        assert out.tokens.tolist() == case["new_tokens"]
