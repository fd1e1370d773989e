"""engine=graph: the static passes equal the eager ones, on a CPU with the capture replaced by a call."""

import contextlib
import dataclasses
import itertools
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import cast
from cast import CastError
from cast.decode.proposers import candidate_tree
from cast.models import GraphTarget, random_pair, with_engine
from cast.models.graph import PACKS, SPAN, CudaGraphs
from cast.trees import best_first_tree, chain_tree
from cast.verify import verify

METHODS = (("autoregressive", {}), ("dflash", {}), ("cast", {"budget": 1}), ("cast", {"budget": 31}))


def rehearsed(run):
    """As the capture of a CUDA graph does, it runs the pass first."""
    run()
    return run


@pytest.fixture
def pair(golden_pair):
    return golden_pair("dflash_tiny_qwen3")


@pytest.fixture
def static_pair(pair):
    return dataclasses.replace(pair, target=GraphTarget(pair.target, lambda: rehearsed))


def prefilled(target, prefix, capacity):
    cache = target.new_cache(capacity)
    positions = torch.arange(len(prefix), device=prefix.device)
    target.forward(prefix, positions, cache, causal=True, last_logits_only=True)
    cache.commit(len(prefix))
    return cache


def trees(vocabulary):
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn(7, vocabulary, generator=generator).log_softmax(-1)
    yield None
    yield chain_tree(torch.arange(6))
    for budget in (1, 2, 9, 63, 127):
        yield best_first_tree(log_probs, budget)


def on_cuda(golden):
    folder = golden / "dflash_tiny_qwen3"
    return cast.load_pair(folder / "target", folder / "drafter", device="cuda", dtype="float32")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def eager_and_static(request, golden):
    """One target in fp64 by its eager passes, and by passes that are captured when they are first asked for."""
    if request.param == "cpu":
        target = request.getfixturevalue("pair").target.to(torch.float64)
        return target, GraphTarget(target, lambda: rehearsed)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pair = on_cuda(golden).to(torch.float64)
    return pair.target, with_engine(pair, "graph").target


