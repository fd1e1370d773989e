"""On a CUDA device: fp32 decoding emits what the CPU emits, in every engine and with every method."""

import pytest
import torch

import cast

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def gpu_pair(golden):
    folders = {}

    def load(name):
        if name not in folders:
            folders[name] = cast.load_pair(golden / name / "target", golden / name / "drafter", device="cuda")
        return folders[name]

    return load


@pytest.fixture(autouse=True)
def exact_matrix_products():
    """fp32 products in fp32, not in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize(
    ("method", "budget"), [("autoregressive", None), ("dflash", None), ("cast", 7), ("cast", 31), ("cast", 127)]
)
def test_the_gpu_decodes_what_the_cpu_decodes(gpu_pair, pair_name, prompts, plain_of, engine, method, budget):
    for index, prompt in enumerate(prompts[:2]):
        expected = plain_of(pair_name, index, 64)
        out = cast.generate(
            gpu_pair(pair_name),
            prompt,
            method,
            budget,
            max_new_tokens=64,
            stop_token_ids=[],
            engine=engine,
        )
        assert out.tokens.tolist() == expected


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_a_seed_samples_the_same_tree_decoding_on_both_devices(gpu_pair, pair, pair_name, prompt, engine, sampler):
    settings = {"temperature": 1.0, "seed": 3, "sampler": sampler, "budget": 15, "max_new_tokens": 24}
    ours = cast.generate(gpu_pair(pair_name), prompt, engine=engine, stop_token_ids=[], **settings)
    assert ours.tokens.tolist() == cast.generate(pair, prompt, stop_token_ids=[], **settings).tokens.tolist()


def test_two_generations_at_once_do_not_share_a_cache(gpu_pair, pair_name, prompts, plain_of):
    """A second generation starts inside the first one's callback."""
    pair, inner = gpu_pair(pair_name), []

    def start_another(_):
        if not inner:
            settings = {"max_new_tokens": 32, "stop_token_ids": [], "engine": "graph"}
            inner.append(cast.generate(pair, prompts[1], "cast", 15, **settings).tokens.tolist())

    outer = cast.generate(
        pair, prompts[0], "cast", 15, max_new_tokens=32, stop_token_ids=[], engine="graph", on_tokens=start_another
    )
    assert outer.tokens.tolist() == plain_of(pair_name, 0, 32)
    assert inner[0] == plain_of(pair_name, 1, 32)
