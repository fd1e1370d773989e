"""The paper's offline analyses over a score log (appendices F, G and G.1): rows of a REPLAY record.

Rounds are counted at three sets of roots, named in the column ``roots``: ``own``, where the method itself would
start them (its R is what the live decoder commits); ``chain``, where chain decoding starts them, for every method
alike (the paper's saved round logs); ``every`` position of the output (the paper's replay of DART).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cast.errors import CastError
from cast.experiments.bootstrap import RESAMPLES, bootstrap_interval, student_interval
from cast.experiments.replay import Order, Roots, best_first_order, fixed_shape
from cast.experiments.replay_allocation import draw_batches, shared_budget
from cast.experiments.replay_log import PromptLog

CHAIN, TREE, ORACLE = "dflash", "cast", "oracle"
SHAPES = {"schedule_8_4_2_2_1": (8, 4, 2, 2, 1), "binary": (2,)}
RANK_BANDS = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), "9-32": (9, 32), "beyond 32": (33, None)}
"""Ranks from 1. At the chain's first rejection the target's token is not the chain's, which is of rank 1: that band is
empty in every log, and here because the paper's bands start there."""
RELIABILITY_BINS = 10

Row = dict[str, Any]
Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Passes on the units of a long computation one by one, and may show how many are done."""


@dataclass(frozen=True)
class ReplaySpec:
    """What to replay.

    Attributes:
        largest_budget: every budget from 1 to this.
        top_k: tokens a depth of the decoder's universe.
        shape_budget: nodes of the fixed-shape trees and of the tree beside them.
        budgets: at which the rank cap is compared with the full rank set, and the regret measured.
        batch_size, batches, requests, nodes_per_request: of the shared budget; requests are drawn from the
            rounds of chain decoding, batches from the requests.
        prompt_draws: of the shared budget's interval, each with as many batches.
        resamples: of every other interval.
    """

    largest_budget: int = 127
    top_k: int = 8
    shape_budget: int = 47
    budgets: tuple[int, ...] = (32, 63, 95, 127)
    batch_size: int = 32
    batches: int = 400
    requests: int = 900
    nodes_per_request: tuple[int, ...] = (4, 8, 32)
    prompt_draws: int = 50
    resamples: int = RESAMPLES
    seed: int = 0


def analyse(logs: Sequence[PromptLog], spec: ReplaySpec, track: Track = iter) -> Iterator[Row]:
    """Every row of one target, drafter and domain, without the identity columns.

    Args:
        track: of the draws of prompts behind the shared budgets, which take most of the time.

    Raises:
        CastError: the log holds no round, or fewer tokens a depth than ``top_k``.
    """
    logs = [log for log in logs if len(log.tokens)]
    if not logs:
        raise CastError("the score log holds no round to replay: every output ended at its first token")
    replayed = _Replayed(Roots.of(logs), spec, track)
    if replayed.roots.candidates < spec.top_k:
        raise CastError(
            f"the score log holds {replayed.roots.candidates} tokens a depth, too few for top_k={spec.top_k}; "
            "log more with top=..., or replay fewer"
        )
    for analysis in ANALYSES:
        for row in analysis(replayed):
            yield {"prompts": len(logs)} | row


class _Replayed:
    """A log's roots and the orders that several analyses share."""

    def __init__(self, roots: Roots, spec: ReplaySpec, track: Track):
        self.roots, self.spec, self.track = roots, spec, track

    @cached_property
    def capped(self) -> Order:
        return best_first_order(self.roots, self.spec.largest_budget, self.spec.top_k)

    @cached_property
    def full(self) -> Order:
        return best_first_order(self.roots, self.spec.largest_budget)

    @cached_property
    def prompt_of(self) -> np.ndarray:
        """Prompt of each root, int [R]."""
        return np.searchsorted(self.roots.ends, np.arange(len(self.roots)), side="right")

    def by_prompt(self, values: np.ndarray, roots: np.ndarray) -> np.ndarray:
        """Sums of ``values`` [len(roots), M] over the roots of each prompt: float [P, M]."""
        sums = np.zeros((len(self.roots.ends), values.shape[1]))
        np.add.at(sums, self.prompt_of[roots], values)
        return sums

    def counted(self, accepted: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """(committed, rounds) [P, M] at the roots of one kind."""
        if kind == "own":
            return self.roots.walk(accepted)
        return self.roots.totals(accepted, self.roots.chain_rounds if kind == "chain" else None)

    def ratios(self, numerators: np.ndarray, denominators: np.ndarray) -> list[dict[str, float]]:
        """Sum over prompts of each column over that of its denominator, with its interval.

        Prompts that the denominators count nothing of are not drawn.

        Args:
            numerators: [P, M].
            denominators: [P, M], or [P, 1] for all columns alike.
        """
        columns = numerators.shape[1]
        counted = denominators.all(axis=1)
        numerators, denominators = numerators[counted], denominators[counted]

        def ratio(strata):
            means = strata[0].mean(axis=-1)
            return means[:columns] / means[columns:]

        return self.values(np.concatenate((numerators, denominators), axis=1).T, ratio)

    def shares(self, counts: np.ndarray, of: np.ndarray) -> list[dict[str, float]]:
        """`ratios` of counts. A share of 0 or 1 has no interval: these prompts have no spread, though others would."""
        found = self.ratios(counts, of)
        nothing = {"low": math.nan, "high": math.nan}
        return [share | nothing if share["value"] in (0.0, 1.0) else share for share in found]

    def round_lengths(self, accepted: np.ndarray, kind: str) -> dict[str, list[dict[str, float]]]:
        """Both statistics of R for M methods, and the gain of the pooled one over the chain's."""
        committed, rounds = self.counted(accepted, kind)
        chain = np.concatenate(self.counted(self.roots.chain[:, None], kind), axis=1)
        methods = committed.shape[1]
        series = np.concatenate((committed, rounds, committed / rounds, chain), axis=1).T

        def statistics(strata):
            means = strata[0].mean(axis=-1)
            pooled = means[:methods] / means[methods : 2 * methods]
            return np.concatenate((pooled, means[2 * methods : -2], pooled / (means[-2] / means[-1]) - 1))

        values = self.values(series, statistics)
        names = ("r_pooled", "r_prompt_mean", "r_gain_over_chain")
        counts = rounds.sum(axis=0)
        return {
            name: [values[place * methods + m] | {"n": int(counts[m])} for m in range(methods)]
            for place, name in enumerate(names)
        }

    def values(self, series: np.ndarray, statistic) -> list[dict[str, float]]:
        """A statistic of ``series`` [S, P] with several values, each with its interval."""
        low, high = bootstrap_interval([series], statistic, resamples=self.spec.resamples, seed=self.spec.seed)
        found = np.broadcast_arrays(statistic([series]), low, high)
        return [dict(zip(("value", "low", "high"), map(float, each), strict=True)) for each in np.array(found).T]


def budget_sweep(replayed: _Replayed) -> Iterator[Row]:
    """Committed R of the best-first tree at every budget, under the rank cap and over the full rank set."""
    spec = replayed.spec
    orders = {spec.top_k: replayed.capped, replayed.roots.candidates: replayed.full}
    for top_k, order in orders.items():
        for kind in ("own", "chain", "every"):
            for quantity, values in replayed.round_lengths(order.accepted[:, 1:], kind).items():
                for budget, value in enumerate(values, start=1):
                    place = {"method": TREE, "budget": budget, "top_k": top_k}
                    yield {"analysis": "budget_sweep", "roots": kind, "quantity": quantity} | place | value


def fixed_shapes(replayed: _Replayed) -> Iterator[Row]:
    """The two fixed-shape trees beside the chain and the best-first tree of as many nodes (appendix G)."""
    spec, roots = replayed.spec, replayed.roots
    accepted = {
        CHAIN: (roots.length, 1, roots.chain),
        TREE: (spec.shape_budget, spec.top_k, best_first_order(roots, spec.shape_budget, spec.top_k).accepted[:, -1]),
    }
    for name, widths in SHAPES.items():
        accepted[name] = (spec.shape_budget, max(widths), fixed_shape(roots, widths, spec.shape_budget))
    for kind in ("own", "chain", "every"):
        together = np.stack([lengths for _, _, lengths in accepted.values()], axis=1)
        for quantity, values in replayed.round_lengths(together, kind).items():
            for (method, (budget, top_k, _)), value in zip(accepted.items(), values, strict=True):
                place = {"method": method, "budget": budget, "top_k": top_k}
                yield {"analysis": "fixed_shapes", "roots": kind, "quantity": quantity} | place | value


def rejection_ranks(replayed: _Replayed) -> Iterator[Row]:
    """Rank of the target's token in the marginal at the chain's first rejection (figure 4a)."""
    rounds, ranks = _first_rejections(replayed.roots)
    if not len(rounds):
        return
    bands = np.stack([_in_band(ranks + 1, *band) for band in RANK_BANDS.values()], axis=1)
    events = replayed.by_prompt(np.ones((len(rounds), 1)), rounds)
    shares = replayed.shares(replayed.by_prompt(bands, rounds), np.broadcast_to(events, (len(events), bands.shape[1])))
    place = {"analysis": "rejection_ranks", "roots": "chain", "method": CHAIN, "budget": replayed.roots.length}
    for band, share in zip(RANK_BANDS, shares, strict=True):
        yield place | {"bin": band, "quantity": "share", "n": len(rounds)} | share
    accepted_whole = len(replayed.roots.chain_rounds) - len(rounds)
    yield place | {"quantity": "rounds_without_rejection", "value": accepted_whole, "n": len(rounds) + accepted_whole}


def reliability(replayed: _Replayed) -> Iterator[Row]:
    """Confidence of the candidates at depth one against how often they are the target's token (figure 4b).

    Once over the candidates of the rank cap, once over the most likely one alone.
    """
    at = replayed.roots.chain_rounds
    roots = replayed.roots.chosen(at)
    for top_k in dict.fromkeys((replayed.spec.top_k, 1)):
        confidence = np.exp(roots.log_probs[:, 0, :top_k])
        hit = np.arange(top_k) == roots.ranks[:, :1]
        bins = np.minimum((confidence * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
        inside = bins[:, :, None] == np.arange(RELIABILITY_BINS)
        counts, hits, sums = (
            replayed.by_prompt((inside * of[:, :, None]).sum(axis=1), at)
            for of in (np.ones_like(confidence, float), hit, confidence.astype(np.float64))
        )
        place = {"analysis": "reliability", "roots": "chain", "top_k": top_k}
        for number in range(RELIABILITY_BINS):
            of_bin = [each[:, number : number + 1] for each in (counts, hits, sums)]
            count = int(of_bin[0].sum())
            edges = f"{number / RELIABILITY_BINS:.1f}-{(number + 1) / RELIABILITY_BINS:.1f}"
            where = place | {"bin": edges, "n": count}
            yield where | {"quantity": "count", "value": count}
            if count:
                where |= {"prompts": int((of_bin[0] > 0).sum())}
                (mean,), (rate,) = replayed.ratios(of_bin[2], of_bin[0]), replayed.shares(of_bin[1], of_bin[0])
                yield where | {"quantity": "confidence"} | mean
                yield where | {"quantity": "hit_rate"} | rate


def mass_curve(replayed: _Replayed) -> Iterator[Row]:
    """Sorted candidate masses averaged over the chain's rounds; ``budget`` is the place in the order (figure 4c)."""
    at = replayed.roots.chain_rounds
    sums = replayed.by_prompt(replayed.capped.mass[at], at)
    masses = replayed.ratios(sums, replayed.by_prompt(np.ones((len(at), 1)), at))
    place = {"analysis": "mass_curve", "roots": "chain", "top_k": replayed.spec.top_k, "quantity": "mass"}
    for rank, mass in enumerate(masses, start=1):
        yield place | {"budget": rank, "n": len(at)} | mass


def rank_cap(replayed: _Replayed) -> Iterator[Row]:
    """R under the rank cap against the full rank set, and how often the target's token lies beyond the cap (G.1).

    The full set is what the log knows of each depth: complete for every budget up to that number.
    """
    spec, roots = replayed.spec, replayed.roots
    budgets = [budget for budget in spec.budgets if budget <= min(spec.largest_budget, roots.candidates)]
    for kind in ("own", "chain"):
        (capped, capped_rounds), (full, full_rounds) = (
            replayed.counted(order.accepted[:, budgets], kind) for order in (replayed.capped, replayed.full)
        )
        series = np.concatenate((capped, capped_rounds, full, full_rounds), axis=1).T

        def difference(strata):
            capped, capped_rounds, full, full_rounds = np.split(strata[0].mean(axis=-1), 4)
            return (capped / capped_rounds) / (full / full_rounds) - 1

        for budget, value, count in zip(
            budgets, replayed.values(series, difference), capped_rounds.sum(axis=0), strict=True
        ):
            place = {"analysis": "rank_cap", "roots": kind, "method": TREE, "budget": budget, "top_k": spec.top_k}
            yield place | {"quantity": "r_capped_over_full", "n": int(count)} | value
    beyond = roots.ranks[roots.chain_rounds] >= spec.top_k
    rounds, ranks = _first_rejections(roots)
    for where, values, at in (
        ("all depths", beyond, roots.chain_rounds),
        ("depth 1", beyond[:, :1], roots.chain_rounds),
        ("first rejection", (ranks >= spec.top_k)[:, None], rounds),
    ):
        if not len(at):
            continue
        (share,) = replayed.shares(
            replayed.by_prompt(values.sum(axis=1, keepdims=True), at),
            replayed.by_prompt(np.full((len(at), 1), values.shape[1]), at),
        )
        place = {"analysis": "rank_cap", "roots": "chain", "top_k": spec.top_k, "bin": where}
        yield place | {"quantity": "share_beyond_cap", "n": values.size} | share


def plug_in_regret(replayed: _Replayed) -> Iterator[Row]:
    """What the drafter's own scores cost against a tree that knows the target's path (Proposition 1, measured).

    Under greedy decoding the target's prefix law is the path itself. The oracle tree of N nodes is the path, as
    far as the universe holds it, and the best other nodes; the bound is the proposition's sum of estimation
    errors over the nodes in one of both trees only.
    """
    spec, roots = replayed.spec, replayed.roots
    at = roots.chain_rounds
    path = roots.path(spec.top_k)
    for budget in (budget for budget in spec.budgets if budget <= spec.largest_budget):
        accepted, oracle = replayed.capped.accepted[:, budget], np.minimum(path, budget)
        regret = oracle - accepted
        bound = regret_bound(roots, replayed.capped, budget, oracle)
        sums = replayed.by_prompt(np.stack((regret, bound, regret == 0), axis=1)[at], at)
        rounds = replayed.by_prompt(np.ones((len(at), 1)), at)
        place = {"analysis": "plug_in_regret", "budget": budget, "top_k": spec.top_k}
        names = ("regret", "regret_bound", "share_without_regret")
        for name, value in zip(names, replayed.ratios(sums, np.broadcast_to(rounds, sums.shape)), strict=True):
            yield place | {"roots": "chain", "method": TREE, "quantity": name, "n": len(at)} | value
        broken = int((regret > bound + 1e-4).sum())
        yield place | {
            "roots": "every",
            "method": TREE,
            "quantity": "rounds_above_bound",
            "value": broken,
            "n": len(roots),
        }
        for quantity, (value,) in replayed.round_lengths(oracle[:, None], "own").items():
            yield place | {"roots": "own", "method": ORACLE, "quantity": quantity} | value


def regret_bound(roots: Roots, order: Order, budget: int, oracle: np.ndarray) -> np.ndarray:
    """Right-hand side of Proposition 1 at every root, float [R].

    The oracle tree keeps the plug-in tree but for its last nodes off the path, which make room for the path's.
    """
    accepted = order.accepted[:, budget].astype(np.int64)
    depths = np.arange(1, roots.length + 1)
    known = np.minimum(roots.ranks, roots.candidates - 1)[:, :, None]
    path_mass = np.exp(np.take_along_axis(roots.log_probs, known, axis=2)[:, :, 0].cumsum(axis=1))
    added = (depths > accepted[:, None]) & (depths <= oracle[:, None])
    off_path = order.path_depth[:, :budget] == 0
    from_the_end = off_path[:, ::-1].cumsum(axis=1)[:, ::-1]
    removed = off_path & (from_the_end <= (oracle - accepted)[:, None])
    return ((1 - path_mass) * added).sum(axis=1) + (order.mass[:, :budget] * removed).sum(axis=1)


def shared_budgets(replayed: _Replayed) -> Iterator[Row]:
    """One budget split over a batch of requests: best-first and in hindsight against uniform (appendix F).

    A gain's interval is Student's about it, with the spread it has when prompts are drawn anew and as many batches from
    the rounds of the drawn ones, those of a prompt drawn twice twice: batches cost too much to be drawn 10,000 times.
    """
    spec, rounds = replayed.spec, replayed.roots.chain_rounds
    if len(rounds) < spec.batch_size:
        return
    random = np.random.default_rng(spec.seed)
    chosen = np.sort(random.choice(rounds, min(spec.requests, len(rounds)), replace=False))
    requests = replayed.roots.chosen(chosen)
    of_prompt = [np.flatnonzero(replayed.prompt_of[chosen] == prompt) for prompt in range(len(replayed.roots.ends))]
    of_prompt = [own for own in of_prompt if len(own)]
    batches = draw_batches(random, np.arange(len(chosen)), spec.batch_size, spec.batches)
    order = best_first_order(requests, max(spec.largest_budget, 4 * max(spec.nodes_per_request)), spec.top_k)
    others = []
    for prompts in replayed.track(random.integers(len(of_prompt), size=(spec.prompt_draws, len(of_prompt)))):
        own = np.concatenate([of_prompt[prompt] for prompt in prompts])
        drawn = draw_batches(random, own, spec.batch_size, spec.batches)
        others.append({
            share: _gains(shared_budget(order, drawn, share), spec.batch_size) for share in spec.nodes_per_request
        })  # fmt: skip
    for share in spec.nodes_per_request:
        accepted = shared_budget(order, batches, share)
        place = {"analysis": "shared_budget", "roots": "chain", "budget": share, "top_k": spec.top_k, "n": spec.batches}
        for policy, counts in accepted.items():
            per_request = float(counts.mean() / spec.batch_size)
            yield place | {"method": policy, "quantity": "accepted_per_request", "value": per_request}
        for (policy, quantity), value in _gains(accepted, spec.batch_size).items():
            if math.isnan(value):
                continue
            low, high = student_interval(value, [gains[share][policy, quantity] for gains in others], len(of_prompt))
            yield place | {"method": policy, "quantity": quantity, "value": value, "low": low, "high": high}


def _gains(accepted: dict[str, np.ndarray], batch_size: int) -> dict[tuple[str, str], float]:
    """(policy, quantity) -> gain; NaN where the uniform split accepts nothing."""
    mean = {policy: float(counts.mean()) for policy, counts in accepted.items()}
    gains = {}
    for policy in ("best_first", "hindsight"):
        # Accepted tokens alone, as the paper counts them, and with the token each request commits anyway.
        for quantity, roots in (("accepted_over_uniform", 0), ("committed_over_uniform", batch_size)):
            uniform = mean["uniform"] + roots
            gains[policy, quantity] = (mean[policy] + roots) / uniform - 1 if uniform else math.nan
    ahead = gains["hindsight", "accepted_over_uniform"] - gains["best_first", "accepted_over_uniform"]
    return gains | {("hindsight", "ahead_of_best_first"): ahead}


ANALYSES = (
    budget_sweep,
    fixed_shapes,
    rejection_ranks,
    reliability,
    mass_curve,
    rank_cap,
    plug_in_regret,
    shared_budgets,
)


def _first_rejections(roots: Roots) -> tuple[np.ndarray, np.ndarray]:
    """Chain rounds with a rejection, and the rank (from 0) of the target's token at the first of them."""
    rounds = roots.chain_rounds
    rounds = rounds[roots.chain[rounds] < roots.length]
    return rounds, roots.ranks[rounds, roots.chain[rounds]]


def _in_band(ranks: np.ndarray, low: int, high: int | None) -> np.ndarray:
    return (ranks >= low) & (ranks <= (high or ranks.max(initial=low)))
