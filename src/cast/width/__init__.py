"""Which tree width to deploy: cost curve, mass curve, stopping rule and sweep oracle (numpy only)."""

from cast.width.latency import LatencyCurve
from cast.width.mass import MassCurve
from cast.width.oracle import gap_points, sweep_oracle
from cast.width.rule import WidthPrediction, predict_width

__all__ = [
    "LatencyCurve",
    "MassCurve",
    "WidthPrediction",
    "gap_points",
    "predict_width",
    "sweep_oracle",
]
