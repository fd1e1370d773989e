"""Several files of records are checked together; what is wrong with one of them is told as if it were alone."""

import pandas as pd
import pytest
from test_records import decode_row, latency_row

from cast.errors import CastError
from cast.experiments.records import DECODE, LATENCY, read_records, storage, write_records


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        rows = [decode_row(domain=path.stem), decode_row(domain=path.stem, budget=31)]
        write_records(pd.DataFrame(rows), path, DECODE)
    return paths


def changed(path, **values):
    """The file with these values in its last row, unchecked."""
    frame = pd.read_parquet(path)
    for column, value in values.items():
        frame.loc[1, column] = value
    frame.to_parquet(path)


def test_one_check_serves_all_files_and_types_are_those_of_one(files, monkeypatch):
    checks = []
    checked = storage.checked

    def counted(*arguments, **keys):
        checks.append(arguments)
        return checked(*arguments, **keys)

    monkeypatch.setattr(storage, "checked", counted)
    both = read_records(files, DECODE)
    assert len(checks) == 1
    alone = pd.concat([read_records(path, DECODE) for path in files], ignore_index=True)
    pd.testing.assert_frame_equal(both, alone)


def test_a_violation_names_its_own_file_and_row(files):
    changed(files[1], ms_per_token=-20.0)
    with pytest.raises(CastError, match=r"b\.parquet: column ms_per_token, row 1: -20\.0"):
        read_records(files, DECODE)


def test_an_empty_file_and_a_missing_column_are_not_hidden_by_the_others(files):
    frame = pd.read_parquet(files[1])
    frame.drop(columns="departure").to_parquet(files[1])
    with pytest.raises(CastError, match=r"b\.parquet: column departure is missing"):
        read_records(files, DECODE)
    frame.iloc[:0].to_parquet(files[1])
    with pytest.raises(CastError, match=r"b\.parquet: no rows"):
        read_records(files, DECODE)


def test_rows_may_repeat_in_another_file_as_ever(files):
    changed(files[1], domain="a")
    assert read_records(files, DECODE)["domain"].tolist() == ["a", "a", "b", "a"]


def test_other_types_on_disk_become_those_of_the_schema(tmp_path):
    for place, kind in enumerate((int, float)):
        frame = pd.DataFrame([latency_row(iteration=place)]).astype({"latency_ms": kind})
        frame.to_parquet(tmp_path / f"{place}.parquet")
    both = read_records(sorted(tmp_path.glob("*.parquet")), LATENCY)
    assert str(both["latency_ms"].dtype) == "float64" and len(both) == 2
