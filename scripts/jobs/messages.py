"""Errors as one line: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
import re

from hydra.errors import OverrideParseException

from jobs import schema

_UNKNOWN_OPTION = re.compile(
    r"(?:In '[^']*': )?Could not find '(?P<name>[^']+)'.*?"
    r"Available options in '[^']*':\s*(?P<known>.*?)(?:Config search path.*)?$",
    re.DOTALL,
)
_UNKNOWN_KEY = re.compile(
    r"Could not (?:override|append|merge|delete)[^']*'(?P<key>[^'=]+)'|[Kk]ey '(?P<inner>[^']+)' not in"
)
# A file of settings or experiments that Hydra put inside its group.
_NESTED = re.compile(r"(?:@|full_key: (?=(\w+)\.\1\b))(?P<group>setting|experiment)\.")
_FULL_KEY = re.compile(r"full_key: (\S+)")
# Lines about the library's inside; the advice to append "+key=value" would hide a typing mistake.
_INSIDE = ("full_key:", "object_type=", "reference_type=", "To append to your config", "See https:")


OPEN = ("baselines", "method_options", "head", "generate", "training")
"""Keys that take entries which the configuration does not name; the last three are those of a training recipe."""


def one_line(error: BaseException) -> str:
    """The message of a Hydra, OmegaConf or other error, folded to one line without internal detail."""
    text = str(error)
    if option := _UNKNOWN_OPTION.match(text):
        group, _, name = option["name"].rpartition("/")
        return f"unknown {group} '{name}'; known: {', '.join(option['known'].split())}"
    if nested := _NESTED.search(text):
        return f"a file of conf/{nested['group']} lacks its first line; it must be '# @package _global_'"
    if key := _UNKNOWN_KEY.search(text):
        return _unknown_key(key["key"] or key["inner"])
    if isinstance(error, OverrideParseException):
        return f"{_told(text)}; an override is key=value, its value in double quotes where it has special characters"
    parts = [_told(text)]
    cause = error.__cause__ or error.__context__
    if cause is not None and type(cause).__module__.startswith(("omegaconf", "hydra")):
        parts.append(_told(str(cause)))
    told = "; ".join(dict.fromkeys(part for part in parts if part and "$" not in part)) or type(error).__name__
    place = _FULL_KEY.search(text)
    return told if place is None or place[1] in told else f"{place[1]}: {told}"


def _unknown_key(key: str) -> str:
    root, _, entry = key.partition(".")
    if root in OPEN:
        return f"unknown key '{key}'; '+{root}.{entry or '<name>'}=...' adds an entry"
    roots = set().union(*(job.__dataclass_fields__ for job in schema.JOB_SCHEMAS.values()))
    if key in roots:
        return f"unknown key '{key}'; other experiments have it, this one does not"
    close = difflib.get_close_matches(key, sorted(roots), n=1)
    hint = f"did you mean '{close[0]}'?" if close else "--cfg job prints the known ones"
    return f"unknown key '{key}'; {hint}"


def _told(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("^", *_INSIDE))]
    return re.sub(r" See https?://\S+ for details", "", " ".join(kept)).rstrip(".")
