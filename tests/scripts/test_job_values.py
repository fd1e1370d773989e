"""Values, heads and engines that a job cannot have: one line each, before anything is loaded."""

import pytest

from cast.errors import CastError
from jobs import composition, measuring, pairs


def test_an_engine_that_does_not_exist_is_refused(tiny_job):
    from jobs.composition import ConfigurationError

    with pytest.raises(ConfigurationError, match="warp"):
        tiny_job("width_sweep", "engine=warp")


@pytest.mark.parametrize(
    ("experiment", "overrides", "told"),
    [
        ("width_sweep", ["~budgets"], "budgets is deleted; give it a value"),
        ("width_sweep", ["budgets=[7,7]"], "budgets names 7 twice"),
        ("width_sweep", ["methods=[cast,cast]"], "methods names cast twice"),
        ("width_sweep", ["seeds=[1,1]"], "seeds names 1 twice"),
        ("width_sweep", ["budgets=[16385]"], "budgets must be 16384 or less"),
        ("width_sweep", ["seed=-1"], "seed must be 0 or more"),
        (
            "sampled_decoding",
            ["seed=7"],
            r"seed=7 does nothing .*, which runs seeds=\[0, 1, 2\]; give seeds=\[7\] as well",
        ),
        ("width_sweep", ["block_size=1"], "block_size must be 2 or more"),
        ("width_sweep", ["methods=[ngram]"], r"ngram has no widths; .* '\+method_options.ngram=\{budgets: \[15\]\}'"),
        ("width_sweep", ["+method_options.cast={budgets: [3]}"], "cast has no options"),
        ("width_sweep", ["+method_options.gram={budgets: [3]}"], "method_options names 'gram'"),
        (
            "drafter_comparison",
            ["methods=[ngram]", "method_options.ngram.budgets=15"],
            "must be a list of whole numbers",
        ),
        ("drafter_comparison", ["methods=[ngram]", "method_options.ngram.budgets=[5,5]"], "budgets names 5 twice"),
        ("drafter_comparison", ["methods=[ngram]", "method_options.ngram.budgets=[-1]"], "budgets must be 0 or more"),
        ("width_sweep", ["+drafter@baselines.cast.x=tiny_qwen3"], "cast drafts with the setting's drafter"),
        ("width_sweep", ["drafter=none"], "has no drafter"),
        ("drafter_scores", ["drafter=none"], "has no drafter"),
        ("score_log", ["drafter=none"], "has no drafter"),
        ("greedy_equivalence", ["methods=[ngram]"], "compares autoregressive, dflash, cast, not ngram"),
        ("replay", ["requests=4", "batch_size=8"], "a batch of 8 is drawn from requests=4"),
        ("replay", ["budgets=[500]"], "budgets has 500, above largest_budget=127"),
        ("replay", ["largest_budget=100000"], "largest_budget must be 16384 or less"),
        ("width", ["overhead_ms=-1"], "overhead_ms must be 0 or more"),
        (
            "serving_goodput",
            ["priced_packed_tokens=[2,4]"],
            r"must begin at 1 \(a root alone\) and go on; got \[2, 4\]",
        ),
        ("serving_goodput", ["priced_packed_tokens=[1]"], "priced_packed_tokens must begin at 1"),
        ("serving_goodput", ["requests=4"], "requests=4 never fill 32 active slots"),
    ],
)
def test_what_no_pair_could_decode_with_is_refused(tiny_job, experiment, overrides, told):
    with pytest.raises(CastError, match=told):
        measuring.check_values(tiny_job(experiment, *overrides))


def test_a_cost_that_no_policy_asks_for_may_be_any(tiny_job):
    measuring.check_values(tiny_job("serving_goodput", "priced_packed_tokens=[2]", "variants=[dense/uniform]"))


@pytest.mark.parametrize("overrides", [[], ["seeds=[5,6]"], ["seed=7", "seeds=[7]"], ["seed=7", "seeds=null"]])
def test_seeds_come_alone_or_with_the_first_of_them(tiny_job, overrides):
    measuring.check_values(tiny_job("sampled_decoding", *overrides))


def test_jobs_that_do_not_draft_need_no_drafter(tiny_job):
    for experiment, *overrides in (("latency_probe",), ("width_sweep", "methods=[autoregressive]"), ("replay",)):
        measuring.check_values(tiny_job(experiment, "drafter=none", *overrides))


def test_a_head_of_another_kind_is_told_by_its_place(tmp_path):
    def job(experiment, *overrides):
        return composition.compose_job(experiment, "tiny_drafters", "tiny", overrides)

    with pytest.raises(
        CastError, match=r"drafter=tiny_eagle3 is a head of kind EAGLE-3, and dflash needs one of kind DF"
    ):
        pairs.load(job("latency_probe", "drafter=tiny_eagle3"), "cpu")
    dart = "baselines.eagle3.tiny.source=tests/golden/dart_tiny/drafter"
    config = job("drafter_comparison", "methods=[eagle3]", dart)
    with pytest.raises(
        CastError, match=r"baselines\.eagle3, tiny_eagle3, is a head of kind DART, and eagle3 needs one"
    ):
        pairs.load_baselines(config, "cpu", pairs.load(config, "cpu"))
    with pytest.raises(CastError, match="engine=graph needs a CUDA device"):
        pairs.load(job("latency_probe", "engine=graph"), "cpu")
