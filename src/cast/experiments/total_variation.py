"""The samplers' draws against autoregressive sampling: total variation, its Monte-Carlo floor, a chi-square test.

At a fixed prefix one real tree is drafted and verified, and the samplers walk it many times over: the same
selectors and the same tree as in decoding, at the price of one target pass. What is compared is the first
token of the round, and the token after the root's most likely child in those walks that reach it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from cast.decode import generate, make_proposer
from cast.decode.generate import SAMPLERS
from cast.experiments.prompts import Prompt
from cast.experiments.width_sweep import encode_for
from cast.models import KVCache, Pair, Target
from cast.models.checkpoint import DTYPES
from cast.trees import CandidateTree
from cast.verify import SampledSelector, Selector, TargetLaw, verify, walk
from cast.verify.select import LogitsProcessor

CONTROL = "autoregressive"
"""Beside the samplers: plain sampling through the same code, whose distance is the floor by construction."""
SEQUENCE = "sequence"
QUANTILE = 0.999


@dataclass(frozen=True)
class TotalVariationSpec:
    """What to draw.

    Attributes:
        samplers: among "walk" and "recursive"; plain sampling always comes with them.
        dtypes: precisions in which everything (target, drafter, tree, law) is computed.
        draws: numbers of walks at which the distance is taken; the largest is how many there are.
        floor_samples: simulated multinomial samples behind each floor.
        lead_tokens: greedy tokens between the prompt and the pending root.
        top_p: None for the whole softmax; else transformers' top-p warper, whose law is then the target's.
        sequence_draws: generations of `sequence_tokens` tokens per sampler, over the `sequence_top_k` most
            likely tokens of each step, on the first prompt; 0 for none. Meant for tiny models.
        time_limit_s: no prompt starts after this many seconds; the first always runs.
    """

    draws: tuple[int, ...]
    samplers: tuple[str, ...] = tuple(SAMPLERS)
    dtypes: tuple[str, ...] = ("float64", "bfloat16")
    floor_samples: int = 2000
    budget: int = 63
    top_k: int = 8
    lead_tokens: int = 16
    temperature: float = 1.0
    top_p: float | None = None
    sequence_draws: int = 0
    sequence_tokens: int = 3
    sequence_top_k: int = 4
    seed: int = 0
    time_limit_s: float | None = None


@dataclass(frozen=True)
class VerifiedRound:
    """A verified round at the prefix, and the target's logits as plain decoding computes them.

    Attributes:
        packed: logits [N + 1, V] of the verification pass.
        plain: logits [1, V] after the root, then after the root and `child`.
        child: the root's most likely child; None where the tree is empty.
    """

    emitted: list[int]
    tree: CandidateTree
    packed: torch.Tensor
    plain: list[torch.Tensor]
    child: int | None


@dataclass(frozen=True)
class _Level:
    """One place whose token is compared: the path to it, and which walks count."""

    name: str
    depth: int
    law: np.ndarray
    distance_of_laws: float
    siblings: int


def run(
    pair: Pair, prompts: Sequence[Prompt], spec: TotalVariationSpec, done: Collection[str] = ()
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, for each prompt, its id and its rows, without the identity columns; at first the sequence level."""
    started = time.monotonic()
    spec = replace(spec, draws=tuple(sorted(set(spec.draws))))
    pairs = {name: pair if pair.dtype == DTYPES[name] else pair.to(DTYPES[name]) for name in spec.dtypes}
    if spec.sequence_draws and SEQUENCE not in done:
        yield SEQUENCE, _sequence_rows(pairs[spec.dtypes[0]], spec.dtypes[0], prompts[0], spec)
    ran = False
    for index, prompt in enumerate(prompts):
        if prompt.id in done:
            continue
        if ran and spec.time_limit_s is not None and time.monotonic() - started > spec.time_limit_s:
            return
        ran = True
        input_ids = encode_for(pair, prompt, spec.lead_tokens + 1)
        lead = generate(pair, input_ids, "autoregressive", max_new_tokens=spec.lead_tokens + 1, stop_token_ids=[])
        sequence = torch.cat((input_ids.cpu(), lead.tokens))
        rows = []
        for place, (dtype, precise) in enumerate(pairs.items()):
            seed = [spec.seed, index, place]
            common = {"prompt_id": prompt.id, "prompt_index": index, "dtype": dtype}
            rows += [common | row for row in round_rows(_round_at(precise, sequence, spec), spec, seed)]
        yield prompt.id, rows


