"""Width tax and serving runs: their rows, their pairing, and what they refuse."""

import numpy as np
import pytest
import torch

from cast import CastError, serving
from cast.experiments import serving_law, serving_runs, serving_tax
from cast.experiments.records import SERVING, TOTAL_VARIATION, WIDTH_TAX
from cast.experiments.serving_law import ServedLawSpec
from cast.experiments.serving_runs import ServingSpec
from cast.experiments.serving_tax import VERIFIERS, WidthTaxSpec, round_cost
from cast.serving import RoundCost
from cast.width import LatencyCurve

NAME = "dflash_tiny_qwen3"
VARIANTS = ("dense/best_first", "ragged/uniform", "ragged/best_first", "ragged/chain", "bucketed_2/best_first")


@pytest.fixture(scope="module")
def pair(golden_pair):
    return golden_pair(NAME)


@pytest.fixture
def prompts(golden_prompts):
    return golden_prompts(NAME)


def spec_of(**changes):
    return ServingSpec(
        **{"active": (3,), "variants": VARIANTS, "width": 4, "max_new_tokens": 8, "repeats": 2, **changes}
    )


def rows_of(pair, prompts, spec, done=()):
    return [row for _, rows in serving_runs.run(pair, prompts, spec, done) for row in rows]


def test_a_width_tax_has_every_cell_of_every_iteration(pair, as_records):
    spec = WidthTaxSpec(batch_sizes=(1, 3), packed_tokens=(1, 4, 9), prefix_tokens=20, warmups=1, iterations=2)
    units = dict(serving_tax.run(pair, spec))
    assert list(units) == ["1", "3"]
    frame = as_records([row for rows in units.values() for row in rows], WIDTH_TAX)
    cells = frame.groupby(["component", "batch", "packed_tokens"]).size()
    assert set(cells) == {2}
    assert len(cells) == 2 * (2 * 3 + 1)
    assert (frame["latency_ms"] > 0).all()


def test_every_timed_call_sees_the_same_prefixes(pair, monkeypatch):
    seen, verify = [], VERIFIERS["ragged"].verify

    def record(target, store, roots, forest, taps):
        seen.append((list(store.lengths), forest.sizes.tolist(), tuple(taps)))
        return verify(target, store, roots, forest, taps)

    monkeypatch.setattr(VERIFIERS["ragged"], "verify", record)
    spec = WidthTaxSpec((2,), (1, 5), prefix_tokens=20, verifiers=("ragged",), warmups=1, iterations=2)
    list(serving_tax.run(pair, spec))
    taps = pair.drafter.target_layer_ids
    assert seen == [([20, 20], [n, n], taps) for n in (0, 4, 0, 4, 0, 4)]


@pytest.mark.parametrize(("prefix", "packed", "what"), [(510, 9, "512"), (2, 4, "context")])
def test_impossible_prefixes_are_refused(pair, prefix, packed, what):
    with pytest.raises(CastError, match=what):
        next(serving_tax.run(pair, WidthTaxSpec((1,), (packed,), prefix_tokens=prefix)))


@pytest.mark.parametrize("verifiers", [(), ("ragged", "foo")])
def test_a_verifier_that_is_not_there(verifiers):
    with pytest.raises(CastError, match="verifiers must be some of dense, ragged"):
        WidthTaxSpec((1,), (4,), prefix_tokens=20, verifiers=verifiers)


def test_a_measured_cost_is_a_curve_over_all_packed_tokens(pair):
    cost = round_cost(pair, 3, VERIFIERS["ragged"], (1, 4, 8), prefix_tokens=20, iterations=1)
    assert cost.latency.packed_tokens.tolist() == [3, 12, 24]
    assert cost.draft_ms > 0


