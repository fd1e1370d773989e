"""The machine: threads and GPUs that are not there, other users, and the lock of a device."""

import os
import subprocess
import sys
import threading
import time

import pytest

from cast.errors import CastError
from cast.experiments import device


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "cuda_gpu", lambda: None)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "cuda_gpu", lambda: {"name": "NVIDIA H100 80GB HBM3", "driver": "1", "uuid": "GPU-1"})


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_auto_is_what_is_there(no_gpu):
    assert device.resolve_kind("auto") == "cpu"
    assert device.resolve_kind("cpu") == "cpu"


def test_auto_takes_the_gpu(gpu):
    assert device.resolve_kind("auto") == "cuda"


def test_more_threads_than_cores_are_refused():
    device.check_threads(device.usable_cores())
    with pytest.raises(CastError, match=r"device.threads=1000 .* set device.threads="):
        device.check_threads(1000)


def test_a_gpu_that_is_not_there(no_gpu):
    device.check_gpu("cpu", "H100")
    with pytest.raises(CastError, match="needs a CUDA GPU"):
        device.check_gpu("cuda", None)


def test_another_gpu_than_the_settings(gpu):
    device.check_gpu("cuda", "h100")
    device.check_gpu("cuda", None)
    with pytest.raises(CastError, match="'A6000' but this one is 'NVIDIA H100"):
        device.check_gpu("cuda", "A6000")


def test_the_description_names_the_device(no_gpu):
    described = device.describe("cpu", 1)
    assert described["name"] == described["cpu"] != ""
    assert described["threads"] == 1
    assert described["memory"] > 2**28


def test_a_busy_process_is_another_user_and_this_one_is_not():
    code = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                users = {user["pid"]: user for user in device.other_users("cpu", interval_s=0.5)}
                if process.pid in users:
                    break
        finally:
            process.kill()
    assert users[process.pid]["cores"] >= 0.1
    assert os.getpid() not in users


def test_a_second_job_waits_for_the_device(runtime, no_gpu):
    told, entered = [], threading.Event()

    def second():
        with device.exclusive("cpu", told.append):
            entered.set()

    with device.exclusive("cpu"):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(5)
    waiting.join()
    assert told == [f"waiting for the cpu, in use by process {os.getpid()}"]


def test_the_lock_of_a_killed_job_is_free(runtime, no_gpu):
    code = (
        "import time; from cast.experiments import device\n"
        "with device.exclusive('cpu'):\n print('held', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        process.kill()
    told = []
    with device.exclusive("cpu", told.append):
        assert told == []


def test_each_gpu_has_its_own_lock(runtime, gpu):
    with device.exclusive("cuda"), device.exclusive("cpu"):
        assert sorted(path.name for path in runtime.iterdir()) == ["cast-GPU-1.lock", "cast-cpu.lock"]