def total_variation(counts: np.ndarray, law: np.ndarray) -> float:
    """Half the L1 distance of counts [V] over their sum from a law [V]."""
    return float(0.5 * np.abs(counts / counts.sum() - law).sum())


def monte_carlo_floor(
    law: np.ndarray, draws: Sequence[int], samples: int, random: np.random.Generator
) -> list[tuple[float, float]]:
    """Mean and 99.9% quantile of the total variation of as many draws from the law itself, for each count.

    Simulated: `samples` multinomial samples, the smaller counts being the beginnings of the larger ones.
    """
    ordered = np.sort(law)[::-1]
    cumulative = np.cumsum(ordered)
    beyond = np.append(1 - cumulative / cumulative[-1], 0.0)
    found = np.empty((samples, len(draws)))
    for sample in found:
        tokens = np.searchsorted(cumulative, random.random(max(draws)) * cumulative[-1], side="right")
        for place, count in enumerate(draws):
            seen = np.bincount(tokens[:count])
            # Everything past the last token seen is missed with its whole probability.
            sample[place] = 0.5 * (np.abs(seen / count - ordered[: len(seen)]).sum() + beyond[len(seen) - 1])
    return list(zip(found.mean(axis=0).tolist(), np.quantile(found, QUANTILE, axis=0).tolist(), strict=True))


def chi_square(counts: np.ndarray, law: np.ndarray, least: float = 5.0) -> tuple[float, int, float]:
    """Pearson's statistic, its degrees of freedom and p-value; cells that expect fewer than `least` are pooled.

    The pool joins the smallest other cell where it expects too little itself. One cell alone tests nothing:
    (0, 0, 1). A draw of a token of probability 0 is impossible under the law: (inf, ..., 0).
    """
    expected = law * counts.sum()
    cells = expected >= least
    observed_cells, expected_cells = counts[cells].astype(float), expected[cells]
    pooled = expected[~cells].sum()
    impossible = bool((counts[law == 0] > 0).any())
    if pooled >= least or not len(expected_cells):
        observed_cells = np.append(observed_cells, counts[~cells].sum())
        expected_cells = np.append(expected_cells, pooled)
    elif pooled > 0 or counts[~cells].any():
        smallest = expected_cells.argmin()
        observed_cells[smallest] += counts[~cells].sum()
        expected_cells[smallest] += pooled
    freedom = len(expected_cells) - 1
    if impossible:
        return float("inf"), freedom, 0.0
    if not freedom:
        return 0.0, 0, 1.0
    statistic = float(((observed_cells - expected_cells) ** 2 / expected_cells).sum())
    return statistic, freedom, float(chi2.sf(statistic, freedom))


def joint_law(next_law: Callable[[tuple[int, ...]], np.ndarray], tokens: int) -> dict[tuple[int, ...], float]:
    """Probability of each possible sequence of so many tokens, by the chain rule.

    Args:
        next_law: law [V] of the token after a sequence of new tokens; few of it may be positive.
    """
    laws = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for sequence, probability in laws.items():
            law = next_law(sequence)
            for token in np.flatnonzero(law):
                longer[(*sequence, int(token))] = probability * float(law[token])
        laws = longer
    return laws


def round_rows(round_: VerifiedRound, spec: TotalVariationSpec, seed: list[int]) -> list[dict[str, Any]]:
    """Rows of one verified round, for every sampler, level and number of walks."""
    processor = None if spec.top_p is None else _top_p(spec.top_p)
    levels = _levels(round_, spec, processor)
    random = np.random.default_rng(seed)
    floors: dict[tuple, list[tuple[float, float]]] = {}
    rows = []
    for place, sampler in enumerate((CONTROL, *spec.samplers)):
        stream = int(np.random.SeedSequence([*seed, place]).generate_state(1, np.uint64)[0] >> 1)
        counts = _draw(round_, sampler, spec, processor, stream)
        for level, counted in zip(levels, counts, strict=True):
            reached = [(walks, at) for walks, at in counted if at.sum() > 0]
            if not reached:
                continue
            draws = tuple(int(at.sum()) for _, at in reached)
            key = level.name, draws
            if key not in floors:
                floors[key] = monte_carlo_floor(level.law, draws, spec.floor_samples, random)
            for (walks, at), floor in zip(reached, floors[key], strict=True):
                rows.append(
                    _common(spec, sampler, walks, level)
                    | {"prefix_tokens": len(round_.emitted) - 1, "siblings": level.siblings}
                    | _distances(at, level.law, floor)
                )
    return rows


