"""The scorecard: every claim is well formed, verdicts follow the bars, and none poses as the paper's."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import decode_row, latency_rows

from cast.errors import CastError
from figures import claims, consistency, data, scorecard
from figures.claims import exactness, finding, width
from figures.probe import verification_latency

S, T = "smollm2_bf16", "smollm2_fp32"


def sweep(setting: str, gains: dict[int, float], target: str = "smollm2_135m", **changes) -> list[dict]:
    """Six prompts whose gains over the chain are exactly ``gains``; AR takes twice the chain's time."""
    rows = []
    for prompt, ms in enumerate([20.0, 22.0, 24.0, 26.0, 28.0, 30.0]):
        cells = {("autoregressive", 0): (2 * ms, 1.0), ("dflash", 15): (ms, 1.9)}
        cells |= {("cast", width): (ms / (1 + gain), 2.5) for width, gain in gains.items()}
        rows += [
            decode_row(setting, "math", method, budget, prompt, time, r, **changes) | {"target": target}
            for (method, budget), (time, r) in cells.items()
        ]
    return rows


def test_the_readme_counts_the_claims():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"{len(claims.entries())} claims of the paper" in readme


def verdicts(folder, scope: str | None = None) -> dict[str, dict]:
    return {
        verdict["id"]: verdict
        for verdict in scorecard.judge(data.load(folder.root))
        if scope in (None, verdict["scope"])
    }


def test_entries_are_whole_and_every_function_serves_a_claim():
    entries = claims.entries()
    assert len(entries) >= 60
    for kind, module in claims.KINDS.items():
        used = {entry["compute"] for entry in entries if entry["kind"] == kind}
        measuring = {
            name for name, item in vars(module).items()
            if callable(item) and getattr(item, "__module__", "") == module.__name__ and name[0] != "_"
        }  # fmt: skip
        assert used == measuring, kind
    conflicts = {entry["conflict"] for entry in entries if "conflict" in entry}
    assert conflicts == {function.__name__ for function in consistency.CONFLICTS}


def test_every_part_of_the_paper_and_every_experiment_has_a_claim():
    entries = claims.entries()
    found = {section for entry in entries for section in claims.sections(entry["where"])}
    assert {"Abstract", *(f"Section {n}" for n in (1, 3, 4, 5)), *(f"Appendix {x}" for x in "ABCDEFGH")} == found
    named = {experiment for entry in entries for experiment in entry["experiments"]}
    known = {path.stem for path in Path("conf/experiment").glob("*.yaml")}
    assert named <= known
    # Only these are about another claim's numbers: a log that is replayed, and Figure 1's example.
    assert known - named <= {"dart_score_log", "worked_example", "drafter_comparison_sampled"}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("Abstract; Sections 1 and 3.3; Table 2", ["Abstract", "Section 1", "Section 3"]),
        ("Appendices D.2 and F; Figure 4a", ["Appendix D", "Appendix F"]),
        ("Section 4; Appendix G", ["Section 4", "Appendix G"]),
        ("Tables 1 and 12", []),
    ],
)
def test_sections_are_read_from_where(where, expected):
    assert claims.sections(where) == expected


def test_a_claim_without_its_bar_is_refused(monkeypatch):
    whole = claims.entries()[0]
    refused = {
        "lacks direction": [whole | {"direction": ""}],
        "lacks paper": [whole | {"paper": 0.004}],
        "function that figures does not have": [whole | {"compute": "nothing"}],
        "names no section": [whole | {"where": "Table 2"}],
        "occurs twice": [whole, whole],
    }
    for message, loaded in refused.items():
        monkeypatch.setattr(claims, "_read", lambda _, loaded=loaded: loaded)
        monkeypatch.setattr(claims, "KINDS", {whole["kind"]: claims.KINDS[whole["kind"]]})
        with pytest.raises(CastError, match=message):
            claims.entries()


@pytest.mark.parametrize(
    ("value", "low", "high", "bars", "expected"),
    [
        (0.30, 0.28, 0.34, [0.25], "+2.5 (S)"),  # five points above, the lower half-width is two
        (0.20, 0.19, 0.22, [0.25], "-2.5 (S)"),
        (0.30, 0.28, 0.34, [0.2, 0.4], "0: inside the paper's range"),
        (0.30, 0.28, 0.34, [], ""),
        (0.30, float("nan"), float("nan"), [0.25], ""),
    ],
)
def test_a_deviation_is_in_units_of_our_interval(value, low, high, bars, expected):
    assert finding.deviation([finding.Measurement("S", "", value, low, high)], bars) == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.356, 0.30, 0.50, True),
        (0.3556, 0.01, 0.90, True),  # 35.6% as printed: its own value says enough
        (0.3554, 0.01, 0.90, False),
        (0.356, -0.01, 0.50, False),  # may be none
        (0.30, 0.20, 0.40, True),
        (0.30, 0.10, 0.40, True),  # 30 points wide, of 35.6
        (0.20, 0.03, 0.40, False),  # 37 points wide: would contain most numbers
        (0.20, 0.0, 0.356, False),
        (0.30, 0.28, 0.35, False),  # below the paper's for certain
        (0.40, float("nan"), float("nan"), False),
    ],
)
def test_an_effect_reaches_the_papers_by_its_value_or_by_an_interval_no_wider(value, low, high, expected):
    assert finding.reaches(finding.Measurement("S", "", value, low, high), 0.356, 3) is expected


