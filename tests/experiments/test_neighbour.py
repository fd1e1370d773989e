"""The process that streams memory beside a job."""

import psutil

from cast.experiments.neighbour import _BYTES, neighbour


def test_it_holds_its_buffers_while_the_block_lasts_and_is_gone_afterwards():
    with neighbour("cpu") as pid:
        assert psutil.Process(pid).memory_info().rss > 2 * _BYTES
    assert not psutil.pid_exists(pid)
