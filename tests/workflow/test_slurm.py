"""Jobs of the smoke study through a real Slurm: one node, two GPUs that are none, everything in a temporary folder."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo")
RECORDS = [
    "results/smoke/width_sweep/tiny_qwen3/tiny.parquet",
    "results/smoke/width_sweep/tiny_llama/tiny_llama.parquet",
]


def why_not():
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"no {missing[0]} here; apt-get install slurm-wlm munge"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "no snakemake-executor-plugin-slurm here"
    return "slurmd needs root" if os.getuid() else ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands reach the toy cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    node = socket.gethostname().split(".")[0]
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    for name in ("state", "spool", "bin"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        f"""
ClusterName=toy
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdTimeout=10
MinJobAge=3600
JobRequeue=0
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={node} NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000 Gres=gpu:toy:2
PartitionName=main Nodes={node} Default=YES State=UP
"""
    )
    (folder / "gres.conf").write_text(
        "".join(f"NodeName={node} Name=gpu Type=toy File=/dev/{file}\n" for file in ("null", "zero"))
    )
    version = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\n")
    # The plugin takes Slurm's variables from a job's environment, SLURM_CONF with them.
    srun = folder / "bin/srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    environment = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    munged = [f"--{key}-file={folder}/munge.{key}" for key in ("key", "pid", "log", "seed")]
    try:
        start(["munged", "--force", f"--socket={folder}/munge.socket", *munged], environment)
        start(["slurmctld", "-c"], environment)
        start_slurmd(environment)
        if not comes_true(lambda: state(environment) == "idle", 30):
            pytest.skip(f"slurmd does not start here: {last_error(folder / 'slurmd.log')}")
        yield environment
    finally:
        for pid_file in folder.glob("*.pid"):
            os.kill(int(pid_file.read_text()), signal.SIGTERM)


def start(command, environment):
    subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=20, check=False)


def start_slurmd(environment):
    start(["slurmd", "-N", socket.gethostname().split(".")[0]], environment)


def fail_node(environment):
    """What a power cut does: slurmd and all processes of its jobs are gone at once."""
    jobs = subprocess.run(["pgrep", "-f", "slurmstepd:"], capture_output=True, text=True, check=True).stdout.split()
    slurmd = (Path(environment["SLURM_CONF"]).parent / "slurmd.pid").read_text().strip()
    victims = [psutil.Process(int(pid)) for pid in (slurmd, *jobs)]
    for process in [child for victim in victims for child in victim.children(recursive=True)] + victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def state(environment):
    told = subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return told.stdout.strip().rstrip("*")


def comes_true(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


def last_error(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if "error" in line), "no log")


@pytest.fixture
def toy(fresh_tree):
    """A fresh tree, and the options with which its Snakemake submits to the toy cluster."""
    tree = fresh_tree()
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text()) | {
        "default-resources": ["runtime=5", "mem_mb=500"],
        "slurm-status-command": "squeue",  # without accounting sacct hangs
        "slurm-init-seconds-before-status-checks": 5,
        "seconds-between-status-checks": 3,
        "slurm-requeue": False,
        "retries": 0,
    }
    (tree.root / "toy").mkdir()
    (tree.root / "toy/config.yaml").write_text(yaml.safe_dump(profile))
    return tree, ("--workflow-profile", "toy", "--config", "study=smoke", "--")


def provenance(record):
    return json.loads(record.with_suffix(".json").read_text())


def test_jobs_run_through_sbatch_each_on_a_device_of_its_own(slurm, smoke, toy, untimed):
    tree, submitting = toy
    finished = tree.snakemake("--set-resources", "width_sweep:gpu=1", *submitting, *RECORDS, environment=slurm)
    assert finished.returncode == 0, finished.stdout + finished.stderr

    for record in RECORDS:
        pd.testing.assert_frame_equal(untimed(smoke.root / record), untimed(tree.root / record))
    told = [provenance(tree.root / record) for record in RECORDS]
    assert len({one["slurm_job_id"] for one in told} - {""}) == len(RECORDS)
    # They were queued at once, and each saw one GPU, which was not the other's.
    assert sorted(one["visible_devices"] for one in told) == ["0", "1"]


def test_a_job_whose_node_fails_is_submitted_again_and_continues(slurm, smoke, toy, untimed):
    """Not requeued by Slurm: the slurmctld of Debian 12 (22.05) crashes when a requeued job starts its step."""
    tree, submitting = toy
    record = RECORDS[0]
    checkpoint = Path(f"{tree.root / record}.partial")
    snakemake = subprocess.Popen(
        tree.command("--retries", "1", *submitting, record),
        cwd=tree.root,
        env=tree.environment | slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        begun = comes_true(lambda: checkpoint.exists() and checkpoint.read_bytes().count(b"\n") > 1, 200)
        assert begun, "no prompt was finished"
        fail_node(slurm)
        assert comes_true(lambda: state(slurm) == "down", 60), state(slurm)
        start_slurmd(slurm)
        told = snakemake.communicate(timeout=200)[0]
    finally:
        snakemake.kill()
    assert snakemake.returncode == 0, told
    pd.testing.assert_frame_equal(untimed(smoke.root / record), untimed(tree.root / record))
    assert len(provenance(tree.root / record)["sessions"]) == 2  # the second continued what the first had finished
