"""The offline analyses on small logs: counts by hand, optima by brute force, rows under their schema."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from cast.errors import CastError
from cast.experiments.bootstrap import MIN_PROMPTS
from cast.experiments.records import REPLAY
from cast.experiments.replay import Roots, best_first_order
from cast.experiments.replay_allocation import draw_batches, shared_budget
from cast.experiments.replay_analyses import RANK_BANDS, ReplaySpec, _Replayed, analyse, regret_bound
from cast.experiments.replay_log import PromptLog

LENGTH, KEPT, VOCABULARY = 4, 40, 60


def synthetic_logs(prompts=7, roots=30, seed=0):
    """Outputs whose tokens are drawn from the marginals themselves: a drafter that is calibrated by design."""
    random = np.random.default_rng(seed)
    logs = []
    for prompt in range(prompts):
        logits = random.normal(size=(roots + LENGTH, VOCABULARY)) * 2.5
        law = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
        output = np.array([random.choice(VOCABULARY, p=each) for each in law])
        # The marginal of a token is the same from every root.
        order = np.argsort(-law, axis=-1, kind="stable")[:, :KEPT]
        known = np.log(np.take_along_axis(law, order, axis=-1)).astype(np.float32)
        places = np.arange(roots)[:, None] + np.arange(1, LENGTH + 1)
        output = np.append(output, 0)
        logs.append(
            PromptLog(
                prompt_id=f"p{prompt}",
                new_tokens=roots + 1,
                output=output,
                target_tokens=output,
                target_gaps=np.ones(len(output)),
                tokens=order[places],
                log_probs=known[places],
            )
        )
    return logs


SPEC = ReplaySpec(
    largest_budget=40,
    top_k=8,
    shape_budget=20,
    budgets=(10, 20, 40),
    batch_size=4,
    batches=50,
    requests=60,
    nodes_per_request=(3,),
    prompt_draws=40,
    resamples=200,
)


@pytest.fixture(scope="module")
def logs():
    return synthetic_logs()


@pytest.fixture(scope="module")
def rows(logs):
    return pd.DataFrame(list(analyse(logs, SPEC))).fillna({"roots": "", "method": "", "bin": ""})


def value(rows, **where):
    for column, wanted in where.items():
        rows = rows[rows[column] == wanted]
    assert len(rows) == 1, where
    return rows.iloc[0]


def test_rows_fit_their_schema(rows, as_records):
    frame = as_records(rows.to_dict("records"), REPLAY)
    assert set(frame["analysis"]) == {
        *("budget_sweep", "fixed_shapes", "rejection_ranks", "reliability"),
        *("mass_curve", "rank_cap", "plug_in_regret", "shared_budget"),
    }
    assert (frame["n"] >= 0).all()
    with_interval = frame[frame["low"].notna()]
    assert (with_interval["low"] <= with_interval["high"]).all()
    gains = frame[frame["quantity"].str.contains("over")]
    assert gains["low"].notna().all()


def test_round_lengths_are_walks_of_each_kind_of_root(logs, rows):
    roots = Roots.of(logs)
    order = best_first_order(roots, 40, 8)
    committed, rounds = roots.walk(order.accepted)
    for budget in (1, 20, 40):
        own = value(rows, analysis="budget_sweep", roots="own", budget=budget, top_k=8, quantity="r_pooled")
        assert own["value"] == pytest.approx(committed[:, budget].sum() / rounds[:, budget].sum())
        assert own["n"] == rounds[:, budget].sum()
        every = value(rows, analysis="budget_sweep", roots="every", budget=budget, top_k=8, quantity="r_pooled")
        assert every["value"] == pytest.approx(order.accepted[:, budget].mean() + 1)
    at = roots.chain_rounds
    shared = value(rows, analysis="budget_sweep", roots="chain", budget=20, top_k=8, quantity="r_gain_over_chain")
    expected = (order.accepted[at, 20] + 1).sum() / (roots.chain[at] + 1).sum() - 1
    assert shared["value"] == pytest.approx(expected)
    assert shared["low"] < expected < shared["high"]
    chain = value(rows, analysis="fixed_shapes", roots="own", method="dflash", quantity="r_gain_over_chain")
    assert (chain["value"], chain["low"], chain["high"]) == (0, 0, 0)


def test_bands_of_first_rejections_by_hand(logs, rows):
    counts = dict.fromkeys(RANK_BANDS, 0)
    whole = 0
    for log in logs:
        place = 0
        while place < len(log.tokens):
            wanted = log.output[place + 1 : place + 1 + LENGTH]
            ranks = [np.flatnonzero(row == token) for row, token in zip(log.tokens[place], wanted, strict=True)]
            ranks = [int(found[0]) + 1 if len(found) else KEPT + 1 for found in ranks]
            first = next((rank for rank in ranks if rank > 1), None)
            if first is None:
                whole += 1
            else:
                band = next(b for b, (low, high) in RANK_BANDS.items() if low <= first <= (high or first))
                counts[band] += 1
            place += next((depth for depth, rank in enumerate(ranks) if rank > 1), LENGTH) + 1
    events = sum(counts.values())
    for band, count in counts.items():
        share = value(rows, analysis="rejection_ranks", bin=band)
        assert share["value"] == pytest.approx(count / events)
        assert share["n"] == events
    assert value(rows, analysis="rejection_ranks", quantity="rounds_without_rejection")["value"] == whole


@pytest.mark.parametrize("top_k", [1, 8])
def test_reliability_bins_by_hand(logs, rows, top_k):
    """Candidates at depth one of the chain's rounds, one by one; an interval draws prompts."""
    bins = {f"{n / 10:.1f}-{(n + 1) / 10:.1f}": [] for n in range(10)}
    for log in logs:
        place = 0
        while place < len(log.tokens):
            wanted = log.output[place + 1 : place + 1 + LENGTH]
            for token, log_prob in zip(log.tokens[place, 0, :top_k], log.log_probs[place, 0, :top_k], strict=True):
                probability = float(np.exp(log_prob))
                name = list(bins)[min(int(probability * 10), 9)]
                bins[name].append((log.prompt_id, probability, token == wanted[0]))
            right = log.tokens[place, :, 0] == wanted
            place += (LENGTH if right.all() else int(right.argmin())) + 1
    assert sum(map(len, bins.values())) == top_k * len(Roots.of(logs).chain_rounds)
    for name, found in bins.items():
        place = {"analysis": "reliability", "top_k": top_k, "bin": name}
        assert value(rows, **place, quantity="count")["value"] == len(found)
        if not found:
            assert (
                len(rows[(rows["analysis"] == "reliability") & (rows["top_k"] == top_k) & (rows["bin"] == name)]) == 1
            )
            continue
        rate, confidence = (value(rows, **place, quantity=quantity) for quantity in ("hit_rate", "confidence"))
        assert (rate["n"], confidence["n"]) == (len(found), len(found))
        assert rate["value"] == pytest.approx(np.mean([hit for _, _, hit in found]))
        assert confidence["value"] == pytest.approx(np.mean([probability for _, probability, _ in found]))
        if rate["value"] in (0, 1):
            assert np.isnan(rate["low"]) and np.isnan(rate["high"])
        holding = {prompt for prompt, _, _ in found}
        assert rate["prompts"] == confidence["prompts"] == len(holding)
        assert np.isfinite(confidence["low"]) == (len(holding) >= MIN_PROMPTS)
        if 0 < rate["value"] < 1 and len(holding) >= MIN_PROMPTS:
            assert rate["low"] < rate["value"] < rate["high"]


