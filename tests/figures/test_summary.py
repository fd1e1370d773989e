"""Summaries: what is resampled once for several artefacts, and which records each artefact reads."""

import os
from pathlib import Path

import pandas as pd
import pytest
from synthetic_records import plausible_sweep

from cast.errors import CastError
from cast.experiments import statistics
from cast.experiments.records import DECODE
from figures import artefacts, data, inputs, panels, summary, table4, table7
from figures.__main__ import main

FP32 = "smollm2_fp32"
BACKBONE = {data.SWEEP, data.PROBE, "width"}


def compared(folder, experiment="drafter_comparison", **changes):
    """Records of an experiment of sweeps, and where its summary belongs."""
    rows = [row | {"experiment": experiment} | changes for row in plausible_sweep(FP32, "math")]
    folder._write(experiment, FP32, "math", rows, DECODE, 1.0)
    return folder.root / "summary" / f"{experiment}.parquet"


@pytest.fixture
def never(monkeypatch):
    """Makes every statistic that a summary holds fail."""

    def refuse(*_):
        raise AssertionError("resampled again")

    def make():
        for name, _ in inputs.SUMMARISED.values():
            monkeypatch.setattr(statistics, name, refuse)

    return make


@pytest.mark.parametrize("experiment", inputs.SUMMARISED)
def test_cells_that_are_read_are_those_that_would_be_computed(experiment, folder, never):
    path = compared(folder, experiment)
    summary.write(folder.root, path, experiment)
    statistic, split = inputs.SUMMARISED[experiment]
    computed = panels.cells_of(data.read_rows(folder.root, experiment, DECODE), statistic, split)
    assert len(computed) and (split is None or split in computed)
    never()
    read = panels.panel(data.load(folder.root), experiment, statistic, split).cells
    pd.testing.assert_frame_equal(read, computed, check_dtype=False, check_exact=True)


def test_cells_are_computed_where_the_summary_is_older_or_of_another_statistic(folder, never):
    path = compared(folder)
    summary.write(folder.root, path, "drafter_comparison")
    never()
    study = data.load(folder.root)
    assert study.summarised("drafter_comparison", "cell_summary", None) is not None
    assert study.summarised("drafter_comparison", "seed_summary", None) is None
    assert study.summarised("drafter_comparison", "cell_summary", "block_size") is None
    (record,) = data.record_paths(folder.root, "drafter_comparison")
    pd.read_parquet(record).iloc[:-1].to_parquet(record, index=False)
    os.utime(record, (path.stat().st_mtime - 1,) * 2)
    with pytest.raises(AssertionError, match="resampled again"):
        table4.build(data.load(folder.root))


def test_a_summary_of_records_that_are_gone_shows_nothing(folder):
    summary.write(folder.root, compared(folder), "drafter_comparison")
    (record,) = data.record_paths(folder.root, "drafter_comparison")
    record.unlink()
    assert panels.panel(data.load(folder.root), "drafter_comparison", "cell_summary").cells.empty


@pytest.mark.parametrize("gone", ["drafter_comparison", data.SWEEP])
def test_a_deleted_record_is_in_no_page(gone, folder):
    """One of two domains, its summaries left behind: the other is shown, this one said not to be measured."""
    for domain in ("math", "code"):
        rows = plausible_sweep(FP32, domain)
        folder.sweep(FP32, domain, rows)
        rows = [row | {"experiment": "drafter_comparison"} for row in rows]
        folder._write("drafter_comparison", FP32, domain, rows, DECODE, 1.0)
    summary.write(folder.root, folder.root / "summary" / "cells.parquet")
    summary.write(folder.root, folder.root / "summary" / "drafter_comparison.parquet", "drafter_comparison")
    (folder.root / gone / FP32 / "code.parquet").unlink()
    study = data.load(folder.root, settings=[FP32], domains=["math", "code"])
    table = table4.build(study) if gone == "drafter_comparison" else table7.build(study)
    ours = table.data[table.data["source"] == "ours"]
    assert not ours[ours["domain"] == "math"].empty
    found = panels.panel(study, gone, "cell_summary").cells
    assert set(found["domain"]) == {"math"}