def _common(spec: TotalVariationSpec, sampler: str, walks: int, level: _Level) -> dict[str, Any]:
    return {
        "level": level.name,
        "depth": level.depth,
        "sampler": sampler,
        "budget": spec.budget,
        "top_k": spec.top_k,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "seed": spec.seed,
        "walks": walks,
        "law_distance": level.distance_of_laws if sampler != CONTROL else math.nan,
    }


def _distances(counts: np.ndarray, law: np.ndarray, floor: tuple[float, float]) -> dict[str, Any]:
    statistic, freedom, p_value = chi_square(counts, law)
    return {
        "draws": int(counts.sum()),
        "total_variation": total_variation(counts, law),
        "floor_mean": floor[0],
        "floor_q999": floor[1],
        "chi_square": statistic,
        "degrees_of_freedom": freedom,
        "p_value": p_value,
    }


@torch.inference_mode()
def _round_at(pair: Pair, sequence: torch.Tensor, spec: TotalVariationSpec) -> VerifiedRound:
    """Draft and verify once behind a sequence, whose last token is the pending root."""
    target, proposer = pair.target, make_proposer(pair, "cast", budget=spec.budget, top_k=spec.top_k)
    emitted, sequence = sequence.tolist(), sequence.to(pair.device)
    prefix, root = sequence[:-1], sequence[-1:]
    cache = target.new_cache(len(prefix) + proposer.lookahead + 1)
    proposer.start(cache.capacity)
    proposer.observe(emitted)
    positions = torch.arange(len(prefix), device=pair.device)
    output = target.forward(prefix, positions, cache, causal=True, taps=proposer.taps, last_logits_only=True)
    cache.commit(len(prefix))
    tree = proposer.propose(torch.cat(output.taps, dim=-1), root)
    return compared(target, cache, emitted, tree, verify(target, cache, root, tree).logits.cpu())


def compared(
    target: Target, cache: KVCache, emitted: list[int], tree: CandidateTree, packed: torch.Tensor
) -> VerifiedRound:
    """A verified round beside what plain decoding computes there.

    Args:
        cache: covers all but the last emitted token, the pending root; grows by it.
        packed: logits [N + 1, V] of the tree's pass, on the CPU.
    """
    root = torch.tensor(emitted[-1:], device=target.device)
    plain = [verify(target, cache, root, None).logits.cpu()]
    children = list(tree.children()[0])
    if not children:
        return VerifiedRound(emitted, tree, packed, plain, None)
    child = max(children, key=lambda token: float(plain[0][0, token]))
    cache.commit(1)
    plain.append(verify(target, cache, torch.tensor([child], device=target.device), None).logits.cpu())
    return VerifiedRound(emitted, tree, packed, plain, child)


def _levels(round_: VerifiedRound, spec: TotalVariationSpec, processor: LogitsProcessor | None) -> list[_Level]:
    children = round_.tree.children()
    places = [("first", 0, [])]
    if round_.child is not None:
        places.append(("deeper", children[0][round_.child], [round_.child]))
    levels = []
    for logits, (name, row, path) in zip(round_.plain, places, strict=True):
        law, packed = (
            _law(spec.temperature, processor, logits[row : row + 1], [*round_.emitted, *path])
            for logits, row in ((logits, 0), (round_.packed, row))
        )
        distance = float(0.5 * np.abs(law - packed).sum())
        levels.append(_Level(name, len(path), law, distance, len(children[row])))
    return levels


def _law(temperature: float, processor: LogitsProcessor | None, logits: torch.Tensor, emitted: list[int]) -> np.ndarray:
    """float64 [V], summing to one, from logits [1, V]."""
    law = TargetLaw(logits, temperature, processor, lambda: emitted).probabilities(0, []).double().numpy()
    return law / law.sum()


