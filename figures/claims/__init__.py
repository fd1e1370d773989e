"""The paper's claims: for each kind of evidence a YAML of what the paper says and a module that measures it.

Fields of a claim: ``id`` names it in every output; ``text``, ``where``, ``paper``: what the paper says, where, and its
own value; ``experiments`` whose records it rests on; ``compute``: the function of the module beside the YAML that
measures it; ``reproduced``, ``direction``: what counts, fixed before any result; ``applies_to``: the settings it can be
judged on. Optional: ``conflict``, the function of figures/consistency.py that shows from the printed numbers that the
paper disagrees with itself, which then decides the verdict; ``caveat``, what to know beside the verdict.

A function takes the study and the settings of one scope and returns a `Finding`, or raises `NotMeasured` with the
reason.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import yaml

from cast.errors import CastError

from .. import consistency
from . import cost, drafters, exactness, protocols, replay, rounds, serving, width
from .finding import REACHING, Finding, NotMeasured

__all__ = ["KINDS", "REACHING", "Finding", "NotMeasured", "entries", "function", "sections"]

KINDS: dict[str, ModuleType] = {
    "width": width, "rounds": rounds, "cost": cost, "protocols": protocols, "exactness": exactness,
    "replay": replay, "drafters": drafters, "serving": serving,
}  # fmt: skip
FIELDS = ("id", "text", "where", "paper", "experiments", "compute", "reproduced", "direction", "applies_to")


def entries() -> list[dict]:
    """Every claim in the paper's order, checked: each field there, each function known, no id twice."""
    loaded = []
    for kind in KINDS:
        path = Path(__file__).with_name(f"{kind}.yaml")
        for entry in _read(path):
            _check(entry, kind, path)
            loaded.append(entry | {"kind": kind})
    twice = [name for name, count in Counter(entry["id"] for entry in loaded).items() if count > 1]
    if twice:
        raise CastError(f"{Path(__file__).parent}: id {twice[0]} occurs twice; ids name a claim in every output")
    return sorted(loaded, key=lambda entry: _order(sections(entry["where"])[0]))


@cache
def _read(path: Path) -> list[dict]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _check(entry: dict, kind: str, path: Path) -> None:
    kinds = {name: list if name == "experiments" else str for name in FIELDS}
    absent = [name for name, kind in kinds.items() if not entry.get(name) or not isinstance(entry[name], kind)]
    if absent:
        name = entry.get("id", "?")
        raise CastError(f"{path}: claim {name} lacks {', '.join(absent)}; every claim has them, as text")
    if not hasattr(KINDS[kind], entry["compute"]) or not hasattr(consistency, entry.get("conflict", "paper")):
        raise CastError(f"{path}: claim {entry['id']} names a function that figures does not have")
    if not sections(entry["where"]):
        raise CastError(f"{path}: claim {entry['id']} names no section of the paper; where: is for that")


def function(entry: dict):
    """The function that measures a claim."""
    return getattr(KINDS[entry["kind"]], entry["compute"])


def sections(where: str) -> list[str]:
    """Abstract, sections and appendices that a claim is found in: "Sections 1 and 3.3" -> Section 1, Section 3."""
    found = ["Abstract"] if "Abstract" in where else []
    for word, places in re.findall(r"(Section|Appendi)(?:s|x|ces)? ([\w.]+(?:(?:, | and )[\w.]+)*)", where):
        name = "Section" if word == "Section" else "Appendix"
        top = re.split(r", | and ", places)
        found += [f"{name} {place.split('.')[0]}" for place in top if re.fullmatch(r"\d[\d.]*|[A-Z](\.\d)?", place)]
    return list(dict.fromkeys(found))


def _order(section: str) -> tuple[int, str]:
    return (["Abstract", "Section", "Appendix"].index(section.split()[0]), section)
