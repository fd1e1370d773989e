"""Jobs of the smoke study through a real Slurm: one node, two GPUs that are none, everything in a temporary folder."""

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
        start(["slurmd", "-N", node], environment)
        if not idle(environment):
            pytest.skip(f"slurmd does not start here: {last_error(folder / 'slurmd.log')}")
        yield environment
    finally:
        for pid_file in folder.glob("*.pid"):
            os.kill(int(pid_file.read_text()), signal.SIGTERM)


def start(command, environment):
    subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=20, check=False)


def idle(environment, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        told = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if told.stdout.strip() == "idle":
            return True
        time.sleep(0.3)
    return False


def last_error(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if "error" in line), "no log")


def test_jobs_run_through_sbatch_each_on_a_device_of_its_own(slurm, smoke, fresh_tree, untimed):
    tree = fresh_tree()
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text()) | {
        "default-resources": ["runtime=5", "mem_mb=500"],
        "set-resources": ["width_sweep:gpu=1"],
        "slurm-status-command": "squeue",  # without accounting sacct hangs
        "slurm-init-seconds-before-status-checks": 5,
        "seconds-between-status-checks": 3,
        "retries": 0,
    }
    (tree.root / "toy").mkdir()
    (tree.root / "toy/config.yaml").write_text(yaml.safe_dump(profile))
    finished = tree.snakemake("--workflow-profile", "toy", *RECORDS, "--config", "study=smoke", environment=slurm)
    assert finished.returncode == 0, finished.stdout + finished.stderr

    for record in RECORDS:
        pd.testing.assert_frame_equal(untimed(smoke.root / record), untimed(tree.root / record))
    told = [json.loads((tree.root / record).with_suffix(".json").read_text()) for record in RECORDS]
    assert len({one["slurm_job_id"] for one in told} - {""}) == len(RECORDS)
    # They were queued at once, and each saw one GPU, which was not the other's.
    assert sorted(one["visible_devices"] for one in told) == ["0", "1"]
