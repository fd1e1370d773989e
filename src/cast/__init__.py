"""CAST: cost-aware speculative trees over a one-pass block drafter.

``import cast`` costs nothing: every name below is imported on first use (PEP 562), so that tools which
only read records or predict a width never load torch.

=====================  ==================================================================
``load_pair``          a target and its drafter from hub ids or local folders
``load_embedded_pair`` the embedded default pair
``generate``           decode with ``"cast"``, ``"dflash"``, ``"eagle3"``, ``"dart"``, ``"ngram"`` or plainly
``trees``              candidate trees and ancestor masks
``width``              latency curve, mass curve, stopping rule, sweep oracle (torch-free)
``models``             targets, drafters, caches, checkpoints
``decode``             the decoding loop and its timer
``serving``            many requests at once: allocators, ragged verification, continuous batching
``CastError``          the one-line error every part raises for a user's mistake
=====================  ==================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cast import decode, models, serving, trees, width
    from cast.decode import generate
    from cast.errors import CastError
    from cast.models import load_embedded_pair, load_pair

__all__ = [
    "CastError",
    "decode",
    "generate",
    "load_embedded_pair",
    "load_pair",
    "models",
    "serving",
    "trees",
    "width",
]

_HOME_OF = {
    "CastError": "cast.errors",
    "generate": "cast.decode",
    "load_embedded_pair": "cast.models",
    "load_pair": "cast.models",
}
_SUBMODULES = frozenset({"decode", "models", "serving", "trees", "width"})


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value  # later look-ups skip this function
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"cast.{name}")
    raise AttributeError(f"module 'cast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