@pytest.mark.parametrize("name", ["cells", "drafter_comparison"])
def test_a_summary_of_something_else_under_this_name_is_not_read(name, folder):
    compared(folder)
    experiment = {"cells": "drafter_comparison", "drafter_comparison": data.SWEEP}[name]
    folder.sweep(FP32, "code", plausible_sweep(FP32, "code"))
    summary.write(folder.root, folder.root / "summary" / f"{name}.parquet", experiment)
    study = data.load(folder.root)
    assert set(study.cells["domain"]) == {"code"}
    assert set(panels.panel(study, "drafter_comparison", "cell_summary").cells["domain"]) == {"math"}


def test_the_cells_of_the_sweep_are_those_of_its_summary(full_study, never):
    study = data.load(full_study)
    never()
    assert panels.panel(study, data.SWEEP, "cell_summary").cells is study.cells
    with pytest.raises(AssertionError, match="resampled again"):
        panels.panel(study, data.SWEEP, "cell_summary", split="block_size")


def test_records_are_read_once(full_study, monkeypatch):
    study = data.load(full_study)
    monkeypatch.setattr(data, "read_rows", None)
    assert study.records(data.SWEEP, DECODE) is study.decode


def test_a_summary_is_written_where_cells_are_looked_for(folder, tmp_path, capsys):
    compared(folder)
    elsewhere = tmp_path / "elsewhere" / "drafter_comparison.parquet"
    options = ["--records", str(folder.root), "--out"]
    assert main(["summary", "--experiment", "drafter_comparison", *options, str(elsewhere)]) == 0
    assert capsys.readouterr().out.split() == [str(elsewhere)]
    assert set(pd.read_parquet(elsewhere)["method"]) == {"autoregressive", "dflash", "cast"}
    summary.write(folder.root, elsewhere.with_name("cells.parquet"))
    study = data.load(folder.root, cells=elsewhere.with_name("cells.parquet"))
    assert study.summarised("drafter_comparison", "cell_summary", None) is not None


def test_what_cannot_be_summarised_is_one_line(folder, tmp_path, capsys):
    options = ["--records", str(folder.root), "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit):
        main(["summary", "--experiment", "latency_probe", *options])
    assert "error: argument --experiment: invalid choice: 'latency_probe'" in capsys.readouterr().err
    compared(folder)
    assert main(["table4", "--experiment", "drafter_comparison", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: --experiment says what a summary is of, and table4 is none; leave it out"


def test_a_damaged_summary_of_cells_is_named(folder):
    path = compared(folder)
    path.parent.mkdir()
    path.write_text("junk")
    with pytest.raises(CastError, match="incomplete or damaged"):
        table4.build(data.load(folder.root))


def test_an_experiment_without_records_has_an_empty_summary(folder):
    folder.root.mkdir()
    path = folder.root / "summary" / "block_length.parquet"
    assert summary.write(folder.root, path, "block_length") == [path]
    assert pd.read_parquet(path).empty
    with pytest.raises(CastError, match="is not a folder"):
        summary.write(folder.root / "nowhere", path, "block_length")


@pytest.mark.parametrize("name", inputs.READS)
def test_an_artefact_reads_the_records_it_is_known_to_read(name, folder, tmp_path, monkeypatch):
    folder.root.mkdir()
    study_of, looked_for = data.load, set()
    glob = Path.glob

    def told(path, pattern, *rest):
        if path == folder.root:
            looked_for.add(pattern.split("/")[0])
        return glob(path, pattern, *rest)

    def loaded(*arguments):
        study = study_of(*arguments)
        monkeypatch.setattr(Path, "glob", told)
        return study

    monkeypatch.setattr(data, "load", loaded)
    meant = ["--settings", FP32, "--domains", "math"]
    assert main([name, "--records", str(folder.root), "--out", str(tmp_path / name), *meant]) == 0
    assert looked_for - BACKBONE == set(inputs.READS[name])


def test_what_is_known_of_artefacts_and_experiments_exists():
    experiments = {path.stem for path in Path("conf/experiment").glob("*.yaml")}
    assert set(inputs.READS) <= set(artefacts())
    assert {name for read in inputs.READS.values() for name in read} | set(inputs.SUMMARISED) <= experiments
