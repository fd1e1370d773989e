"""What a round asks of the device beside its passes: how often it waits for it, and which masks its passes take.

It waits once for its walk, and once more where the host builds the tree. Counted by CUDA itself where there is a GPU,
and on a CPU that plays one.
"""

import copy
import dataclasses
import itertools
import warnings
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import cast
from cast.models import GraphTarget, layers

CUDA = torch.device("cuda", 0)

WALK, BOTH = 1, 2
"""Waits of a round: for its walk, and before it for the scores or tokens that the host builds a tree from."""

ROUNDS = [
    *(("eager", *each) for each in [("autoregressive", WALK), ("dflash", BOTH), ("cast", BOTH), ("ngram", WALK)]),
    *(("graph", *each) for each in [("autoregressive", WALK), ("dflash", WALK), ("cast", WALK)]),
    *(("eager", *each) for each in [("eagle3", BOTH), ("dart", BOTH)]),
]
HEADS = {"eagle3": "eagle3_tiny", "dart": "dart_tiny"}


def generated(pair, method, on_tokens=None):
    prompt = torch.arange(40) % 7 + 5
    cast.generate(pair, prompt, method, max_new_tokens=24, stop_token_ids=[], on_tokens=on_tokens)


def waits_of_rounds(pair, method, waits):
    """The waits of each round from the second on, by a count of all so far; the first ends the prefill, too."""
    seen = []
    generated(pair, method, lambda _: seen.append(waits()))
    return [after - before for before, after in itertools.pairwise(seen)][1:]


class Elsewhere(Tensor):
    """A tensor of this process that says a GPU holds it; what is computed from it says so, too."""

    device = CUDA


READS = {Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, Tensor.equal, torch.nonzero, torch.equal}
READS |= {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__}
WRITES = {Tensor.copy_: 1, Tensor.__setitem__: 2}
"""And which of their arguments is what they copy."""


class PlayedDevice(TorchFunctionMode):
    """Serves what is asked of a GPU from this process's memory, and counts the calls that would wait for one."""

    waits = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return self._moved(*args, **kwargs)
        there = any(issubclass(kind, Elsewhere) for kind in types)
        self.waits += there and (func in READS or self._between(func, args, kwargs) or self._by_mask(func, args))
        made = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        if made:
            kwargs["device"] = "cpu"
            self.waits += func is torch.tensor  # it copies while the host waits
        result = func(*args, **kwargs)
        if made or func is Tensor.cpu:
            return _as(Elsewhere if made else Tensor, result)
        return result

    def _moved(self, tensor, *options, non_blocking=False, **named):
        places = [each for each in (*options, named.pop("device", None)) if isinstance(each, str | torch.device)]
        there = isinstance(tensor, Elsewhere)
        goes = torch.device(places[0]).type == "cuda" if places else there
        self.waits += there != goes and (there or not non_blocking)
        kinds = [each for each in options if isinstance(each, torch.dtype)]
        return _as(Elsewhere if goes else Tensor, _as(Tensor, tensor).to(*kinds, **named))

    @staticmethod
    def _between(func, args, kwargs):
        copied = args[WRITES[func]] if func in WRITES else None
        blocks = isinstance(copied, Tensor) and copied.dim() and not kwargs.get("non_blocking")
        return bool(blocks) and isinstance(copied, Elsewhere) != isinstance(args[0], Elsewhere)

    @staticmethod
    def _by_mask(func, args):
        """Indexing by a mask has a size that only the device knows."""
        index = args[1] if func in (Tensor.__getitem__, Tensor.__setitem__) else ()
        parts = index if isinstance(index, tuple) else (index,)
        return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _as(kind, tensor):
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(kind)


def placed(pair, engine):
    """A copy of a pair whose target, drafter and their caches are on the device that a CPU plays."""
    target, drafter = copy.copy(pair.target), copy.deepcopy(pair.drafter)
    target.device, target._rotary_table = CUDA, None
    for module in drafter.modules():
        for name, weight in module._parameters.items():
            module._parameters[name] = weight if weight is None else _as(Elsewhere, weight.detach())
    if engine == "graph":
        target = GraphTarget(target, lambda: lambda run: run)
    return dataclasses.replace(pair, target=target, drafter=drafter)


