"""Claims about EAGLE-3 and DART: each bar from rows that just meet or miss it."""

import pytest
from claim_rows import UNSURE, bars, drafted, each, stored
from test_other_experiments import S, cells, write

from cast.experiments.records import REPLAY
from figures import data
from figures.claims import NotMeasured, drafters


def test_eagle3(folder):
    folder.width(S, 31)
    eagle = [
        row | {"method": "eagle3", "budget": 59, "drafter_passes": 8 * row["rounds"]}
        for row in cells({31: -0.05}, r=2.5)
        if row["method"] == "cast"
    ]
    write(folder, "drafter_comparison", cells({31: 0.4}) + eagle)
    study = data.load(folder.root)
    assert bars(study, drafters.faster_than_eagle3) == (True, True)  # 1.4 / 0.95
    assert bars(study, drafters.chain_trails_eagle3) == (False, True)
    assert bars(study, drafters.eagle3_commits_as_much) == (True, True)
    assert bars(study, drafters.eagle3_drafts_many_times) == (True, True)
    with pytest.raises(NotMeasured, match="no DART head"):
        drafters.dart_tree_faster_when_wide(data.load(folder.root), [S])


def test_dart(folder):
    empty = {
        "analysis": "budget_sweep",
        "roots": "every",
        "method": "cast",
        "top_k": 8,
        "bin": "",
        "n": 9,
        "prompts": 9,
    }
    rows = [
        empty | {"budget": n, "quantity": quantity, "value": value, "low": value - 0.01, "high": value + 0.01}
        for quantity, at in (
            ("r_pooled", {1: 1.6, 8: 2.2, 63: 2.8}),
            ("r_gain_over_chain", {1: -0.2, 8: 0.16, 63: 0.5}),
        )
        for n, value in at.items()
    ]
    stored(folder, "dart_replay", rows, REPLAY)
    study = data.load(folder.root)
    assert bars(study, drafters.dart_grows_with_budget) == (True, True)
    assert bars(study, drafters.dart_lift_at_eight) == (True, True)
    assert bars(study, drafters.dart_lift_at_63) == (False, True)
    trees = [
        row | {"method": "dart", "budget": n, "committed_tokens": row["committed_tokens"] + n}
        for n in (8, 16, 32, 60)
        for row in cells({15: 0.5 + n / 100})
        if row["method"] == "cast"
    ]
    write(folder, "drafter_comparison", cells({15: 0.5}) + trees)
    study = data.load(folder.root)
    assert bars(study, drafters.dart_tree_faster_when_wide) == (True, True)
    assert bars(study, drafters.dart_tree_rounds_rise) == (True, True)


@pytest.mark.parametrize(
    ("gains", "eagle", "faster", "trails"),
    [
        (each(0.4), 0.05, (True, True), (True, True)),
        (UNSURE, -1 / 6, (False, True), (False, True)),  # +35%, in the paper's range
        (UNSURE, 0.05, (False, True), (False, True)),  # the chain trails for certain, CAST may too
        (each(0.0), 0.05, (False, False), (False, False)),
    ],
)
def test_eagle3_is_compared_by_prompt(folder, gains, eagle, faster, trails):
    folder.width(S, 31)
    trees = drafted("cast", 31, gains) + drafted("eagle3", 59, each(eagle))
    write(folder, "drafter_comparison", cells({}) + trees)
    study = data.load(folder.root)
    assert bars(study, drafters.faster_than_eagle3) == faster
    assert bars(study, drafters.chain_trails_eagle3) == trails


@pytest.mark.parametrize(
    ("gains", "rounds_of_larger", "expected"),
    [
        (each(0.2), 30, (True, True)),
        (UNSURE, 30, (False, True)),
        (each(0.2), 45, (False, True)),  # the smaller tree takes 38
        (each(-0.1), 30, (False, False)),
    ],
)
def test_eagle3s_larger_tree(folder, gains, rounds_of_larger, expected):
    trees = drafted("eagle3", 15, each(0.0)) + drafted("eagle3", 59, gains, rounds=rounds_of_larger)
    write(folder, "drafter_comparison", cells({}) + trees)
    assert bars(data.load(folder.root), drafters.eagle3_larger_tree_is_faster) == expected


def test_one_tree_of_eagle3_is_not_the_larger(folder):
    write(folder, "drafter_comparison", cells({}) + drafted("eagle3", 59, each(0.2)))
    with pytest.raises(NotMeasured, match="16 and of 60"):
        drafters.eagle3_larger_tree_is_faster(data.load(folder.root), [S])


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        (0.0, each(0.6), (True, True)),
        (0.0, UNSURE, (False, True)),
        (-0.3, each(-0.1), (False, True)),  # a speedup of 1.8
        (0.0, each(-0.1), (False, False)),
    ],
)
def test_darts_trees_are_compared_by_prompt(folder, narrow, wide, expected):
    trees = drafted("dart", 8, each(narrow)) + drafted("dart", 60, wide)
    write(folder, "drafter_comparison", cells({}) + trees)
    assert bars(data.load(folder.root), drafters.dart_tree_faster_when_wide) == expected