def _draw(
    round_: VerifiedRound, sampler: str, spec: TotalVariationSpec, processor: LogitsProcessor | None, seed: int
) -> list[list[tuple[int, np.ndarray]]]:
    """For each level, (walks so far, counts [V]) at every number of walks asked for."""
    vocabulary = round_.packed.shape[-1]
    levels = [np.zeros(vocabulary, np.int64) for _ in round_.plain]
    taken: list[list[tuple[int, np.ndarray]]] = [[] for _ in levels]
    one_walk = _walks(round_, sampler, spec, processor, seed)
    for number in range(1, spec.draws[-1] + 1):
        committed = one_walk()
        levels[0][committed[0]] += 1
        if len(committed) > 1 and committed[0] == round_.child:
            levels[1][committed[1]] += 1
        if number in spec.draws:
            for kept, counts in zip(taken, levels, strict=True):
                kept.append((number, counts.copy()))
    return taken


def _walks(
    round_: VerifiedRound, sampler: str, spec: TotalVariationSpec, processor: LogitsProcessor | None, seed: int
) -> Callable[[], list[int]]:
    """A function that walks the round once more, to the tokens committed."""
    rule: Selector = SAMPLERS.get(sampler, SampledSelector)(spec.temperature, seed, processor)
    if sampler != CONTROL:
        select = rule.over(round_.packed, lambda: round_.emitted, round_.tree)

        def speculative() -> list[int]:
            result = walk(round_.tree, select)
            return [*result.accepted, result.next_root]

        return speculative
    first = rule.over(round_.plain[0], lambda: round_.emitted)
    second = rule.over(round_.plain[-1], lambda: [*round_.emitted, round_.child])

    def plain() -> list[int]:
        token = first(0, [], {})
        return [token, second(0, [], {})] if token == round_.child else [token]

    return plain


def _sequence_rows(pair: Pair, dtype: str, prompt: Prompt, spec: TotalVariationSpec) -> list[dict[str, Any]]:
    """The joint law of the first new tokens, by whole generations, against the chain rule's enumeration."""
    from transformers.generation.logits_process import TopKLogitsWarper

    processor = TopKLogitsWarper(spec.sequence_top_k)
    input_ids = encode_for(pair, prompt, spec.sequence_tokens).to(pair.device)

    def next_law(tokens: tuple[int, ...]) -> np.ndarray:
        sequence = torch.cat((input_ids, input_ids.new_tensor(tokens)))
        cache, positions = pair.target.new_cache(len(sequence)), torch.arange(len(sequence), device=pair.device)
        logits = pair.target.forward(sequence, positions, cache, causal=True, last_logits_only=True).logits.cpu()
        return _law(spec.temperature, processor, logits, sequence.tolist())

    laws = joint_law(next_law, spec.sequence_tokens)
    place_of = {tokens: place for place, tokens in enumerate(laws)}
    impossible = len(laws)  # the place of every other sequence
    law = np.array([*laws.values(), 0.0])
    law /= law.sum()
    draws = [count for count in spec.draws if count < spec.sequence_draws] + [spec.sequence_draws]
    floors = monte_carlo_floor(law, draws, spec.floor_samples, np.random.default_rng([spec.seed]))
    level, rows = _Level(SEQUENCE, spec.sequence_tokens, law, math.nan, 0), []
    for place, sampler in enumerate((CONTROL, *spec.samplers)):
        method = {"method": CONTROL} if sampler == CONTROL else {"method": "cast", "budget": spec.budget}
        if sampler != CONTROL:
            method |= {"sampler": sampler, "top_k": spec.top_k}
        drawn = np.zeros(spec.sequence_draws, np.int64)
        for number in range(spec.sequence_draws):
            out = generate(
                pair,
                input_ids,
                **method,
                max_new_tokens=spec.sequence_tokens,
                temperature=spec.temperature,
                seed=(spec.seed * (1 + len(spec.samplers)) + place) * spec.sequence_draws + number,
                stop_token_ids=[],
                logits_processor=processor,
            )
            drawn[number] = place_of.get(tuple(out.tokens.tolist()), impossible)
        for count, floor in zip(draws, floors, strict=True):
            rows.append(
                {"prompt_id": prompt.id, "prompt_index": 0, "dtype": dtype, "prefix_tokens": len(input_ids)}
                | _common(spec, sampler, count, level)
                | _distances(np.bincount(drawn[:count], minlength=len(law)), law, floor)
            )
    return rows


def _top_p(share: float) -> LogitsProcessor:
    from transformers.generation.logits_process import TopPLogitsWarper

    return TopPLogitsWarper(share)
