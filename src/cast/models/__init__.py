"""Targets, drafters, key-value caches and the loading of checkpoints."""

from cast.models.dflash import DFlashConfig, DFlashDrafter
from cast.models.embedded import load_embedded_pair
from cast.models.kv_cache import KVCache
from cast.models.loading import load_pair
from cast.models.pair import Pair
from cast.models.target import Target, TargetOutput

__all__ = [
    "DFlashConfig",
    "DFlashDrafter",
    "KVCache",
    "Pair",
    "Target",
    "TargetOutput",
    "load_embedded_pair",
    "load_pair",
]