@pytest.mark.parametrize("prefix_length", [1, SPAN - 20])  # the second crosses a span inside the larger packs
def test_a_static_pass_is_the_eager_pass(eager_and_static, prefix_length):
    target, static = eager_and_static
    prefix = torch.randint(target.vocab_size, (prefix_length,), generator=torch.Generator().manual_seed(0))
    prefix, root = prefix.to(target.device), torch.tensor([3], device=target.device)
    for tree in trees(target.vocab_size):
        n = 1 if tree is None else len(tree) + 1
        expected = verify(target, prefilled(target, prefix, prefix_length + n), root, tree, (0, 1))
        cache = prefilled(static, prefix, prefix_length + n)
        cache.keys[:, :, cache.length :] = 1e6  # what an earlier generation left behind
        output = verify(static, cache, root, tree, (0, 1))
        torch.testing.assert_close(output.logits, expected.logits, atol=1e-9, rtol=0)
        for ours, theirs in zip(output.taps, expected.taps, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_decodes_the_same_tokens_in_the_same_rounds(pair, static_pair, method, options):
    prompt = torch.arange(5, 25)
    settings = {"method": method, "max_new_tokens": 60, "stop_token_ids": [], **options}
    ours, eager = cast.generate(static_pair, prompt, **settings), cast.generate(pair, prompt, **settings)
    assert ours.tokens.tolist() == eager.tokens.tolist()
    assert ours.committed == eager.committed


@pytest.mark.parametrize("method", ["dflash", "cast"])
@pytest.mark.parametrize("sampler", ["walk", "recursive"])
def test_sampling_from_a_resident_tree_is_sampling_from_the_hosts(pair, static_pair, method, sampler):
    settings = {"method": method, "budget": 15, "sampler": sampler, "max_new_tokens": 40}
    settings |= {"temperature": 1.0, "seed": 4, "stop_token_ids": []}
    ours, eager = (cast.generate(each, torch.arange(9), **settings) for each in (static_pair, pair))
    assert ours.tokens.tolist() == eager.tokens.tolist()
    assert ours.committed == eager.committed


def test_passes_of_all_shapes_leave_their_output_in_one_place(static_pair):
    """So captured shapes cost no memory of logits each."""
    target, taps, logits = static_pair.target, (0, 1), []
    target.prepare(1, SPAN + 200, [1, 10, 128], taps)
    for prefix in (1, SPAN - 10, SPAN + 20):
        cache = prefilled(target, torch.arange(prefix) % 90, SPAN + 200)
        for nodes in (127, 9, 0):
            tree = chain_tree(torch.arange(nodes) % 90) if nodes else None
            output = verify(target, cache, torch.tensor([3]), tree, taps)
            assert [len(rows) for rows in (output.logits, *output.taps)] == [nodes + 1] * 3
            logits.append(output.logits)
    assert len({rows.data_ptr() for rows in logits}) == 1


def test_what_a_generation_that_overflowed_left_behind_is_not_read(pair, static_pair):
    settings = {"budget": 15, "max_new_tokens": 20, "stop_token_ids": []}
    spoilt = static_pair.target.new_cache(100)
    memory = spoilt.keys.data_ptr()
    with torch.inference_mode():
        spoilt.keys.fill_(torch.nan)
        spoilt.values.fill_(torch.nan)
    del spoilt
    reused = static_pair.target.new_cache(100)
    assert reused.keys.data_ptr() == memory
    del reused
    ours, eager = (cast.generate(each, torch.arange(5, 25), **settings) for each in (static_pair, pair))
    assert ours.tokens.tolist() == eager.tokens.tolist()


def test_a_generation_inside_another_ones_callback_leaves_its_features_alone(pair, static_pair):
    prompt, settings = torch.arange(5, 25), {"budget": 15, "stop_token_ids": []}

    def start_another(_):
        cast.generate(static_pair, torch.arange(60, 90), max_new_tokens=4, **settings)

    ours = cast.generate(static_pair, prompt, max_new_tokens=40, on_tokens=start_another, **settings)
    assert ours.committed == cast.generate(pair, prompt, max_new_tokens=40, **settings).committed


def test_a_cache_that_is_let_go_serves_the_next_generation_and_two_at_once_get_two(pair):
    static = GraphTarget(pair.target, lambda: rehearsed)
    first = static.new_cache(100)
    memory = first.keys.data_ptr()
    second = static.new_cache(100)
    assert second.keys.data_ptr() != memory
    del first
    assert static.new_cache(90).keys.data_ptr() == memory


@pytest.fixture
def counted():
    """A pair whose captures are counted, and their count so far."""
    pair, captured = random_pair(), []

    def counting(run):
        captured.append(run)
        return run

    return dataclasses.replace(pair, target=GraphTarget(pair.target, lambda: counting)), lambda: len(captured)


@pytest.mark.parametrize(("prompt_length", "spans"), [(400, 2), (SPAN - 1, 1)])
def test_preparing_captures_all_that_a_generation_runs(counted, prompt_length, spans):
    static, captures = counted
    static.target.prepare(prompt_length, prompt_length + 100 + 32, [32], static.drafter.target_layer_ids)
    assert captures() == spans  # those the sequence grows through, none that its prompt has passed
    prompt = torch.arange(prompt_length) % 90
    cast.generate(static, prompt, budget=31, max_new_tokens=100, stop_token_ids=[])
    assert captures() == spans + 1  # the builder of its trees


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *METHODS,
        *(("cast", {"budget": budget}) for budget in (0, 3)),
        ("cast", {"budget": 63, "top_k": 1}),  # a universe of 15 nodes
        ("cast", {"budget": 100, "top_k": 7, "block_size": 3}),  # of 56
        ("eagle3", {"budget": 59, "top_k": 3, "draft_steps": 2}),  # of 21
        ("dart", {"budget": 60, "top_k": 1}),  # of a chain
        *(("ngram", {"budget": budget}) for budget in (3, 10)),
    ],
)
def test_nothing_is_captured_once_the_output_runs(counted, golden_pair, method, options):
    static, captures = counted
    if method in ("eagle3", "dart"):
        pair = golden_pair(f"{method}_tiny")
        static = dataclasses.replace(pair, target=GraphTarget(pair.target, static.target.new_capture))
    seen = []
    prompt = torch.arange(60) % 7
    cast.generate(
        static,
        prompt,
        method,
        max_new_tokens=60,
        stop_token_ids=[],
        on_tokens=lambda _: seen.append(captures()),
        **options,
    )
    assert len(seen) > 2
    assert seen[0] == seen[-1] > 0


