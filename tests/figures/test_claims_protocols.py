"""Claims about seeds, repeats, lengths, prefixes and neighbours: each bar from rows that just meet or miss it."""

import pytest
from claim_rows import bars, uncertain
from test_other_experiments import S, cells, write

from figures import data
from figures.claims import NotMeasured, protocols, rounds


def test_sampling(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({31: 0.3}, r=3.0))
    seeds = [
        row for seed in range(3) for row in cells({31: 0.25 + 0.02 * seed}, r=2.0, seed=seed, temperature=1.0)
    ]  # fmt: skip
    write(folder, "sampled_decoding", [row | {"sampler": "recursive"} for row in seeds])
    study = data.load(folder.root)
    assert bars(study, protocols.sampled_gain_range) == (True, True)
    assert bars(study, protocols.every_seed_gains) == (True, True)
    assert bars(study, protocols.seeds_take_the_same_time) == (True, True)
    assert bars(study, protocols.sampling_shortens_rounds)[1] is False  # the chain's R is the same in both


def test_repeats(folder):
    folder.width(S, 31)
    repeated = [row for n in range(3) for row in cells({31: 0.2 + 0.01 * n, 63: 0.1 + 0.03 * n}, repeat=n)]
    write(folder, "repeated_panel", repeated)
    study = data.load(folder.root)
    assert bars(study, protocols.prompt_gain_bound) == (True, True)
    assert bars(study, protocols.runs_agree) == (True, True)  # 2.0 points at N* = 31
    assert bars(study, protocols.panel_repeats) == (False, True)  # 6.0 points at 63
    folder.sweep(S, "math", cells({31: 0.2}))
    study = data.load(folder.root)
    assert bars(study, rounds.shared_baseline) == (True, True)


def test_lengths_prefixes_and_neighbours(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({31: 0.2}))
    write(folder, "generation_length", cells({31: 0.20}) + cells({31: 0.10}, max_new_tokens=192))
    # 18 points from 7 to 31 say nothing of the widths from 47.
    write(folder, "long_prefix", cells({7: 0.07, 31: 0.25, 63: 0.27, 95: 0.26}))
    write(folder, "shared_device", cells({31: 0.3}))
    study = data.load(folder.root)
    assert bars(study, protocols.longer_generations) == (False, True)  # ten points lost
    assert bars(study, protocols.long_prefix_gain) == (False, True)
    assert bars(study, protocols.long_prefix_gap) == (True, True)
    assert bars(study, protocols.long_prefix_is_flat) == (True, True)
    assert bars(study, protocols.shared_device_inflates) == (True, True)


def test_a_neighbour_is_compared_on_the_prompts_that_the_idle_sweep_has_too(folder):
    """+30% against +10% on five prompts; the sweep's sixth alone would turn the comparison."""
    folder.sweep(S, "math", list(uncertain(31, (0.1, 0.1, 0.1, 0.1, 0.1, 9.0))))
    write(folder, "shared_device", [row for row in cells({31: 0.3}) if row["prompt_index"] < 5])
    found = protocols.shared_device_inflates(data.load(folder.root), [S])
    assert found.reproduced
    assert "+20.0" in found.ours


def test_another_width_does_not_pose_as_the_predicted_one(folder):
    folder.width(S, 31)
    write(folder, "long_prefix", cells({31: 0.3, 63: 0.3}))
    assert "(not N*)" not in protocols.long_prefix_gain(data.load(folder.root), [S]).ours
    folder.width(S, 23)
    assert "math, N = 63 (not N*): +30.0%" in protocols.long_prefix_gain(data.load(folder.root), [S]).ours


def test_one_seed_agrees_with_itself_and_measures_nothing(folder):
    write(folder, "sampled_decoding", cells({31: 0.3}, temperature=1.0, sampler="recursive"))
    for function in (protocols.seeds_take_the_same_time, protocols.every_seed_gains):
        with pytest.raises(NotMeasured, match="one seed"):
            function(data.load(folder.root), [S])


def test_rounds_are_compared_where_chain_and_tree_both_are(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", cells({15: 0.3}, r=3.0))
    sampled = [row | {"sampler": "recursive"} for row in cells({31: 0.25}, r=2.0, temperature=1.0)]
    write(folder, "sampled_decoding", sampled)
    with pytest.raises(NotMeasured, match="no width was decoded both"):  # the chain was, the tree of 31 was not
        protocols.sampling_shortens_rounds(data.load(folder.root), [S])


@pytest.mark.parametrize(
    ("least", "step", "gains", "times"),
    [
        (0.10, 0.02, (False, True), (True, True)),
        (-0.05, 0.02, (False, False), (True, True)),
        (0.25, 0.10, (True, True), (False, True)),
        (0.25, 0.30, (True, True), (False, False)),
    ],
)
def test_seeds(folder, least, step, gains, times):
    folder.width(S, 31)
    seeds = [row for n in range(3) for row in cells({31: least + step * n}, seed=n, temperature=1.0)]
    write(folder, "sampled_decoding", [row | {"sampler": "recursive"} for row in seeds])
    study = data.load(folder.root)
    assert bars(study, protocols.every_seed_gains) == gains
    assert bars(study, protocols.seeds_take_the_same_time) == times
