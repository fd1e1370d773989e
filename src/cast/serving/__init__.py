"""Serving under load: batched rounds, budget allocators, ragged verification, continuous batching (section 5).

`serve` is the entry: requests in, results and a round log out.
"""

from cast.serving.allocators import (
    Allocator,
    BestFirst,
    Chain,
    Priced,
    RoundCost,
    Uniform,
    stopping_budget,
)
from cast.serving.batch import Batch, Request, Round
from cast.serving.forest import Forest, best_first_forest, chain_forest
from cast.serving.passes import BucketedVerifier, DenseVerifier, RaggedVerifier, Verifier
from cast.serving.serve import Clock, RoundClock, Served, ServingRun, WallClock, poisson_arrivals, serve
from cast.width import hindsight, shared_best_first

__all__ = [
    "Allocator",
    "Batch",
    "BestFirst",
    "BucketedVerifier",
    "Chain",
    "Clock",
    "DenseVerifier",
    "Forest",
    "Priced",
    "RaggedVerifier",
    "Request",
    "Round",
    "RoundClock",
    "RoundCost",
    "Served",
    "ServingRun",
    "Uniform",
    "Verifier",
    "WallClock",
    "best_first_forest",
    "chain_forest",
    "hindsight",
    "poisson_arrivals",
    "serve",
    "shared_best_first",
    "stopping_budget",
]