def test_prompts_that_hold_nothing_of_a_bin_are_not_drawn(logs):
    """Else a draw without the prompts that do would be 0 / 0, and the bin lose its interval."""
    replayed = _Replayed(Roots.of(logs), SPEC, iter)
    hits, counts = np.array([[1.0], [2], [1], [0], [2], [0], [0]]), np.array([[2.0], [2], [3], [1], [4], [0], [0]])
    (rate,) = replayed.ratios(hits, counts)
    (alone,) = replayed.ratios(hits[:5], counts[:5])
    assert rate == alone and rate["low"] < 6 / 12 < rate["high"]
    (certain,) = replayed.shares(counts, counts)
    assert certain["value"] == 1 and np.isnan(certain["low"]) and np.isnan(certain["high"])


def test_a_calibrated_drafter_is_reliable_and_every_node_is_counted(logs, rows):
    capped = rows[(rows["analysis"] == "reliability") & (rows["top_k"] == 8)]
    counts = capped[capped["quantity"] == "count"]
    assert len(counts) == 10
    assert counts["value"].sum() == 8 * len(Roots.of(logs).chain_rounds)
    for name, each in capped[capped["quantity"] != "count"].groupby("bin"):
        by = each.set_index("quantity")
        low, high = map(float, name.split("-"))
        assert low <= by.loc["confidence", "value"] <= high
        if by.loc["hit_rate", "n"] >= 30:
            assert abs(by.loc["hit_rate", "value"] - by.loc["confidence", "value"]) < 0.25


