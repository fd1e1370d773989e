"""Every artefact renders from a full, a partial, a failed and an empty study, without torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from synthetic_records import (
    DEPLOYMENTS,
    PACKED,
    StudyFolder,
    decode_row,
    failed,
    latency_rows,
    plausible_sweep,
)

from cast.errors import CastError
from figures import artefacts, data, summary
from figures.__main__ import main

FIGURES = ["fig2", "fig3", "fig5"]
TABLES = ["table2", "table5", "table7", "table8", "table9", "table12"]
EVERYTHING = [*FIGURES, *TABLES, "scorecard"]
# Of other experiments than the sweep and the probe; what they draw is tested by themselves.
OTHER_TABLES = ["table3", "table10", "table14", "table15"]
OTHER_TABLES += ["table_serving", "table_padding", "table_continuous_batching", "table_sampling_under_load"]
OTHER_TABLES += ["table6", "table11", "table_equivalence", "table_shared_device", "table_total_variation"]
OTHER_TABLES += ["table1", "table4", "table13", "table16", "table17", "table_replay", "table_dart"]
OTHER_FIGURES = ["fig1", "fig4", "fig_total_variation", "fig6", "fig7"]
OTHERS = [*OTHER_FIGURES, "table_assumptions", "table_runs", *OTHER_TABLES]
SUFFIXES = {name: ["pdf", "svg", "png", "csv"] for name in [*FIGURES, *OTHER_FIGURES]}
SUFFIXES |= {name: ["csv", "md", "tex", "html"] for name in [*TABLES, "table_assumptions", "table_runs", *OTHER_TABLES]}
SUFFIXES["scorecard"] = ["md", "json", "html"]
ROOT = Path(__file__).parents[2]


def run(name: str, records: Path, out: Path, *options: str) -> int:
    return main([name, "--records", str(records), "--out", str(out / name), *options])


def text_of(out: Path, name: str) -> str:
    return "".join((out / f"{name}.{suffix}").read_text() for suffix in SUFFIXES[name] if suffix not in ("pdf", "png"))


@pytest.mark.parametrize("name", EVERYTHING)
def test_full_study(name, full_study, tmp_path, capsys):
    assert run(name, full_study, tmp_path) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{name}.{suffix}") for suffix in SUFFIXES[name]]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.{suffix}" for suffix in SUFFIXES[name])
    if name != "scorecard":
        # Widths of the paper's grid that this sweep leaves out are the only gaps.
        text = (tmp_path / f"{name}.csv").read_text().replace("not measured: not part of this width_sweep", "")
        assert "not measured" not in text


@pytest.mark.parametrize("name", [*EVERYTHING, *OTHERS])
def test_empty_study(name, tmp_path):
    (tmp_path / "study").mkdir()
    assert run(name, tmp_path / "study", tmp_path / "out") == 0
    if name in [*TABLES, *OTHER_TABLES]:
        # The paper's rows stand alone, and nothing of them is called ours.
        frame = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        assert set(frame["source"]) == {"paper"}
    if name == "scorecard":
        card = json.loads((tmp_path / "out" / "scorecard.json").read_text())
        assert {claim["verdict"] for claim in card["claims"]} == {
            "not measured",
            "the paper disagrees with itself",
        }


@pytest.mark.parametrize("name", [*EVERYTHING, "fig4", "fig_total_variation", *OTHER_TABLES])
def test_settings_that_were_meant_but_never_ran(name, tmp_path):
    (tmp_path / "study").mkdir()
    options = ["--settings", "smollm2_bf16", "smollm2_fp32", "--domains", "math", "code"]
    assert run(name, tmp_path / "study", tmp_path / "out", *options) == 0
    text = text_of(tmp_path / "out", name)
    assert "not measured" in text
    assert "smollm2_fp32" in text


def failed_latency(row: dict, reason: str = "out of memory") -> dict:
    return row | {"latency_ms": None, "status": "failed", "reason": reason}


@pytest.fixture(scope="module")
def partial_study(tmp_path_factory):
    """A setting with a failed domain, a width and a packed count out of memory; one whose probe failed."""
    folder = StudyFolder(tmp_path_factory.mktemp("partial") / "study")
    folder.width("smollm2_fp32", 23)
    probed = latency_rows("smollm2_fp32", dict.fromkeys(PACKED, 70.0))
    folder.probe("smollm2_fp32", [failed_latency(row) if row["packed_tokens"] == 96 else row for row in probed])
    swept = plausible_sweep("smollm2_fp32", "math", prompts=4)
    reason = "out of memory at 128 packed tokens"
    folder.sweep("smollm2_fp32", "math", [failed(row, reason) if row["budget"] == 127 else row for row in swept])
    never = decode_row("smollm2_fp32", "code", "autoregressive", 0, 0, 50.0, 1.0)
    folder.sweep("smollm2_fp32", "code", [failed(never, "the drafter checkpoint is gated")])
    folder.probe("third", [failed_latency(row, "the GPU was busy") for row in latency_rows("third", {16: 50.0})])
    summary.write(folder.root, folder.root / "summary" / "cells.parquet")
    return folder.root


@pytest.mark.parametrize("name", EVERYTHING)
def test_partial_study_says_what_is_missing_and_why(name, partial_study, tmp_path):
    assert run(name, partial_study, tmp_path) == 0
    text = text_of(tmp_path, name)
    expected = {
        "fig2": ["the GPU was busy"],
        "fig3": ["the drafter checkpoint is gated", "no width_sweep record"],
        "fig5": ["the drafter checkpoint is gated", "no width_sweep record"],
        "table2": ["no width prediction", "no width_sweep record"],
        "table5": ["out of memory", "the GPU was busy"],
        "table7": ["the drafter checkpoint is gated", "no width prediction"],
        "table8": ["the drafter checkpoint is gated", "out of memory at 128 packed tokens"],
        "table9": ["the drafter checkpoint is gated", "no width_sweep record"],
        "table12": ["the drafter checkpoint is gated", "out of memory at 128 packed tokens"],
        "scorecard": ["not measured"],
    }[name]
    for reason in expected:
        assert reason in text, reason


@pytest.mark.parametrize("name", ["fig3", "table8", "scorecard"])
def test_bytes_depend_on_records_alone(name, full_study, tmp_path):
    for place in ("one", "two"):
        run(name, full_study, tmp_path / place)
    for suffix in SUFFIXES[name]:
        one, two = (tmp_path / place / f"{name}.{suffix}" for place in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), suffix


def test_help_lists_every_artefact(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    told = capsys.readouterr().out
    assert {"--records", *artefacts(), "summary"} <= set(re.split(r"[\s,]+", told))


def test_artefacts_are_ordered_by_number():
    names = artefacts()
    assert names.index("table2") < names.index("table10") < names.index("scorecard")
    assert set(artefacts("fig")) | set(artefacts("table")) | {"scorecard"} == set(names)


def loaded_by(names, *more: str) -> set[str]:
    """The packages in memory once these modules of figures are."""
    modules = ", ".join([*(f"figures.{name}" for name in names), *more])
    code = f"import sys, {modules}; print(*sys.modules)"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": "", "MPLCONFIGDIR": "/nonexistent"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, check=True)
    return set(ran.stdout.decode().split())


def test_rendering_needs_no_torch():
    assert "torch" not in loaded_by([*EVERYTHING, *OTHERS, "summary", "paper"], "cast.experiments.statistics")


def test_what_draws_nothing_starts_without_matplotlib_and_scipy():
    assert loaded_by([*artefacts("table"), "scorecard", "summary", "__main__"]).isdisjoint({"matplotlib", "scipy"})


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    assert run("fig3", tmp_path / "nowhere", tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'nowhere'} is not a folder")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "required: NAME, --records, --out"),
        ("tabel2 --records study --out x", "nothing is called 'tabel2', did you mean table2?"),
        ("table2 --records study", "required: --out"),
        ("table2 --records study --out x --cell y", "unrecognized arguments: --cell y"),
        ("table2 --records study --out .", "names no file"),
        ("table2 --records study --out x/table2.csv", "give --out x/table2"),
        ("table2 --records study --out file/table2", "cannot be written (file: File exists)"),
        ("table2 --records study --out /proc/none/table2", "cannot be written (/proc/none: No such file or directory)"),
        ("table2 --records study --out taken/table2", "error: taken/table2.csv: Is a directory; see that"),
        ("table2 --records study --out x\0y", "names no file"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line_with_cause_and_fix(arguments, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("study", "taken/table2.csv"):
        Path(folder).mkdir(parents=True)
    Path("file").touch()
    try:
        status = main(arguments.split(" ") if arguments else [])
    except SystemExit as leaving:
        status = leaving.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert ";" in line  # the fix
    assert "Errno" not in line
    assert not list(Path().rglob(".unfinished-*"))


def test_a_missing_summary_is_one_line(full_study, tmp_path, capsys):
    assert run("fig3", full_study, tmp_path, "--cells", str(tmp_path / "cells.parquet")) == 2
    assert "error: no summary at" in capsys.readouterr().err


def test_a_broken_width_file_is_one_line(folder, tmp_path, capsys):
    folder.width("smollm2_bf16", 31)
    (folder.root / "width" / "smollm2_bf16.json").write_text("{")
    assert run("table2", folder.root, tmp_path) == 2
    assert "is not valid JSON" in capsys.readouterr().err


def test_the_summary_is_read_while_it_is_of_these_records(full_study, monkeypatch):
    def never(*_):
        raise AssertionError("summaries were computed again")

    monkeypatch.setattr(data, "summaries", never)
    study = data.load(full_study)
    assert set(study.settings) == set(DEPLOYMENTS)
    width = full_study / "width" / "smollm2_bf16.json"
    width.touch()
    data.load(full_study)
    before = width.stat()
    width.write_text(width.read_text() + "\n")
    os.utime(width, ns=(before.st_atime_ns, before.st_mtime_ns))  # copied with its time from elsewhere
    cells = full_study / "summary" / "cells.parquet"
    with pytest.raises(AssertionError):
        data.load(full_study)
    with pytest.raises(CastError, match=r"no summary of the width sweep in .* as it is now; write it anew"):
        data.load(full_study, cells=cells)


def test_a_failed_rendering_leaves_the_old_files(full_study, tmp_path, monkeypatch):
    from figures import style

    run("fig5", full_study, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(style.Figure, "savefig", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    assert run("fig5", full_study, tmp_path) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_study_has_a_summary_too(tmp_path):
    (tmp_path / "study").mkdir()
    paths = summary.write(tmp_path / "study", tmp_path / "study" / "summary" / "cells.parquet")
    assert [path.name for path in paths] == ["cells.parquet", "averages.parquet", "gaps.parquet"]
    assert data.load(tmp_path / "study", cells=paths[0]).cells.empty


@pytest.mark.parametrize("name", EVERYTHING)
def test_one_prompt_has_numbers_but_no_interval(name, one_prompt_study, tmp_path):
    assert run(name, one_prompt_study, tmp_path) == 0
    shown = text_of(tmp_path, name) if name not in FIGURES else ""
    assert not re.search(r"\bnan\b", shown)


@pytest.fixture(scope="module")
def one_prompt_study(tmp_path_factory):
    folder = StudyFolder(tmp_path_factory.mktemp("one") / "study")
    folder.width("tiny_qwen3", 15)
    rows = [row | {"setting": "tiny_qwen3"} for row in plausible_sweep("smollm2_bf16", "math", 1)]
    folder.sweep("tiny_qwen3", "math", [row | {"repeat_share": 0.9, "target": "tiny_qwen3"} for row in rows])
    return folder.root


@pytest.mark.parametrize(
    ("damage", "told"), [("junk", "is incomplete or damaged"), (None, "is no summary of the width sweep")]
)
def test_a_damaged_or_incomplete_summary_is_named(full_study, tmp_path, damage, told):
    cells = tmp_path / "cells.parquet"
    if damage:
        cells.write_text(damage)
    else:
        data.load(full_study).cells.to_parquet(cells)
    with pytest.raises(CastError, match=told):
        data.load(full_study, cells=cells)