def test_the_rule_of_reaching_stands_in_the_scorecard(full_study):
    study = data.load(full_study)
    for written in (scorecard.markdown, scorecard.page):
        assert finding.REACHING in html.unescape(written(study, []))


@pytest.mark.parametrize(
    ("gain", "expected"),
    [(0.25, "reproduced"), (0.5, "reproduced"), (-0.1, "not reproduced")],
)
def test_faster_in_every_setting(folder, gain, expected):
    folder.width(S, 31)
    folder.sweep(S, "math", sweep(S, {15: 0.1, 31: gain}))
    assert verdicts(folder)["faster-in-every-setting"]["verdict"] == expected


def test_range_of_gains_and_gap(folder):
    folder.width(S, 31)
    folder.width(T, 15)
    folder.sweep(S, "math", sweep(S, {15: 0.10, 31: 0.25, 127: 0.26}))
    folder.sweep(T, "math", sweep(T, {15: 0.50, 31: 0.55, 127: 0.30}))
    found = verdicts(folder)
    assert found["average-gain-range"]["verdict"] == "direction reproduced"  # 50% is above the paper's range
    assert found["best-domain-gain"]["verdict"] == "reproduced"
    assert found["matches-oracle"]["ours"].startswith("0 of 2 settings")
    assert found["gap-to-oracle"]["verdict"] == "direction reproduced"  # 5 points behind, 91% of the gain
    assert found["too-wide-costs"]["verdict"] == "reproduced"  # 20 points lost at 127
    assert found["width-depends-on-deployment"]["verdict"] == "reproduced"
    assert found["peaks-near-largest"]["verdict"] == "not measured"
    assert found["without-sweeping"]["ours"] == f"{S}: 80 s against 300 s; {T}: 80 s against 300 s"
    assert found["longer-rounds"]["verdict"] == "reproduced"
    assert found["speedup-over-ar"]["verdict"] == "direction reproduced"


def test_shape_and_width(folder):
    folder.width(S, 127)
    folder.sweep(S, "math", sweep(S, {15: 0.10, 31: 0.12, 127: 0.18}))
    found = verdicts(folder)
    assert found["shape-alone-helps"]["verdict"] == "reproduced"
    assert found["shape-gain-range"]["ours"] == "+10.0% to +10.0%"
    assert found["shape-gain-range"]["verdict"] == "reproduced"
    assert found["shape-lifts-rounds"]["verdict"] == "direction reproduced"  # 2.5 - 1.9 = 0.6
    assert found["width-beyond-shape"]["ours"].startswith("mean +8.0 points")
    assert found["peaks-near-largest"]["verdict"] == "reproduced"


def test_latency_claims(folder):
    flat = {1: 50.0, 16: 50.0, 32: 50.5, 64: 52.0, 96: 53.0}
    folder.probe(S, latency_rows(S, flat | {128: 54.0}))
    folder.probe(T, latency_rows(T, flat | {128: 70.0}))
    folder.width(S, 127, slope=0.03)
    folder.width(T, 63, slope=0.15)
    found = verdicts(folder)
    assert found["small-growth-16-to-64"]["verdict"] == "reproduced"
    assert found["cliff-is-a-deployment-matter"]["verdict"] == "reproduced"
    assert found["locally-affine"]["verdict"] == "direction reproduced"
    for name, here in (("wider-where-flatter", "reproduced"), ("width-tax-at-batch-one", "reproduced")):
        assert found[name]["verdict"] == "the paper disagrees with itself"
        assert found[name]["ours_verdict"] == here
    assert found["faster-in-every-setting"]["verdict"] == "not measured"
    assert "no width_sweep record" in found["faster-in-every-setting"]["why"]


def test_departures(folder):
    rows = sweep(S, {15: 0.1})
    rows[-1] |= {"departure": 5, "departure_gap": 0.1}
    folder.sweep(S, "math", rows)
    rows = sweep(T, {15: 0.1})
    rows[-1] |= {"departure": 5, "departure_gap": 0.1}
    folder.sweep(T, "math", rows)
    found = verdicts(folder)
    assert found["near-ties-in-bf16"]["verdict"] == "reproduced"
    assert found["exact-in-fp32"]["verdict"] == "not reproduced"
    assert "1 of 12 outputs depart" in found["exact-in-fp32"]["ours"]


