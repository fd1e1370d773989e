"""Checkpoints: what survives a kill, what is discarded, and who is refused."""

import errno
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cast.errors import CastError
from cast.experiments import partial as partial_module
from cast.experiments.partial import STALE_AFTER_S, Partial, claimant


@pytest.fixture
def output(tmp_path):
    return tmp_path / "folder" / "record.parquet"


def noted(output, digest="d"):
    notes = []
    return Partial(output, digest, notes.append), notes


def test_what_was_finished_is_there_again_in_order_and_with_its_session(output):
    with Partial(output, "d") as first:
        first.append("a", [{"x": 1, "share": 0.5, "none": None}], 2.0)
        first.append("b", [{"x": 2}], 3.0)
    second, notes = noted(output)
    with second:
        assert [unit.key for unit in second.units] == ["a", "b"]
        assert second.units[0].content == [{"x": 1, "share": 0.5, "none": None}]
        assert {unit.session for unit in second.units} == {first.session}
        assert [unit.elapsed_s for unit in second.units] == [2.0, 3.0]
        second.append("c", [], 1.0)
        assert second.done == {"a", "b", "c"}
        assert second.sessions == [first.session, second.session]
    assert "2 done before" in notes[0]


def test_arrays_keep_shape_type_and_values(output):
    masses = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    with Partial(output, "d") as first:
        first.append("a", masses, 0.0)
    with Partial(output, "d") as second:
        np.testing.assert_array_equal(second.units[0].content, masses)
        assert second.units[0].content.dtype == np.float32


def test_another_configuration_discards_with_a_note(output):
    with Partial(output, "old") as first:
        first.append("a", [], 0.0)
    second, notes = noted(output, "new")
    with second:
        assert second.units == []
    assert "another configuration" in notes[0]
    with Partial(output, "new") as third:
        assert third.units == []


def finished(output, limit_s):
    with Partial(output, "d", limit_s=limit_s) as job:
        job.append("a", [], 1.0)
        job.finish()


def test_under_another_time_limit_a_finished_job_goes_on_and_under_the_same_it_measures_anew(output):
    finished(output, 10.0)
    with Partial(output, "d", limit_s=20.0) as longer:
        assert longer.done == {"a"}
        longer.append("b", [], 1.0)  # killed here: nothing is written of a record
    with Partial(output, "d", limit_s=20.0) as retried:
        assert retried.done == {"a", "b"}
        retried.finish()
    with Partial(output, "d", limit_s=20.0) as again:
        assert again.done == set()
    finished(output, 10.0)
    with Partial(output, "d") as without_limit:
        assert without_limit.done == {"a"}


def test_an_interrupt_while_the_first_unit_is_synced_does_not_lose_it(output, monkeypatch):
    """Its line is whole by then; the checkpoint was once removed, as if nothing were in it."""

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fsync", interrupted)
        with Partial(output, "d") as partial:
            partial.append("a", [{"x": 1}], 1.0)
    with Partial(output, "d") as partial:
        assert partial.done == {"a"}


@pytest.mark.parametrize("torn", [b'{"key": "b", "content": [', b"\x00\x00\x00", b'{"key": 1}\n', b"{}"])
def test_a_torn_last_line_is_cut_off_and_writing_goes_on(output, torn):
    with Partial(output, "d") as first:
        first.append("a", [1], 0.0)
        path = first.path
    with open(path, "ab") as file:
        file.write(torn)
    with Partial(output, "d") as second:
        assert second.done == {"a"}
        second.append("c", [2], 0.0)
    with Partial(output, "d") as third:
        assert [unit.key for unit in third.units] == ["a", "c"]


def test_a_file_that_is_no_checkpoint_starts_anew(output):
    output.parent.mkdir()
    path = output.with_name("record.parquet.partial")
    path.write_bytes(b"\xff" * 2000)
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)
    with Partial(output, "d") as second:
        assert second.done == {"a"}


def test_a_second_claimant_is_refused_by_name_and_takes_nothing(output):
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)
        with pytest.raises(CastError, match=f"process {os.getpid()} on "):
            Partial(output, "other digest")
        assert claimant(first.path).startswith(f"process {os.getpid()}")
        first.append("b", [], 0.0)
    assert claimant(first.path) == ""
    with Partial(output, "d") as second:
        assert second.done == {"a", "b"}


