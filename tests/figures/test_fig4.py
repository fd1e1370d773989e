"""Figure 4 without a replay: panel (c) rests on the score log, or on what the width prediction keeps of it."""

import pandas as pd
import pytest
from synthetic_records import identity, width_content

from cast.experiments.records import REPLAY, SCORES
from figures import data, fig4

BF16, FP32 = "smollm2_bf16", "smollm2_fp32"


def scores(folder, setting, masses, **changes):
    rows = [
        identity("drafter_scores", setting, "math") | {"rank": rank, "mass": mass, "rounds": 600} | changes
        for rank, mass in enumerate(masses, start=1)
    ]
    folder._write("drafter_scores", setting, "math", rows, SCORES, 60.0)


def width(folder, setting, **changes):
    folder._json(setting, width_content(setting, 31) | changes)


def curve(study, setting):
    frame = fig4.plotted(study)
    mine = frame[(frame["source"] == "ours") & (frame["panel"] == "c") & (frame["setting"] == setting)]
    return mine[mine["at"] != fig4.THRESHOLD]


def test_the_score_log_that_the_width_names(folder, tmp_path):
    scores(folder, FP32, [0.5, 0.25, 0.125])
    width(folder, BF16, scores_source=f"{FP32}/math", masses=[0.9])
    study = data.load(folder.root, settings=[BF16, FP32], domains=["math", "code"])
    for setting in (BF16, FP32):  # the one named elsewhere, and one of its own without a prediction
        found = curve(study, setting)
        assert found["value"].tolist() == [0.5, 0.25, 0.125]
        assert found["x"].tolist() == [1, 2, 3]
        assert set(found["at"]) == {f"scores of {FP32}"}
        assert set(found["domain"]) == {"math"}
    frame = fig4.plotted(study)
    assert frame.loc[(frame["source"] == "ours") & (frame["at"] == fig4.THRESHOLD), "setting"].tolist() == [BF16]
    svg = fig4.render(study, tmp_path / "fig4")[1].read_text()
    assert svg.count("<!-- no replay record -->") == 4  # panels (a) and (b) of both settings, and not (c)
    assert f"<!-- math, scores of {FP32} -->" in svg


def test_the_masses_of_the_width_where_the_log_is_elsewhere(folder):
    width(folder, BF16, masses=[0.6, 0.3])
    found = curve(data.load(folder.root), BF16)
    assert found["value"].tolist() == [0.6, 0.3]
    assert found["n"].tolist() == [600, 600]


@pytest.mark.parametrize("reason", ["the drafter checkpoint is gated", None])
def test_no_curve_says_why_in_the_panel(folder, tmp_path, reason):
    width(folder, BF16)
    if reason:
        scores(folder, BF16, [None], rounds=None, status="failed", reason=reason)
    study = data.load(folder.root)
    assert curve(study, BF16)["note"].tolist() == [f"not measured: {reason or 'no drafter_scores record'}"]
    svg = fig4.render(study, tmp_path / "fig4")[1].read_text()
    assert svg.count("<!-- not measured: -->") == 3
    assert f"<!-- {(reason or 'no drafter_scores record')} -->" in svg


def test_replays_are_drawn_without_a_sweep_and_without_intervals(folder, tmp_path):
    common = identity("replay", FP32, "code") | {"roots": "chain", "method": "dflash", "budget": 15, "prompts": 1}
    rows = [
        common | {"analysis": "rejection_ranks", "quantity": "share", "bin": "2-4", "value": 0.5, "n": 40},
        common | {"analysis": "mass_curve", "quantity": "mass", "bin": "", "budget": 1, "value": 0.6, "n": 40},
    ]
    frame = pd.DataFrame(rows).reindex(columns=list(REPLAY.columns))
    folder._write("replay", FP32, "code", frame.to_dict("records"), REPLAY, 1.0)
    study = data.load(folder.root)
    ours = fig4.plotted(study).query("source == 'ours' and domain == 'code'")
    assert ours.set_index("panel")["value"].to_dict() == {"a": 0.5, "c": 0.6}
    assert ours["low"].isna().all()
    assert fig4.render(study, tmp_path / "fig4")[1].exists()