def test_the_mass_curve_is_the_mean_of_sorted_masses(logs, rows):
    roots = Roots.of(logs)
    masses = best_first_order(roots, 40, 8).mass[roots.chain_rounds].mean(axis=0)
    curve = rows[rows["analysis"] == "mass_curve"]
    np.testing.assert_allclose(curve["value"], masses, rtol=1e-6)
    assert (curve["budget"] == np.arange(1, 41)).all()
    assert (curve["low"] < curve["high"]).all()
    assert curve["value"].between(curve["low"], curve["high"]).all()


def test_the_interval_of_a_mass_is_over_prompts(logs):
    """The same prompt seven times: its rounds differ, but no draw of prompts does. So with hit rates and shares."""
    alike = pd.DataFrame(analyse([logs[0]] * 7, SPEC))
    for quantity in ("mass", "hit_rate", "share", "r_capped_over_full", "regret"):
        curve = alike[(alike["quantity"] == quantity) & alike["low"].notna()]
        assert len(curve), quantity
        for end in ("low", "high"):
            np.testing.assert_allclose(curve[end], curve["value"], rtol=1e-9, atol=1e-12)


def test_the_rank_cap_costs_what_the_two_orders_say(logs, rows):
    roots = Roots.of(logs)
    at = roots.chain_rounds
    capped, full = (best_first_order(roots, 40, cap).accepted[at, 20] + 1 for cap in (8, None))
    found = value(rows, analysis="rank_cap", roots="chain", budget=20, quantity="r_capped_over_full")
    assert found["value"] == pytest.approx(capped.sum() / full.sum() - 1)
    share = value(rows, analysis="rank_cap", bin="all depths")
    assert share["value"] == pytest.approx((roots.ranks[at] >= 8).mean())
    assert share["n"] == len(at) * LENGTH


def prefix_closed(nodes, size):
    """Every prefix-closed set of rank tuples of that size."""
    found = {frozenset()}
    for _ in range(size):
        found = {
            grown | {node}
            for grown in found
            for node in nodes
            if node not in grown and (len(node) == 1 or node[:-1] in grown)
        }
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [1, 2, 4, 6])
def test_proposition_1_by_brute_force(seed, budget):
    """Regret is the best prefix-closed set's minus the plug-in's; the bound is a sum over a symmetric difference."""
    random = np.random.default_rng(seed)
    length, kept = 3, 2
    scores = -np.sort(random.exponential(1.0, (1, length, kept)), axis=-1).astype(np.float32)
    roots = Roots(scores, random.integers(0, kept + 1, (1, length)), (1,))
    order = best_first_order(roots, budget)
    nodes = [ranks for depth in range(1, length + 1) for ranks in itertools.product(range(kept), repeat=depth)]
    mass = {node: float(np.exp(sum(scores[0, d, rank] for d, rank in enumerate(node)))) for node in nodes}
    path = {tuple(roots.ranks[0, :depth].tolist()) for depth in range(1, length + 1)} & set(nodes)
    path = {node for node in path if all(node[:d] in path for d in range(1, len(node)))}
    sets = prefix_closed(nodes, budget)
    best = max(len(path & chosen) for chosen in sets)
    plug_in = max(sets, key=lambda chosen: sum(mass[node] for node in chosen))
    assert len(path & plug_in) == order.accepted[0, budget]
    oracle = np.minimum(roots.path(kept), budget)
    assert oracle[0] == best
    bound = regret_bound(roots, order, budget, oracle)[0]
    # The optimum that shares most with the plug-in tree; others bound the regret more loosely.
    differences = [
        sum(abs((node in path) - mass[node]) for node in chosen ^ plug_in)
        for chosen in sets
        if len(path & chosen) == best
    ]
    assert bound == pytest.approx(min(differences), abs=1e-5)
    assert best - len(path & plug_in) <= bound + 1e-6


def test_regret_never_passes_its_bound(rows):
    broken = rows[rows["quantity"] == "rounds_above_bound"]
    assert len(broken) == 3
    assert (broken["value"] == 0).all()
    for budget in SPEC.budgets:
        at = {"analysis": "plug_in_regret", "budget": budget, "roots": "chain"}
        assert 0 <= value(rows, **at, quantity="regret")["value"] <= value(rows, **at, quantity="regret_bound")["value"]


def drawn(requests, batch_size, batches):
    return draw_batches(np.random.default_rng(0), np.arange(requests), batch_size, batches)


def test_a_batch_holds_no_request_twice_unless_there_are_too_few():
    requests = np.arange(10, 16)
    batches = draw_batches(np.random.default_rng(3), requests, 6, 20)
    assert (np.sort(batches, axis=1) == requests).all()
    assert len({tuple(batch) for batch in batches}) > 1
    assert draw_batches(np.random.default_rng(3), requests, 8, 5).shape == (5, 8)


def splits(size, budget):
    return (split for split in itertools.product(range(budget + 1), repeat=size) if sum(split) <= budget)