def test_a_verdict_names_the_models_it_is_about(folder):
    folder.width(S, 31)
    folder.sweep(S, "math", sweep(S, {15: 0.1, 31: 0.2}))
    paper_name = "h100_sxm-qwen3_8b"
    folder.width(paper_name, 31)
    folder.sweep(paper_name, "math", sweep(paper_name, {15: 0.1, 31: 0.2}, target="qwen3_8b"))
    # The paper's setting name on a CPU is not the paper's device.
    assert set(scorecard.scopes(data.load(folder.root))) == {scorecard.EMBEDDED, "stand-in: qwen3_8b on cpu"}

    rows = sweep(paper_name, {15: 0.1, 31: 0.2}, target="qwen3_8b")
    folder.sweep(paper_name, "math", [row | {"device": "NVIDIA H100 80GB HBM3"} for row in rows])
    assert set(scorecard.scopes(data.load(folder.root))) == {scorecard.EMBEDDED, scorecard.PAPERS_OWN}


def test_a_width_that_could_not_be_predicted_says_why(folder):
    folder.sweep(S, "math", sweep(S, {15: 0.1, 31: 0.2}))
    folder.no_width(S, "no width can be predicted: the latency probe failed (busy)")
    found = verdicts(folder)
    assert "the latency probe failed (busy)" in found["faster-in-every-setting"]["why"]
    assert found["wider-where-flatter"]["ours_verdict"] == "not measured"
    assert found["shape-alone-helps"]["verdict"] == "reproduced"


def test_outputs(full_study, tmp_path):
    study = data.load(full_study)
    scorecard.render(study, tmp_path / "scorecard")
    content = json.loads((tmp_path / "scorecard.json").read_text())
    assert sum(content["counts"].values()) == len(content["claims"]) == len(claims.entries())
    assert {claim["scope"] for claim in content["claims"]} == {scorecard.EMBEDDED}
    page = (tmp_path / "scorecard.html").read_text()
    assert page.count("<tr id=") == len(content["claims"])
    assert not re.search(r"https?://|src=|url\(|@import", page)
    assert "embedded: SmolLM2-135M" in page
    table = (tmp_path / "scorecard.md").read_text()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in table.splitlines() if line.startswith("|"))


def test_single_prompts_have_no_interval_and_measure_nothing(folder):
    folder.width(S, 31)
    rows = [row for row in sweep(S, {15: 0.1, 31: 0.2}) if row["prompt_index"] == 0]
    folder.sweep(S, "math", rows)
    found = verdicts(folder)["faster-in-every-setting"]
    assert found["verdict"].startswith("not measured")
    assert "nan" not in found["ours"], found["ours"]
    assert np.isnan(data.load(folder.root).average(S, "cast", 31)["gain_low"])


def test_few_prompts_measure_nothing_that_needs_an_interval(folder):
    folder.width(S, 31)
    rows = sweep(S, {15: 0.1, 31: 0.25, 63: 0.30, 95: 0.02, 127: 0.05})
    folder.sweep(S, "math", [row for row in rows if row["prompt_index"] < 4])
    found = verdicts(folder)
    needing = ("too-wide-costs", "throughput-is-unimodal", "matches-oracle", "gap-to-oracle")
    for name in ("faster-in-every-setting", "shape-alone-helps", *needing):
        assert "no interval" in found[name]["why"], name
        assert found[name]["ours_verdict"] == "not measured"


def test_a_traced_repeat_is_no_second_departure(folder):
    rows = sweep(S, {31: 0.25})
    again = {**rows[-1], "repeat": 1, "traced": True, "draft_ms_per_round": 1.0}
    folder.sweep(S, "math", [*rows, again])
    study = data.load(folder.root)
    (dtype,) = study.decode["dtype"].unique()
    found = exactness._departures(study, [S], dtype, tie=1.0, share=1.0, exact=False)
    assert f"of {len(rows) - 6} outputs" in found.ours


def test_outputs_that_were_not_compared_are_none_that_agree(folder):
    rows = sweep(S, {31: 0.25})
    for row in rows[-2:]:
        row["departure"] = None
    folder.sweep(S, "math", rows)
    study = data.load(folder.root)
    (dtype,) = study.decode["dtype"].unique()
    found = exactness._departures(study, [S], dtype, tie=1.0, share=1.0, exact=False)
    assert f"0 of {len(rows) - 6 - 2} outputs depart" in found.ours


def test_domains_without_a_chain_have_no_peak(folder):
    folder.width(S, 31)
    rows = sweep(S, {15: 0.1, 31: 0.25})
    folder.sweep(S, "math", [row for row in rows if row["method"] != "dflash"])
    with pytest.raises(claims.NotMeasured):
        width.peaks_near_largest(data.load(folder.root), [S])


def test_a_probe_that_failed_altogether_is_an_empty_curve(folder):
    rows = latency_rows(S, {16: 10.0, 64: 20.0})
    folder.probe(S, [row | {"status": "failed", "reason": "out of memory", "latency_ms": None} for row in rows])
    curves = verification_latency(data.load(folder.root))
    assert curves.empty
    assert {"setting", "packed_tokens", "median", "count"} <= set(curves.columns)