def test_the_passes_over_a_storage_have_a_stream_and_a_pool_of_their_own(pair, monkeypatch):
    """They are warmed up and captured on that stream, and another storage has another."""
    made, inside, seen = itertools.count(), [], []

    class Stream:
        def __init__(self, device):
            self.device, self.number = device, next(made)

        def wait_stream(self, other):
            """Nothing runs here."""

    @contextlib.contextmanager
    def entered(stream, pool):
        inside.append((stream and stream.number, pool))
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: entered(stream, None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream=None: entered(stream, pool))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(made))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(pair.target, "run_layers", lambda *_, **__: seen.append(inside[-1]))
    target = GraphTarget(pair.target, partial(CudaGraphs, torch.device("cuda")))
    places = []
    for cache in [target.new_cache(100) for _ in range(2)]:
        for size in (1, 16):
            target._pass(cache.storage, size, SPAN, ())
        streams, pools = zip(*seen, strict=True)
        assert len(set(streams)) == 1
        assert len(set(pools)) == 2  # none while it warms up, and its own
        places.append({*streams, *pools} - {None})
        seen.clear()
    assert len(set.union(*places)) == 4


def test_trees_of_a_size_are_built_by_one_captured_call_in_one_memory(counted):
    static, captures = counted
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(15, 50, generator=generator) for _ in range(2)]
    expected = [candidate_tree(static.target.eager, each, 20, 4) for each in logits]
    for each, tree in zip(logits, expected, strict=True):
        ours = candidate_tree(static.target, each, 20, 4)
        for name in ("tokens", "parent", "depth", "log_mass"):
            assert torch.equal(getattr(ours, name), getattr(tree, name))
    assert captures() == 1
    assert len(candidate_tree(static.target, logits[0], 21, 4)) == 21
    assert len(candidate_tree(static.target, logits[0][:1], 20, 4)) == 4
    assert captures() == 3


def test_storage_that_became_too_small_is_let_go(pair):
    static, held = GraphTarget(pair.target, lambda: rehearsed), []
    for capacity in (100, 2 * SPAN, 4 * SPAN):
        held.append(weakref.ref(static.new_cache(capacity).storage))
    assert [memory() is None for memory in held] == [True, True, False]


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "dflash"}, {"temperature": 1.0}, {"temperature": 1.0, "sampler": "recursive"}],
)
def test_nan_of_the_drafter_is_refused(pair, static_pair, options):
    broken = dataclasses.replace(static_pair, drafter=pair.to(pair.dtype).drafter)
    broken.drafter.norm.weight[0] = torch.nan
    with pytest.raises(CastError, match="drafter returned NaN"):
        cast.generate(broken, torch.arange(9), budget=7, max_new_tokens=20, **options)


def test_the_cpu_has_no_graphs_and_says_so(pair):
    with pytest.raises(CastError, match="engine=eager") as error:
        cast.generate(pair, torch.arange(5), engine="graph")
    assert "\n" not in str(error.value)
    with pytest.raises(CastError, match="engines: eager, graph"):
        with_engine(pair, "triton")
    assert with_engine(pair, "eager").target is pair.target


def test_experts_are_refused():
    with pytest.raises(CastError, match="mixture of experts"):
        GraphTarget(
            random_pair("qwen3_moe", None, device=torch.device("cpu"), dtype=torch.float32).target, lambda: rehearsed
        )


def test_the_papers_widths_need_no_padding():
    assert {2**k for k in range(11)} <= set(PACKS)
    assert list(PACKS) == sorted(PACKS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("method", "options"), METHODS)
def test_captured_graphs_decode_what_the_eager_engine_decodes(golden, method, options):
    pair = on_cuda(golden)
    for max_new_tokens in (60, 480, 60):  # the second on larger storage, the third on graphs that are there
        settings = {"method": method, "max_new_tokens": max_new_tokens, "stop_token_ids": [], **options}
        eager = cast.generate(pair, torch.arange(5, 25), **settings)
        graph = cast.generate(pair, torch.arange(5, 25), engine="graph", **settings)
        assert graph.tokens.tolist() == eager.tokens.tolist()
        assert graph.committed == eager.committed