def test_runs_are_paired_and_compared_with_plain_decoding(pair, prompts, as_records):
    frame = as_records(rows_of(pair, prompts, spec_of()), SERVING)
    timed = frame[~frame.traced]
    assert len(timed) == 2 * len(VARIANTS)
    assert set(timed.requests) == {6}
    assert timed.departures.eq(0).all()
    assert timed.groupby("repeat").new_tokens.nunique().eq(1).all()  # the same requests, the same outputs
    assert timed[timed.repeat == 0].order.tolist() == list(range(len(VARIANTS)))
    assert timed[timed.repeat == 1].verifier.iloc[0] == "ragged"  # the rotation went on by one
    traced = frame[frame.traced]
    assert len(traced) == len(VARIANTS)
    assert (traced.verify_ms_per_round > 0).all()
    shared = timed.set_index(["verifier", "policy"]).padded_share
    assert (shared["ragged"] == 0).all()
    assert (shared["dense", "best_first"] > 0).all()
    assert (shared["bucketed_2", "best_first"] < shared["dense", "best_first"].max()).all()
    nodes = timed.set_index(["verifier", "policy"]).nodes_per_request
    assert set(nodes["ragged", "best_first"]) == set(nodes["ragged", "uniform"]) == {4}
    assert set(nodes["ragged", "chain"]) == {7}


def test_arrivals_make_a_load(pair, prompts, as_records):
    spec = spec_of(variants=("ragged/uniform", "ragged/best_first"), requests=9, load=3.0, repeats=1, traced=False)
    frame = as_records(rows_of(pair, prompts, spec), SERVING)
    assert set(frame.load) == {3.0}
    assert frame.arrivals_per_s.nunique() == 1
    assert set(frame.requests) == {9}
    assert (frame.elapsed_s > 0).all()
    assert (frame.latency_s > frame.wait_s).all()


def test_repeats_go_on_in_the_prompts_or_serve_all_of_them_again():
    encoded = [torch.arange(4)] * 6

    def of(repeat, **changes):
        chosen, requests = serving_runs._requests(encoded, 2, repeat, 5.0, spec_of(**changes))
        return chosen, [request.arrival for request in requests]

    assert (of(0)[0], of(1)[0], of(2)[0]) == ([0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5])
    first, second = (of(repeat, requests=12, load=1.5) for repeat in (0, 1))
    assert first[0] == second[0] == [0, 1, 2, 3, 4, 5] * 2
    assert not set(first[1]) & set(second[1])


def test_a_run_continues_where_it_stopped(pair, prompts):
    spec = spec_of(variants=("ragged/chain",), traced=False, compare=False)
    assert {row["repeat"] for row in rows_of(pair, prompts, spec, done={"3/0"})} == {1}
    assert rows_of(pair, prompts, spec, done={"3/0", "3/1"}) == []


def test_a_continued_run_offers_the_load_it_began_with(pair, prompts, monkeypatch):
    offered, arrivals = [], serving_runs.poisson_arrivals

    def spy(count, rate, seed):
        offered.append(rate)
        return arrivals(count, rate, seed)

    monkeypatch.setattr(serving_runs, "poisson_arrivals", spy)
    spec = spec_of(variants=("ragged/chain",), requests=4, load=2.0, traced=False, compare=False)
    first = dict(serving_runs.run(pair, prompts, spec, done={"3/1"}))["3/0"]
    rates = serving_runs.known_rates(first)
    assert rates == {3: offered[0]}
    rest = dict(serving_runs.run(pair, prompts, spec, done={"3/0"}, rates=rates))["3/1"]
    assert offered == [rates[3]] * 2
    assert {row["arrivals_per_s"] for row in rest} == {rates[3]}
    assert serving_runs.known_rates([row | {"load": None} for row in rest]) == {}


def test_sampled_runs_have_nothing_to_depart_from(pair, prompts, as_records):
    spec = spec_of(variants=("ragged/best_first",), temperature=1.0, repeats=1, traced=False)
    frame = as_records(rows_of(pair, prompts, spec), SERVING)
    assert frame.departures.isna().all()


