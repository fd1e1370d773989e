"""The machine: threads and GPUs that are not there, other users, and the lock of a device."""

import os
import subprocess
import sys
import threading
import time
import types

import pytest

from cast.errors import CastError
from cast.experiments import device, gpus
from cast.experiments.provenance import Provenance


class Driver(types.ModuleType):
    """NVML of a machine: whole GPUs with the slices that some are divided into. A handle is a UUID."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *names, slices=None):
        super().__init__("pynvml")
        self.names = {f"GPU-{number}": name for number, name in enumerate(names)}
        self.slices, self.processes, self.slowed = slices or {}, [], 0x04 | 0x40

    def nvmlInit(self):
        if not self.names:
            raise self.NVMLError("no driver")

    def nvmlSystemGetDriverVersion(self):
        return b"580.1"

    def nvmlDeviceGetCount(self):
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.names and not any(uuid in slices for slices in self.slices.values()):
            raise self.NVMLError("no such GPU")
        return uuid

    def nvmlDeviceGetName(self, handle):
        return self.names.get(handle, "NVIDIA H200 MIG 1g.18gb")

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetMigMode(self, handle):
        if "RTX" in self.names[handle]:
            raise self.NVMLError("not supported")
        return [handle in self.slices, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(self.slices[handle]):
            raise self.NVMLError("no slice there")
        return self.slices[handle][index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return next(gpu for gpu, slices in self.slices.items() if handle in slices)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=2**30) for on, pid in self.processes if on == handle]

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {self.NVML_CLOCK_SM: 1200, self.NVML_CLOCK_MEM: 2600}[kind]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 84

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        assert handle in self.names  # the driver tells it of whole GPUs
        return self.slowed


@pytest.fixture
def machine(monkeypatch):
    """Puts GPUs into this machine, or none; CUDA_VISIBLE_DEVICES is not set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def build(*names, **slices):
        gpus._visible.cache_clear()
        driver = Driver(*names, **slices)
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        return driver

    yield build
    gpus._visible.cache_clear()


@pytest.fixture
def no_gpu(machine):
    return machine()


@pytest.fixture
def gpu(machine):
    return machine("NVIDIA H100 80GB HBM3")


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
        assert sorted(path.name for path in runtime.iterdir()) == ["cast-GPU-0.lock", "cast-cpu.lock"]


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, ["GPU-0", "MIG-a", "MIG-b", "GPU-2"]),
        ("2,0", ["GPU-2", "GPU-0"]),
        ("1", ["MIG-a", "MIG-b"]),
        ("MIG-b", ["MIG-b"]),
        ("GPU-2", ["GPU-2"]),
        ("0,-1,2", ["GPU-0"]),
        ("0,7,2", ["GPU-0"]),
        ("", []),
        ("GPU-9", []),
    ],
)
def test_visible_gpus_are_those_cuda_sees(machine, monkeypatch, chosen, seen):
    machine("RTX A6000", "NVIDIA H200", "RTX A6000", slices={"GPU-1": ["MIG-a", "MIG-b"]})
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [gpu["uuid"] for gpu in gpus.visible()] == seen
    assert (device.cuda_gpu() or {}).get("uuid") == next(iter(seen), None)


def test_each_job_takes_a_gpu_of_its_own_and_one_too_many_waits(runtime, machine, monkeypatch):
    machine("RTX A6000", "RTX A6000", "RTX A6000")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    told, took, ready = [], [], threading.Event()

    def third():
        with device.exclusive("cuda", lambda text: (told.append(text), ready.set())):
            took.append(os.environ["CUDA_VISIBLE_DEVICES"])

    with device.exclusive("cuda"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == device.cuda_gpu()["uuid"] == "GPU-2"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")  # as another process has it
        with device.exclusive("cuda"):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
            waiting = threading.Thread(target=third)
            waiting.start()
            assert ready.wait(5) and not took
        waiting.join(5)
    assert took == ["GPU-1"]
    assert told == [f"waiting for the cuda, in use by process {os.getpid()}, {os.getpid()}"]


def test_a_job_takes_the_gpu_its_setting_names(runtime, machine):
    machine("NVIDIA A100", "NVIDIA H100 80GB HBM3")
    with device.exclusive("cuda", gpu_name="H100"):
        device.check_gpu("cuda", "H100")
        assert device.cuda_gpu()["uuid"] == "GPU-1"
    with device.exclusive("cuda", gpu_name="A6000"), pytest.raises(CastError, match="named 'A6000' but this one"):
        device.check_gpu("cuda", "A6000")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_users_of_the_gpu_that_is_used_are_told(machine, monkeypatch):
    driver = machine("RTX A6000", "RTX A6000")
    driver.processes = [("GPU-0", 17), ("GPU-1", 18), ("GPU-1", os.getpid())]
    assert device.other_users("cuda") == [{"pid": 17, "gpu_bytes": 2**30}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert device.other_users("cuda") == [{"pid": 18, "gpu_bytes": 2**30}]


def test_readings_name_what_slows_the_clocks(machine, monkeypatch):
    driver = machine("NVIDIA H200", slices={"GPU-0": ["MIG-a"]})
    told = {"sm_mhz": 1200, "memory_mhz": 2600, "temperature_c": 84}
    assert device.readings("cuda") == {**told, "slowed_by": ["power cap", "hardware thermal slowdown"]}
    driver.slowed = 0x01 | 0x02  # idle, and clocks set by hand
    assert device.readings("cuda")["slowed_by"] == []
    assert device.readings("cpu") == {}
    provenance = Provenance({}, "d", "cuda", 1, 0)
    driver.slowed = 0x40
    closed = provenance.close(records=0, sessions=[])
    assert [closed[f"readings_{when}"]["slowed_by"] for when in ("before", "after")] == [
        [],
        ["hardware thermal slowdown"],
    ]
