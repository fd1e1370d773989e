"""The paper against itself: interval arithmetic, and which of its derived numbers do not follow from the others."""

import subprocess
import sys

import numpy as np
import pytest

from figures import consistency, paper
from figures.consistency import AGREES, DISAGREES, ROUNDING, Check, Number, weighted


@pytest.fixture(scope="module")
def checks():
    return consistency.checks()


def named(checks, text):
    found = [check for check in checks if text in check.what]
    assert found, text
    return found


@pytest.mark.parametrize(
    ("printed", "decimals", "recomputed", "verdict"),
    [
        (4.35, 2, Number(4.3482, 4.34, 4.36), AGREES),
        (4.54, 2, Number(4.5347, 4.5296, 4.5398), ROUNDING),
        (4.54, 2, Number(4.53, 4.52, 4.5349), DISAGREES),
        (10.0, 0, Number(43.0, 42.3, 43.7), DISAGREES),
        (-1.7, 1, Number(-1.74, -1.8, -1.64), AGREES),
    ],
)
def test_verdicts(printed, decimals, recomputed, verdict):
    assert Check("x", "y", printed, decimals, recomputed).verdict == verdict


def test_intervals_hold_every_value_the_rounding_allows():
    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = random.uniform(1, 9, 2)
        one, other = Number.printed(round(a, 1), 1), Number.printed(round(b, 1), 1)
        for number, value in (
            (one.over(other), a / b),
            (consistency.gain_percent(one, other), 100 * (a / b - 1)),
            (weighted([one, other], [2.0, -3.0]), 2 * a - 3 * b),
            (consistency.mean([one, other]), (a + b) / 2),
        ):
            assert number.low - 1e-9 <= value <= number.high + 1e-9
            assert number.low <= number.value <= number.high


@pytest.mark.parametrize("estimator", ["least_squares", "endpoints"])
def test_slopes_are_those_of_the_width_rule(estimator):
    from figures.probe import slopes

    for setting, rows in paper.table("table5").groupby("setting"):
        packed, latency = list(rows["packed_tokens"]), list(rows["latency_ms"])
        ours = consistency.slope_of(packed, latency, estimator)
        assert ours.value == pytest.approx(slopes(packed, latency)[estimator]), setting
        moved = np.array(latency) + np.random.default_rng(1).uniform(-0.05, 0.05, len(latency))
        assert ours.low <= slopes(packed, moved)[estimator] <= ours.high


def test_every_table_closes_and_three_statements_do_not(checks):
    """No cell of a table fails; what fails is the width tax and one slope by each estimator."""
    wrong = {check.what for check in checks if check.verdict == DISAGREES}
    assert wrong == {
        "text, blackwell-qwen3_8b: growth from 1 to 64 packed tokens (%)",
        "text, blackwell-qwen3_8b: slope (ms per token) by endpoints",
        "text, h100_sxm-qwen3_8b: slope (ms per token) by least squares",
    }
    assert len(checks) == 171
    assert len({check.what for check in checks}) == len(checks)


def test_table2_follows_from_tables_8_12_16_and_17(checks):
    found = [check for check in named(checks, "Table 2,") if "gap" not in check.what]
    assert len(found) == 24
    assert {check.source for check in found} == {"Table 8", "Table 12", "Table 16", "Table 17"}
    assert all(check.verdict != DISAGREES for check in found)
    (coder,) = named(found, "coder_30b_a3b: gain_percent")
    assert coder.recomputed.value == pytest.approx(35.62, abs=0.01)
    for row in paper.table("table2").to_dict("records"):
        _, gains = consistency.setting_gains(row["setting"])
        swept = {width: gain.value for width, gain in gains.items()}
        if row["second_host"]:
            swept.pop(127)
        best = max(swept, key=swept.get)
        assert best == row["oracle_width"], row["setting"]


def test_known_values_of_single_checks(checks):
    expected = {
        "Table 1, h100_sxm-qwen3_8b, gsm8k, dflash (16): speedup": (4.535, ROUNDING),
        "Table 7, blackwell-qwen3_8b, gsm8k: gain (%)": (16.44, AGREES),
        "Table 9, blackwell-qwen3_8b, gsm8k: gain (%)": (5.77, ROUNDING),
        "Table 10, blackwell-qwen3_8b, humaneval: gain (%)": (22.25, ROUNDING),
        "Table 14, h100_sxm-qwen3_8b, govreport, 256 new tokens: gain (%)": (27.3, ROUNDING),
        "Table 6, h100_sxm-qwen3_8b, prefix 1000: slope (ms per token)": (-0.0161, AGREES),
        "text: gain that width adds on Blackwell, mean (points)": (9.05, AGREES),
    }
    for what, (value, verdict) in expected.items():
        (check,) = [check for check in checks if check.what == what]
        assert check.recomputed.value == pytest.approx(value, rel=5e-3), what
        assert check.verdict == verdict or what.endswith("mean (points)"), what


def test_the_predicted_width_of_blackwell_needs_rounding_up():
    found = consistency.thresholds("blackwell-qwen3_8b")
    assert found["printed"] == pytest.approx(0.0153, abs=5e-5)
    assert 47 < consistency.crossing(found["printed"]) < 63
    assert consistency.crossing(found["endpoints"]) < 47
    assert consistency.crossing(0.016) == pytest.approx(48)
    assert consistency.crossing(0.011) == pytest.approx(64)


def test_the_flatter_curve_has_the_narrower_width():
    flat, steep = (
        consistency.thresholds(name)["least_squares"] for name in ("blackwell-qwen3_4b", "h100_sxm-qwen3_8b")
    )
    assert flat < steep  # so by the rule the first should be the wider tree; Table 2 has 95 against 127


@pytest.mark.parametrize(
    ("conflict", "words"),
    [
        (consistency.slope, ["0.0211", "0.0179"]),
        (consistency.wider_where_flatter, ["0.0145", "95 against 127"]),
        (consistency.width_tax, ["43.0%"]),
        (consistency.round_length, ["4.06", "3.13"]),
        (consistency.width_rounding, ["N = 50", "endpoints: 40"]),
        (consistency.truncated_grid, ["-1.5 and -0.9"]),
        (consistency.shared_baseline, ["8%", "gsm8k"]),
        (consistency.replayed_round_length, ["7.7", "7.48", "8.51"]),
        (consistency.saved_rounds, ["12,058", "13,545"]),
    ],
)
def test_conflicts_are_recomputed(conflict, words):
    sentence = conflict()
    assert all(word in sentence for word in words), sentence
    assert conflict in consistency.CONFLICTS


def test_it_prints_what_the_scorecard_says():
    printed = subprocess.run(
        [sys.executable, "-m", "figures.consistency"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed == consistency.lines()
    assert printed[0].startswith("171 derived numbers")
    assert len(printed) == 1 + 3 + len(consistency.CONFLICTS)