def test_the_stopping_rule_prices_every_round(pair, prompts, monkeypatch):
    """Proposition 3 by brute force, round by round: most expected tokens per ms at that round's own cost."""
    each, base_ms, draft_ms = np.array([1, 2, 4, 8]), np.array([10.0, 11.0, 14.0, 30.0]), 2.0
    rule, budgets, roots = serving.allocators.stopping_budget, [], []

    def spy(masses, cost, requests):
        budgets.append(rule(masses, cost, requests))
        roots.append(requests)

        def rate(budget):
            ms = np.interp((requests + budget) / requests, each, base_ms + requests)
            return (requests + masses[:budget].sum()) / (draft_ms + ms)

        assert budgets[-1] == max(range(min(7 * requests, len(masses)) + 1), key=rate)
        return budgets[-1]

    def cost_of(_, batch, *__):
        return RoundCost(LatencyCurve(batch * each, base_ms + batch), draft_ms)

    monkeypatch.setattr(serving.allocators, "stopping_budget", spy)
    monkeypatch.setattr(serving_runs, "round_cost", cost_of)
    spec = spec_of(variants=("ragged/priced",), priced_packed_tokens=tuple(each), repeats=1, traced=False)
    budgets_of_warm_up = []
    warm_up = serving_runs._warm_up

    def warmed(*arguments):
        rate = warm_up(*arguments)
        budgets_of_warm_up.append(len(budgets))
        return rate

    monkeypatch.setattr(serving_runs, "_warm_up", warmed)
    row = rows_of(pair, prompts, spec)[0]
    timed = slice(budgets_of_warm_up[0], None)
    assert set(roots) >= {1, 3}
    assert row["rounds"] == len(budgets[timed])
    assert row["nodes_per_request"] == pytest.approx(sum(budgets[timed]) / sum(roots[timed]))


def test_an_inexact_server_is_an_error(pair, prompts, monkeypatch):
    monkeypatch.setattr(serving_runs, "_plain", lambda *_: [1, 2, 3])
    with pytest.raises(CastError, match="not exact"):
        rows_of(pair, prompts, spec_of(variants=("ragged/chain",), repeats=1))


@pytest.mark.parametrize("variant", ["ragged/widest", "sparse/chain", "bucketed_0/chain", "ragged"])
def test_unknown_variants_are_refused(pair, prompts, variant):
    with pytest.raises(CastError, match="unknown"):
        rows_of(pair, prompts, spec_of(variants=(variant,)))


def test_where_no_round_is_full_the_row_says_so(pair, prompts, as_records):
    spec = spec_of(active=(9,), requests=4, variants=("ragged/chain",), repeats=1, traced=False)
    frame = as_records(rows_of(pair, prompts, spec), SERVING)
    assert set(frame.status) == {"failed"}
    assert frame.reason.str.contains("slot").all()


def test_served_draws_keep_the_law(pair, prompts, as_records):
    spec = ServedLawSpec(
        draws=(400, 100), dtypes=("float64",), floor_samples=200, batch_size=3, lead_rounds=2, budget=5, seed=3
    )
    units = dict(serving_law.run(pair, prompts, spec))
    assert list(units) == ["float64"]
    frame = as_records(units["float64"], TOTAL_VARIATION)
    first = frame[frame.level == "first"]
    assert set(first.sampler) == {"autoregressive", "walk", "recursive"}
    assert set(first.prompt_index) == {0, 1, 2}
    assert set(first.walks) == {100, 400}
    assert (first.law_distance.dropna() < 1e-9).all()  # the batched pass has the law of plain decoding
    assert (first.p_value > 1e-4).all()
    last = first[first.walks == 400]
    assert (last.total_variation <= 1.5 * last.floor_q999).all()
    assert list(serving_law.run(pair, prompts, spec, done={"float64"})) == []


def test_served_draws_need_a_prompt_each(pair, prompts):
    with pytest.raises(CastError, match="prompt_limit"):
        next(serving_law.run(pair, prompts, ServedLawSpec(draws=(5,), batch_size=9)))
