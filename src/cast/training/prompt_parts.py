"""The texts that prompt templates are filled with, kept in `prompt_parts.json`."""

import functools
import json
from pathlib import Path


@functools.cache
def parts(domain: str) -> dict:
    """The lists of one domain: `math`, `code` or `chat`."""
    return json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[domain]
