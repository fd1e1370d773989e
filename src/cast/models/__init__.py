"""Targets, drafters, key-value caches and the loading of checkpoints."""

from cast.models.dart import DartDrafter
from cast.models.dflash import DFlashConfig, DFlashDrafter
from cast.models.eagle3 import Eagle3Drafter
from cast.models.embedded import load_embedded_pair
from cast.models.graph import GraphTarget, with_engine
from cast.models.head import DraftHead
from cast.models.kv_cache import KVCache
from cast.models.loading import load_pair
from cast.models.pair import Pair
from cast.models.random_models import random_pair
from cast.models.target import Target, TargetOutput

__all__ = [
    "DFlashConfig",
    "DFlashDrafter",
    "DartDrafter",
    "DraftHead",
    "Eagle3Drafter",
    "GraphTarget",
    "KVCache",
    "Pair",
    "Target",
    "TargetOutput",
    "load_embedded_pair",
    "load_pair",
    "random_pair",
    "with_engine",
]
