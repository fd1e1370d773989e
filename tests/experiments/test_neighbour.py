"""The process that streams memory beside a job."""

import psutil
import pytest

from cast import CastError
from cast.experiments.neighbour import _BYTES, beside, neighbour


def test_it_holds_its_buffers_while_the_block_lasts_and_is_gone_afterwards():
    with neighbour("cpu") as process:
        assert psutil.Process(process.pid).memory_info().rss > 2 * _BYTES
    assert not psutil.pid_exists(process.pid)


def test_a_process_that_did_not_start_is_no_neighbour():
    with pytest.raises(CastError, match="did not start"), neighbour("nowhere"):
        pytest.fail("nothing streams")


def test_a_unit_whose_neighbour_ended_is_not_handed_on():
    others = set(psutil.Process().children())  # of earlier tests in this process

    def units():
        yield 0
        (process,) = set(psutil.Process().children()) - others
        process.kill()
        process.wait(timeout=5)
        yield 1

    taken = []
    with pytest.raises(CastError, match="ended before the job"):
        for unit in beside("cpu", units()):
            taken.append(unit)
    assert taken == [0]
