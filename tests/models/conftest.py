"""Checkpoint folders that a test may break."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from cast import CastError, load_pair


class Checkpoint:
    """A copy of a golden checkpoint, and ways to damage it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __truediv__(self, name):
        return self.folder / name

    @property
    def config(self):
        return json.loads((self / "config.json").read_text())

    def edit_config(self, *without, **changes):
        kept = {key: value for key, value in self.config.items() if key not in without}
        (self / "config.json").write_text(json.dumps(kept | changes))
        return self

    def edit_dflash(self, *without, **changes):
        block = {key: value for key, value in self.config["dflash_config"].items() if key not in without}
        return self.edit_config(dflash_config=block | changes)

    @property
    def weights(self):
        return load_file(self / "model.safetensors")

    def edit_weights(self, change):
        weights = self.weights
        change(weights)
        save_file(weights, self / "model.safetensors", metadata={"format": "pt"})
        return self

    def truncate(self, name="model.safetensors", keep=0.5):
        data = (self / name).read_bytes()
        (self / name).write_bytes(data[: int(len(data) * keep)])
        return self


@pytest.fixture
def checkpoint(golden, tmp_path):
    """(pair name, "target" or "drafter") to a fresh copy."""

    def copy(name, part):
        folder = tmp_path / f"{name}-{part}"
        shutil.copytree(golden / name / part, folder)
        return Checkpoint(folder)

    return copy


@pytest.fixture
def target(checkpoint):
    return checkpoint("dflash_tiny_qwen3", "target")


@pytest.fixture
def drafter(checkpoint):
    return checkpoint("dflash_tiny_qwen3", "drafter")


@pytest.fixture
def refusal():
    """The one line with which loading refuses; fails the test for a traceback of another kind."""

    def load(target, drafter=None, **options):
        folders = [part.folder if isinstance(part, Checkpoint) else part for part in (target, drafter)]
        with pytest.raises(CastError) as error:
            load_pair(*folders, **{"device": "cpu", **options})
        message = str(error.value)
        assert message
        assert "\n" not in message
        return message

    return load
