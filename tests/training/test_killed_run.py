"""A training process that dies at once, as by kill -9, costs nothing but the steps since its checkpoint."""

import csv
import pickle
import signal
import subprocess
import sys
import time

import torch

from cast.training.batches import BatchSpec
from cast.training.generate import greedy_batch
from cast.training.recipe import train
from cast.training.shards import write_shard
from cast.training.specs import HeadSpec, TrainSpec

HEAD = HeadSpec(layers=1, taps=1, block_size=6, mask_token_id=1)
SPEC = TrainSpec(
    steps=90,
    learning_rate=3e-3,
    validation_share=0.0,
    checkpoint_every=25,  # not where rows of the curve are written, so that some of them must be taken back
    batch=BatchSpec(sequences=2, anchors=3, frequent_tokens=20, sampled_tokens=8),
)
CHILD = """
import pickle, sys, time
from pathlib import Path
from cast import load_pair
from cast.training.recipe import train
pair, spec, head, data, out = pickle.load(sys.stdin.buffer)
target = load_pair(*pair, device="cpu").target
train(spec, head, target, Path(data), Path(out), tick=lambda: time.sleep(0.02))
"""


def curve(folder):
    with open(folder / "curve.csv", newline="") as rows:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(rows)]


def test_killed_run_goes_on_to_the_same_head(golden, target, prompts, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    out = greedy_batch(target, prompts, 20, taps=(target.layers // 2,), soft_labels=4)
    write_shard(data / "shard-00000.safetensors", out, [{"domain": "any"}] * len(out))
    whole = train(SPEC, HEAD, target, data, tmp_path / "whole")

    cut = tmp_path / "cut"
    pair = [str(golden / "dflash_tiny_llama" / name) for name in ("target", "drafter")]
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    child.stdin.write(pickle.dumps((pair, SPEC, HEAD, str(data), str(cut))))
    child.stdin.close()
    deadline = time.monotonic() + 120
    while not ((cut / "curve.csv").exists() and len(curve(cut)) >= 2) and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert torch.load(cut / "checkpoint.pt", weights_only=True)["step"] == 25 < int(curve(cut)[-1]["step"])

    resumed = train(SPEC, HEAD, target, data, cut)
    assert curve(cut) == curve(tmp_path / "whole")
    assert all(torch.equal(weight, whole.weights()[name]) for name, weight in resumed.weights().items())
