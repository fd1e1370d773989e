"""The process that streams memory beside a job."""

import psutil
import pytest

from cast import CastError
from cast.experiments.neighbour import _BYTES, neighbour


def test_it_holds_its_buffers_while_the_block_lasts_and_is_gone_afterwards():
    with neighbour("cpu") as pid:
        assert psutil.Process(pid).memory_info().rss > 2 * _BYTES
    assert not psutil.pid_exists(pid)


def test_a_process_that_did_not_start_is_no_neighbour():
    with pytest.raises(CastError, match="did not start"), neighbour("nowhere"):
        pytest.fail("nothing streams")


def test_a_process_that_ended_early_is_told():
    with pytest.raises(CastError, match="ended before the job"), neighbour("cpu") as pid:
        process = psutil.Process(pid)
        process.kill()
        process.wait(timeout=5)
