"""The decode protocol with heads of several kinds on one target."""

import dataclasses

import pytest

from cast import CastError
from cast.experiments import width_sweep
from cast.experiments.prompts import Prompt
from cast.experiments.records import DECODE
from cast.experiments.width_sweep import Variant, WidthSweepSpec, variants_of

OPTIONS = {
    "eagle3": {"budgets": [7, 15], "top_k": 4, "draft_steps": 3},
    "dart": {"budgets": [8]},
    "ngram": {"budgets": [5], "max_ngram": 2},
}


@pytest.fixture(scope="module")
def heads(golden, golden_pair):
    pair, dart = golden_pair("eagle3_tiny"), golden_pair("dart_tiny")
    other = pair.with_drafter(golden / "eagle3_tiny" / "random_head")
    return {
        "eagle3": {"trained": pair, "random": other},
        "dart": {"official": dataclasses.replace(dart, target=pair.target)},
    }


def spec_of(**changes):
    methods = ("autoregressive", "eagle3", "dart", "ngram")
    return WidthSweepSpec(
        **{"methods": methods, "budgets": (), "max_new_tokens": 20, "method_options": OPTIONS, **changes}
    )


def test_every_head_of_a_method_runs_with_its_own_options(golden_pair, heads, as_records):
    pair = golden_pair("eagle3_tiny").with_drafter(None)
    prompts = [Prompt(id="one", text="47 75 4 44 78 18 11 48", domain="golden")]
    (rows,) = width_sweep.run(pair, prompts, spec_of(), heads=heads)
    frame = as_records(rows, DECODE)
    timed = frame[~frame["traced"]]
    assert sorted(zip(timed["method"], timed["drafter"], timed["budget"], strict=True)) == [
        ("autoregressive", "tiny", 0),
        ("dart", "official", 8),
        ("eagle3", "random", 7),
        ("eagle3", "random", 15),
        ("eagle3", "trained", 7),
        ("eagle3", "trained", 15),
        ("ngram", "tiny", 5),
    ]
    assert (frame["departure"] == -1).all()
    assert timed["output_sha256"].nunique() == 1
    eagle3 = frame[frame["method"] == "eagle3"]
    assert (eagle3["drafter_passes"] == 4 * eagle3["rounds"]).all()  # three draft steps, four passes
    assert (eagle3["top_k"] == 4).all()
    assert (eagle3["block_size"] == 0).all()
    dart = frame[frame["method"] == "dart"]
    assert (dart["drafter_passes"] == dart["rounds"]).all()
    assert (frame[frame["method"] == "ngram"]["drafter_passes"] == 0).all()
    traced = frame[frame["traced"] & frame["method"].isin(["eagle3", "dart"])]
    assert (traced["draft_ms_per_round"] > 0).all()
    committed = timed.set_index(["drafter", "budget"])["rounds"]
    assert committed["trained", 15] < committed["random", 15]


def test_the_pairs_own_head_serves_where_there_is_no_other(golden_pair):
    pair = golden_pair("eagle3_tiny")
    spec = spec_of(methods=("eagle3",))
    assert variants_of(pair, spec) == [Variant("eagle3", 7), Variant("eagle3", 15)]
    prompts = [Prompt(id="one", text="47 75 4 44", domain="golden")]
    (rows,) = width_sweep.run(pair, prompts, spec)
    assert all("drafter" not in row for row in rows)


def test_a_method_without_widths():
    with pytest.raises(CastError, match=r"give method_options.dart.budgets"):
        variants_of(None, spec_of(method_options={}, methods=("dart",)))
    with pytest.raises(CastError, match="method cast has no widths"):
        variants_of(None, spec_of(method_options={"cast": {"top_k": 4}}, methods=("cast",)))
