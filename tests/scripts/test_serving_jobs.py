"""The serving script on the tiny pair: records of its experiments, and cells that cannot be measured."""

import pytest
from serving import serving

from cast import CastError
from cast.experiments.partial import Partial
from cast.experiments.records import SERVING, TOTAL_VARIATION, WIDTH_TAX, read_records, write_records
from jobs import measuring, pairs

TAX = ["batch_sizes=[1,2]", "packed_tokens=[1,4]", "prefix_tokens=16", "warmups=1", "iterations=2"]
LAW = ["batch_size=2", "lead_rounds=1", "dtypes=[float32]", "draws=[50]", "floor_samples=20", "budget=4"]
RUNS = ["active=[2]", "variants=[dense/uniform,ragged/best_first]", "max_new_tokens=6", "repeats=2", "requests=4"]


def test_a_width_tax_continues_with_the_batch_sizes_it_lacks(tiny_job):
    config = tiny_job("width_tax", *TAX, domain=None)
    serving(config)
    frame = read_records(config.out, WIDTH_TAX)
    assert set(zip(frame.batch, frame.component, strict=True)) == {
        (batch, part) for batch in (1, 2) for part in ("verify_dense", "verify_ragged", "draft")
    }
    again = tiny_job("width_tax", *TAX, domain=None, out="again.parquet")
    measured = ["component", "batch", "packed_tokens", "prefix_tokens", "iteration", "latency_ms"]
    held = frame[frame.batch == 1][measured].to_dict("records")
    with Partial(again.out, measuring.resume_digest(again, "cpu"), lambda _: None) as partial:
        partial.append("1", held, 1.0)
    serving(again)
    resumed = read_records(again.out, WIDTH_TAX)
    assert len(resumed) == len(frame)
    assert resumed.groupby("session").batch.unique().map(list).tolist() in ([[1], [2]], [[2], [1]])


@pytest.mark.parametrize(("experiment", "load"), [("serving_goodput", False), ("continuous_batching", True)])
def test_runs_of_both_kinds(tiny_job, experiment, load):
    config = tiny_job(experiment, *RUNS, "traced=true")
    serving(config)
    frame = read_records(config.out, SERVING)
    timed = frame[~frame.traced]
    assert set(timed.verifier + "/" + timed.policy) == {"dense/uniform", "ragged/best_first"}
    assert set(timed.repeat) == {0, 1}
    assert timed.load.notna().all() == load
    assert timed.departures.eq(0).all()
    assert len(frame[frame.traced]) == 2
    for column, nonsense in (("new_tokens", 10**6), ("full_rounds", 10**6), ("tokens_per_s", 1e-3), ("requests", None)):
        with pytest.raises(CastError, match=f"column {column}, row 0"):
            write_records(frame.assign(**{column: nonsense}), f"{config.out}.nonsense", SERVING)


def test_values_that_mean_nothing_are_refused_first(tiny_job):
    for experiment, override, told in (
        ("continuous_batching", "load=0", "load must be above 0"),
        ("sampling_under_load", "temperature=0", "temperature must be above 0"),
        ("continuous_batching", "device.threads=0", "device.threads must be 1 or more"),
        ("continuous_batching", "load=nan", "load must be a finite number"),
        ("continuous_batching", "variants=[]", "variants is empty"),
        ("sampling_under_load", "samplers=[]", "samplers is empty"),
        ("sampling_under_load", f"seed={10**22}", "seed must be a finite number that fits 64 bits"),
        ("sampling_under_load", "top_p=0", "top_p must be above 0"),
        ("sampling_under_load", "top_p=5", "top_p must be 1 or less"),
        ("sampling_under_load", "lead_rounds=-1", "lead_rounds must be 0 or more"),
    ):
        with pytest.raises(CastError, match=told):
            serving(tiny_job(experiment, override))


def test_the_law_of_served_draws(tiny_job):
    config = tiny_job("sampling_under_load", *LAW)
    serving(config)
    frame = read_records(config.out, TOTAL_VARIATION)
    assert set(frame.prompt_index) == {0, 1}
    assert set(frame.dtype) == {"float32"}
    assert (frame.p_value > 1e-6).all()


def test_a_pair_that_is_not_there_is_a_record(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    for config, schema, cells in (
        (tiny_job("width_tax", *TAX, domain=None), WIDTH_TAX, 8),
        (tiny_job("serving_goodput", *RUNS, out="g.parquet"), SERVING, 4),
        (tiny_job("sampling_under_load", *LAW, out="l.parquet"), TOTAL_VARIATION, 2),
    ):
        serving(config)
        frame = read_records(config.out, schema)
        assert set(frame.reason) == {"no such GPU"}
        assert len(frame) == cells


def test_what_a_protocol_refuses_costs_no_load(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: pytest.fail("a model was loaded"))
    for experiment, override, told in (
        ("serving_goodput", "variants=[dense]", "unknown variant 'dense'"),
        ("serving_goodput", "variants=[bucketed_0/chain]", "unknown variant"),
        ("sampling_under_load", "batch_size=40", "batch_size=40 requests need as many prompts, not 6"),
        ("width_tax", "verifiers=[quick]", "verifiers must be some of dense, ragged"),
        ("width_tax", "engine=graph", "serving runs the target eagerly"),
    ):
        with pytest.raises(CastError, match=told):
            serving(tiny_job(experiment, override))


def test_another_scripts_experiment_is_refused(tiny_job):
    with pytest.raises(CastError, match="does not measure"):
        serving(tiny_job("latency_probe", domain=None))
