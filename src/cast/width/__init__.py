"""Which tree width to deploy: cost curve, mass curve, stopping rule, shared budgets, sweep oracle (numpy only)."""

from cast.width.allocation import hindsight, shared_best_first
from cast.width.latency import LatencyCurve
from cast.width.mass import MassCurve
from cast.width.oracle import gap_points, sweep_oracle
from cast.width.rule import WidthPrediction, predict_width

__all__ = [
    "LatencyCurve",
    "MassCurve",
    "WidthPrediction",
    "gap_points",
    "hindsight",
    "predict_width",
    "shared_best_first",
    "sweep_oracle",
]