def test_a_killed_process_leaves_its_checkpoint_free(output):
    code = (
        "import sys, time; from cast.experiments.partial import Partial\n"
        "p = Partial(sys.argv[1], 'd'); p.append('a', [1], 0.0); print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(output)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(CastError, match=f"process {process.pid} "):
            Partial(output, "d")
        process.kill()
    with Partial(output, "d") as second:
        assert second.done == {"a"}


@pytest.fixture
def killed_elsewhere(output, monkeypatch):
    """A checkpoint with one unit, as a process that was killed on another host leaves it."""
    monkeypatch.setattr(partial_module.socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)
        left = first.path.read_bytes()
    first.path.write_bytes(left)
    monkeypatch.setattr(partial_module.socket, "gethostname", lambda: "here")
    monkeypatch.delenv("SLURM_JOB_ID")


def test_a_heartbeat_of_another_host_counts_while_it_is_fresh(output, killed_elsewhere, monkeypatch):
    with pytest.raises(CastError, match="on elsewhere, Slurm job 77"):
        Partial(output, "d")
    later = time.time() + STALE_AFTER_S + 1
    monkeypatch.setattr(partial_module.time, "time", lambda: later)
    with Partial(output, "d") as second:
        assert second.done == {"a"}


def test_a_job_requeued_to_another_node_takes_its_own_checkpoint_at_once(output, killed_elsewhere, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    with pytest.raises(CastError, match="on elsewhere, Slurm job 77"):
        Partial(output, "d")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with Partial(output, "d") as second:
        assert second.done == {"a"}


def test_a_clock_set_back_does_not_lock_a_checkpoint_for_ever(output, killed_elsewhere, monkeypatch):
    earlier = time.time() - 3600
    monkeypatch.setattr(partial_module.time, "time", lambda: earlier)
    with Partial(output, "d") as second:
        assert second.done == {"a"}


def test_a_job_that_has_ended_keeps_no_other_host_waiting(output, monkeypatch):
    monkeypatch.setattr(partial_module.socket, "gethostname", lambda: "elsewhere")
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)
    monkeypatch.setattr(partial_module.socket, "gethostname", lambda: "here")
    assert claimant(first.path) == ""
    with Partial(output, "d") as second:
        assert second.done == {"a"}


def test_the_heart_beats_through_a_long_unit_and_between_many(output, monkeypatch):
    monkeypatch.setattr(partial_module, "BEAT_EVERY_S", 0.001)
    threads = threading.active_count()

    def heartbeat():
        return json.loads(first.path.read_bytes()[:512])["claim"]["heartbeat"]

    with Partial(output, "d") as first:
        begun, deadline = heartbeat(), time.monotonic() + 5
        while heartbeat() == begun:  # no unit ends meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for number in range(200):
            first.append(str(number), ["x" * number], 0.0)
    assert threading.active_count() == threads
    with Partial(output, "d") as second:
        assert [(unit.key, len(unit.content[0])) for unit in second.units] == [(str(n), n) for n in range(200)]


def test_restart_forgets_and_discard_removes(output):
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)
    with Partial(output, "d") as second:
        second.restart()
        assert second.units == []
        second.append("b", [], 0.0)
    with Partial(output, "d") as third:
        assert third.done == {"b"}
        third.discard()
    assert not third.path.exists()


def test_a_full_disk_is_one_line_and_keeps_what_is_done(output, monkeypatch):
    with Partial(output, "d") as first:
        first.append("a", [], 0.0)

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(partial_module.os, "fsync", full)
            with pytest.raises(CastError, match="disk full"):
                first.append("b", [], 0.0)
    with Partial(output, "d") as second:
        assert "a" in second.done


def test_a_read_only_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CastError, match="cannot write"):
        Partial(tmp_path / "file" / "record", "d")


def test_the_first_line_is_readable_text(output):
    with Partial(output, "digest") as first:
        line = first.path.read_text().splitlines()[0]
    claim = json.loads(line)
    assert claim["digest"] == "digest"
    assert claim["claim"]["pid"] == os.getpid()