@pytest.fixture
def causal_kernels(monkeypatch):
    """Prepares this process to play a device; gives (n, entries) of each call of its causal kernel behind a prefix."""
    calls = []

    def mask(n, entries):  # torch's own form of it looks for a real GPU
        calls.append((n, entries))
        return torch.ones(n, entries).tril(entries - n) > 0

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(layers, "causal_behind_prefix", mask)
    return calls


@pytest.mark.parametrize(("engine", "method", "waits"), ROUNDS)
def test_a_round_waits_for_its_walk_and_for_a_tree_that_the_host_builds(
    golden_pair, causal_kernels, engine, method, waits
):
    pair = placed(golden_pair(HEADS.get(method, "dflash_tiny_qwen3")), engine)
    with PlayedDevice() as device:
        rounds = waits_of_rounds(pair, method, lambda: device.waits)
    assert len(rounds) > 2
    assert set(rounds) == {waits}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("engine", "method", "waits"), ROUNDS)
def test_cuda_counts_as_many(golden, engine, method, waits):
    name = HEADS.get(method, "dflash_tiny_qwen3")
    target = "eagle3_tiny" if name == "dart_tiny" else name
    pair = cast.load_pair(golden / target / "target", golden / name / "drafter", device="cuda")
    pair = cast.models.with_engine(pair, engine)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            rounds = waits_of_rounds(pair, method, lambda: sum("synchronizing" in str(each.message) for each in told))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(rounds) > 2
    assert set(rounds) == {waits}


NEITHER, CAUSAL, MASK = (False, False), (False, True), (True, False)
"""What a pass takes: a mask, and the causal kernel."""

ON_A_CPU = [("autoregressive", NEITHER), ("dflash", MASK), ("cast", MASK)]
ON_A_GPU = [("autoregressive", NEITHER), ("dflash", CAUSAL), ("cast", MASK)]


def taken_by_passes(pair, method):
    """What each target pass of a generation takes, the prompt's first."""
    taken, forward = [], pair.target.forward

    def watched(*arguments, mask=None, causal=False, **options):
        taken.append((mask is not None, causal))
        return forward(*arguments, mask=mask, causal=causal, **options)

    with mock.patch.object(pair.target, "forward", watched):
        generated(pair, method)
    return taken


def assert_taken(taken, by_each_round):
    prompt, *rounds = taken
    assert prompt == CAUSAL
    assert len(rounds) > 2
    assert set(rounds) == {by_each_round}


@pytest.mark.parametrize(("method", "by_each_round"), ON_A_CPU)
def test_on_a_cpu_plain_decoding_alone_takes_no_mask(golden_pair, method, by_each_round):
    assert_taken(taken_by_passes(golden_pair("dflash_tiny_qwen3"), method), by_each_round)


@pytest.mark.parametrize(("method", "by_each_round"), ON_A_GPU)
def test_a_chain_takes_a_gpus_causal_kernel_instead_of_a_mask(golden_pair, causal_kernels, method, by_each_round):
    pair = placed(golden_pair("dflash_tiny_qwen3"), "eager")
    with PlayedDevice():
        taken = taken_by_passes(pair, method)
    assert_taken(taken, by_each_round)
    # In each layer of each of the chain's passes; that of the prompt, which stands behind no prefix, is another.
    chains = taken[1:].count(CAUSAL)
    assert [n for n, _ in causal_kernels] == [pair.drafter.block_size] * chains * pair.target.layers


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("method", "by_each_round"), ON_A_GPU)
def test_cuda_is_given_the_same(golden, method, by_each_round):
    folder = golden / "dflash_tiny_qwen3"
    pair = cast.load_pair(folder / "target", folder / "drafter", device="cuda")
    assert_taken(taken_by_passes(pair, method), by_each_round)
