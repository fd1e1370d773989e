"""Claims about rounds, blocks and overhead: each bar from rows that just meet or miss it."""

import pytest
from claim_rows import UNSURE, T, bars, drafted, each, of, over_both, slower
from synthetic_records import decode_row
from test_other_experiments import S, cells, write

from figures import data
from figures.claims import rounds


def test_blocks(folder):
    narrow = [row for row in cells({7: 0.3}) if row["method"] != "autoregressive"]
    short = [row | {"block_size": 8} for row in cells({7: 0.1}) if row["method"] == "cast"]
    chain = [row | {"block_size": 8, "budget": 7} for row in cells({}) if row["method"] == "dflash"]
    write(folder, "block_length", narrow + short + chain)
    study = data.load(folder.root)
    assert bars(study, rounds.shrink_the_tree) == (True, True)
    assert bars(study, rounds.narrow_tree_is_fastest) == (True, True)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [((1, 1, 1, 1, 1, 1), (True, True)), ((2, 0, 0, 0, 0, 0), (False, True)), ((2, 2, 2, 2, 2, 2), (False, False))],
)
def test_a_draft_pass_more_than_the_first_is_one_too_many(folder, extra, expected):
    rows = [row | {"drafter_passes": row["rounds"] + extra[row["prompt_index"]]} for row in cells({31: 0.2})]
    folder.sweep(S, "math", rows)
    assert bars(data.load(folder.root), rounds.one_draft_pass_a_round) == expected


def traced(method, budget, draft_ms=9.0, overhead_ms=3.0, setting=S):
    parts = {"draft_ms_per_round": draft_ms, "verify_ms_per_round": 50.0, "overhead_ms_per_round": overhead_ms}
    return decode_row(setting, "math", method, budget, 0, 10.0, 2.5, traced=True, repeat=1, **parts)


@pytest.mark.parametrize(
    ("widest", "expected"),
    [
        (9.8, (True, True)),
        (7.5, (False, True)),
        (10.8, (False, True)),
        (6.0, (False, False)),
        (12.0, (False, False)),
    ],
)
def test_drafting_of_the_widest_tree_takes_the_chains_time(folder, widest, expected):
    parts = [traced("dflash", 15, 9.0), traced("cast", 31, 20.0), traced("cast", 63, widest)]
    folder.sweep(S, "math", cells({31: 0.2, 63: 0.2}) + parts)
    assert bars(data.load(folder.root), rounds.drafting_ignores_width) == expected


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [((0.02, 0.01), (True, True)), ((0.02, -0.01), (False, True)), ((-0.02, -0.01), (False, False))],
)
def test_overhead_by_width(folder, slopes, expected):
    for setting, slope in zip((S, T), slopes, strict=True):
        parts = [traced("cast", n, overhead_ms=3.0 + slope * n, setting=setting) for n in (31, 63)]
        folder.sweep(setting, "math", of(setting, cells({31: 0.2, 63: 0.2})) + parts)
    assert over_both(data.load(folder.root), rounds.overhead_grows_with_width) == expected


@pytest.mark.parametrize(
    ("of_odd_prompts", "expected"), [(50, (True, True)), (57, (False, True)), (76, (False, False))]
)
def test_round_lengths_of_unlike_prompts(folder, of_odd_prompts, expected):
    """Half of the tree's outputs take 38 rounds, the others so many: by 1.9, 4.2 and 12.5% the averages differ."""
    rows = cells({31: 0.2})
    for row in rows:
        if row["method"] == "cast" and row["prompt_index"] % 2:
            row["rounds"] = of_odd_prompts
    folder.sweep(S, "math", rows)
    assert bars(data.load(folder.root), rounds.round_length_statistics) == expected


@pytest.mark.parametrize(
    ("at_chains_width", "gains", "expected"),
    [
        (0.10, each(0.19), (True, True)),
        (0.04, UNSURE, (False, True)),  # 8.5 points more
        (0.10, each(0.13), (False, True)),
        (0.20, each(0.10), (False, False)),
    ],
)
def test_width_adds_to_the_shape_where_it_does_by_prompt(folder, at_chains_width, gains, expected):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: at_chains_width}) + drafted("cast", 31, gains))
    assert bars(data.load(folder.root), rounds.width_beyond_shape) == expected


@pytest.mark.parametrize(
    ("gains", "chain", "narrowest", "shrunk"),
    [
        (each(0.3), 1.0, (True, True), (True, True)),
        (each(0.3), 0.7, (False, False), (True, True)),  # the chain of a block of eight is faster
        (UNSURE, 1.0, (False, True), (False, True)),
        (each(-0.1), 1.0, (False, False), (False, False)),
    ],
)
def test_blocks_are_compared_by_prompt(folder, gains, chain, narrowest, shrunk):
    chains = [row for row in cells({}) if row["method"] == "dflash"]
    short = [slower(row, chain) | {"block_size": 8, "budget": 7} for row in chains]
    trees = drafted("cast", 7, gains) + drafted("cast", 7, each(0.0), block_size=8)
    write(folder, "block_length", chains + short + trees)
    study = data.load(folder.root)
    assert bars(study, rounds.narrow_tree_is_fastest) == narrowest
    assert bars(study, rounds.shrink_the_tree) == shrunk
