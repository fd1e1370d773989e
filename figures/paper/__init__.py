"""The paper's own numbers, as printed: never ours, always shown beside ours and labelled "paper".

``table("table5")`` returns one tidy frame per table; see the README in this folder for the columns.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pandas as pd

from cast.errors import CastError

FOLDER = Path(__file__).parent

DOMAIN_LABELS = {
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "mtbench": "MT-Bench",
    "govreport": "GovReport",
}

_DEVICES = {
    "blackwell": "Blackwell",
    "a6000": "A6000",
    "a100": "A100",
    "h100_nvl": "H100 NVL",
    "h100_sxm": "H100 SXM",
}
# How the driver names them.
_DEVICE_NAMES = {
    "blackwell": re.compile("RTX PRO 6000"),
    "a6000": re.compile("RTX A6000"),
    "a100": re.compile("A100"),
    "h100_nvl": re.compile("H100 NVL"),
    "h100_sxm": re.compile("H100 80GB HBM3"),
}
_TARGETS = {
    "qwen3_8b": "Qwen3-8B",
    "qwen3_4b": "Qwen3-4B",
    "llama31_8b": "LLaMA-3.1-8B",
    "qwen3_coder_30b_a3b": "Qwen3-Coder-30B-A3B",
    "qwen36_27b": "Qwen3.6-27B",
    "qwen36_35b_a3b": "Qwen3.6-35B-A3B",
}


def names() -> list[str]:
    """The tables transcribed here, e.g. ``["table1", "table2", ...]``, in the paper's order."""
    return sorted((path.stem for path in FOLDER.glob("table*.csv")), key=lambda name: int(name[5:]))


def table(name: str) -> pd.DataFrame:
    """The numbers of one table of the paper (a fresh copy; empty cells are NaN).

    Raises CastError for a table that is not transcribed.
    """
    return _read(name).copy()


@cache
def _read(name: str) -> pd.DataFrame:
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise CastError(f"no paper numbers for {name!r}; transcribed are {', '.join(names())}")
    return pd.read_csv(path, comment="#")


def prose() -> pd.DataFrame:
    """Numbers that the paper's text prints: columns id, where, experiment, setting, domain, quantity, value, unit."""
    return _read("prose").copy()


def setting_label(setting: str) -> str:
    """``"h100_sxm-qwen3_8b"`` as the paper prints it: ``"H100 SXM, Qwen3-8B"``."""
    device, target = setting.split("-", 1)
    return f"{_DEVICES[device]}, {_TARGETS[target]}"


def is_own(setting: str, target: str, device: str) -> bool:
    """Whether records are of a setting that the paper measured: its name, its target and its device.

    target, device: as the records name them; another model or GPU under a setting's name is not the paper's.
    """
    short, _, expected = setting.partition("-")
    named = short in _DEVICE_NAMES and _DEVICE_NAMES[short].search(device) is not None
    return named and expected in _TARGETS and target == expected