@pytest.mark.parametrize("share", [1, 2])
def test_the_shared_budget_by_brute_force(share):
    random = np.random.default_rng(4)
    scores = -np.sort(random.exponential(1.0, (3, 3, 3)), axis=-1).astype(np.float32)
    roots = Roots(scores, random.integers(0, 2, (3, 3)), (3,))
    order = best_first_order(roots, 10)
    accepted, budget = order.accepted, 3 * share
    found = shared_budget(order, drawn(3, batch_size=3, batches=4), share)
    # Every batch holds all three requests, in another order.
    assert (found["uniform"] == accepted[:, share].sum()).all()
    best = max(sum(accepted[r, n] for r, n in enumerate(split)) for split in splits(3, budget))
    assert (found["hindsight"] == best).all()
    masses = sorted(((m, r) for r in range(3) for m in order.log_mass[r].tolist()), reverse=True)[:budget]
    given = [sum(owner == r for _, owner in masses) for r in range(3)]
    assert (found["best_first"] == sum(accepted[r, n] for r, n in enumerate(given))).all()


def test_hindsight_gives_no_request_more_than_was_enumerated():
    """A budget above all enumerated nodes accepts what they accept, not the path beyond them."""
    random = np.random.default_rng(5)
    scores = -np.sort(random.exponential(1.0, (6, 3, 3)), axis=-1).astype(np.float32)
    order = best_first_order(Roots(scores, random.integers(0, 2, (6, 3)), (6,)), 4)
    assert len(set(order.accepted[:, -1].tolist())) > 1
    found = shared_budget(order, drawn(6, batch_size=6, batches=1), 4)
    assert found["hindsight"] == found["uniform"] == order.accepted[:, -1].sum()


def test_gains_of_a_shared_budget_and_their_intervals(logs, rows):
    """Over prompts: the same one seven times leaves the noise of the batches alone."""
    best, hindsight = (
        value(rows, analysis="shared_budget", quantity="accepted_over_uniform", method=name)
        for name in ("best_first", "hindsight")
    )
    ahead = value(rows, quantity="ahead_of_best_first")
    assert ahead["value"] == pytest.approx(hindsight["value"] - best["value"])
    for row in (best, hindsight, ahead):
        assert row["low"] < row["value"] < row["high"]
    accepted = {
        name: value(rows, analysis="shared_budget", quantity="accepted_per_request", method=name)["value"]
        for name in ("uniform", "best_first")
    }
    assert best["value"] == pytest.approx(accepted["best_first"] / accepted["uniform"] - 1)
    spec = dataclasses.replace(SPEC, requests=1000, batches=400, prompt_draws=60, resamples=20)
    widths = []
    for of in (logs, [logs[0]] * 7):
        found = pd.DataFrame(analyse(of, spec)).fillna({"method": ""})
        gain = value(found, quantity="accepted_over_uniform", method="best_first")
        widths.append(gain["high"] - gain["low"])
    assert widths[1] < 0.5 * widths[0]


def test_policies_keep_their_order(logs):
    roots = Roots.of(logs)
    order = best_first_order(roots.chosen(roots.chain_rounds), 40, 8)
    found = shared_budget(order, drawn(len(order.mass), batch_size=8, batches=100), 4)
    assert (found["hindsight"] >= np.maximum(found["uniform"], found["best_first"])).all()
    assert found["best_first"].mean() > found["uniform"].mean()


@pytest.mark.parametrize("top_k", [1, KEPT])
def test_a_cap_that_is_one_token_or_all_that_is_known(logs, top_k, as_records):
    """No row twice, and nothing lost to a cap that caps nothing."""
    spec = dataclasses.replace(SPEC, top_k=top_k, resamples=20)
    rows = pd.DataFrame(analyse(logs, spec)).fillna({"roots": "", "method": "", "bin": ""})
    frame = as_records(rows.to_dict("records"), REPLAY)
    if top_k == KEPT:
        assert (frame.loc[frame["quantity"] == "r_capped_over_full", "value"] == 0).all()
    else:
        curve = frame[(frame["analysis"] == "mass_curve") & (frame["budget"] > LENGTH)]
        assert (curve["value"] == 0).all()


def test_a_log_without_a_round_or_with_too_few_tokens(logs):
    with pytest.raises(CastError, match="no round to replay"):
        list(analyse([], SPEC))
    few = [
        PromptLog(**(vars(log) | {"tokens": log.tokens[:, :, :4], "log_probs": log.log_probs[:, :, :4]}))
        for log in logs
    ]
    with pytest.raises(CastError, match="4 tokens a depth, too few for top_k=8"):
        next(analyse(few, SPEC))
