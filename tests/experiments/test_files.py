import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from cast.errors import CastError
from cast.experiments.files import atomic_write, read_json, sha256_file, write_json


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_the_file_appears_complete_with_its_folders(tmp_path):
    target = tmp_path / "a" / "b.npz"
    with atomic_write(target) as temporary:
        assert temporary.parent == target.parent and temporary.suffix == ".npz"
        np.savez(temporary, masses=np.ones(3))
        assert not target.exists()
    assert np.load(target)["masses"].sum() == 3
    assert files_in(tmp_path) == ["b.npz"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_keeps_the_old_file_and_leaves_no_other(tmp_path, failure):
    target = tmp_path / "x.txt"
    target.write_text("old")
    with pytest.raises(failure), atomic_write(target) as temporary:
        temporary.write_text("half")
        raise failure
    assert target.read_text() == "old"
    assert files_in(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_clear_line(tmp_path, code):
    message = r"disk full while writing .*x\.txt; free space"
    with pytest.raises(CastError, match=message), atomic_write(tmp_path / "x.txt") as temporary:
        temporary.write_text("half")
        raise OSError(code, os.strerror(code))
    assert files_in(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_is_really_full(tmp_path):
    with pytest.raises(CastError, match="disk full"), atomic_write(tmp_path / "x.txt") as temporary:
        temporary.symlink_to("/dev/full")
        temporary.write_text("more than nothing")
    assert files_in(tmp_path) == []


def test_the_blocks_own_trouble_is_not_renamed(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "x.txt"):
        (tmp_path / "missing input").read_text()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CastError, match="cannot be written"), atomic_write(tmp_path / "file" / "x.txt"):
        raise AssertionError("the block must not run")


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    with atomic_write(tmp_path / "x.txt") as first, atomic_write(tmp_path / "x.txt") as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert (tmp_path / "x.txt").read_text() == "first"  # the outer block ended last
    assert files_in(tmp_path) == ["x.txt"]


def test_json_round_trip(tmp_path):
    path = tmp_path / "deep" / "x.json"
    content = {
        "b": np.float32(0.5),
        "a": np.arange(3),
        "n": np.int64(7),
        "p": Path("x/y"),
        "u": "µ",
        "none": None,
    }
    write_json(path, content)
    assert read_json(path) == {"b": 0.5, "a": [0, 1, 2], "n": 7, "p": "x/y", "u": "µ", "none": None}
    assert path.read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize("content", [{"x": float("nan")}, {"x": np.float64("inf")}, {"x": {1, 2}}, {(1, 2): 3}])
def test_what_has_no_json_form(tmp_path, content):
    with pytest.raises(CastError, match="no JSON form"):
        write_json(tmp_path / "x.json", content)
    assert files_in(tmp_path) == []


def test_unreadable_json(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(CastError, match="cannot be read"):
        read_json(path)
    path.write_text('{\n "a": 1,\n oops\n}')
    with pytest.raises(CastError, match=r"line 3 is not JSON .* mend it, or run"):
        read_json(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CastError, match="not a text file; give another, or run"):
        read_json(path)


def test_sha256(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 100_000)
    assert sha256_file(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()
    with pytest.raises(CastError, match="cannot be read"):
        sha256_file(tmp_path / "missing")


def test_a_folder_is_no_file(tmp_path):
    for folder in (".", tmp_path):
        with pytest.raises(CastError, match="is a folder; name a file"), atomic_write(folder):
            pytest.fail("there is nothing to write to")
