"""The training script from data to head on a tiny target, tracked offline."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = "Python function Write a the of and to in is how many write"
TEMPLATE = (
    "{% for message in messages %}<u> {{ message['content'] }} <e>{% endfor %}"
    "{% if add_generation_prompt %} <a>{% endif %}"
)


@pytest.fixture(scope="module")
def target(golden, tmp_path_factory):
    """The tiny Llama with a word-level tokenizer and a chat template, as a checkpoint folder."""
    folder = tmp_path_factory.mktemp("target")
    shutil.copytree(golden / "dflash_tiny_llama" / "target", folder, dirs_exist_ok=True)
    words = ["<unk>", "<u>", "<e>", "<a>", *WORDS.split()]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", chat_template=TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": words[1:4]})
    tokenizer.save_pretrained(folder)
    return folder


def command(target, out):
    settings = {
        "train": "tiny",
        "head.taps": 1,
        "target.source": target,
        "target.name": "tiny",
        "held_out": "[math]",
        "avoid": "[math,chat]",
        "out": out,
        "device": "cpu_1thread",
        "tracking": "offline",
    }
    return [sys.executable, "scripts/train_drafter.py", *(f"{key}={value}" for key, value in settings.items())]


@pytest.mark.slow
def test_all_stages_on_a_tiny_target(target, tmp_path, pytestconfig):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}
    done = subprocess.run(
        command(target, tmp_path),
        cwd=pytestconfig.rootpath,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "training data: shard-00000" in done.stdout and "held-out data: shard-00000" in done.stdout
    assert "math (all, 3 outputs" in done.stdout and "R chain" in done.stdout
    assert json.loads((tmp_path / "head" / "config.json").read_text())["block_size"] == 4
    evaluated = pd.read_csv(tmp_path / "evaluation.csv")
    assert set(evaluated.step) == {10, 20} and "mean" in set(evaluated.domain)
    sources = {
        json.loads(line)["id"].split("-")[0]
        for path in (tmp_path / "data").glob("*.jsonl")
        for line in path.read_text().splitlines()
    }
    assert {"math", "chat", "code", "library"} <= sources
    (tracked,) = (tmp_path / "wandb").glob("offline-run-*")
    assert next(tracked.glob("run-*.wandb")).stat().st_size > 1000
