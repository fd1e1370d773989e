"""Appendix G.2: the DART head's score logs replayed with best-first trees."""

from __future__ import annotations

from . import replayed, tables
from .data import Study
from .replayed import Quantity, r_of


def at_every(label: str, *arguments, **where) -> Quantity:
    """R of the rounds rooted at every position, the paper's count in G.2."""
    return r_of(label, *arguments, **where, roots="every")


QUANTITIES = [
    at_every("R of the chain", "dflash", ["dart_replay_chain"], analysis="fixed_shapes"),
    at_every(
        "R of the best-first tree at 1 node", "cast", ["dart_replay_1"], budget=1, analysis="budget_sweep", top_k=8
    ),
    at_every("R of the best-first tree at 8 nodes", "cast", budget=8, analysis="budget_sweep", top_k=8),
    at_every(
        "R of the best-first tree at 63 nodes", "cast", ["dart_replay_63"], budget=63, analysis="budget_sweep", top_k=8
    ),
    *(
        Quantity(
            f"gain of R over the chain at {budget} nodes",
            {
                "analysis": "budget_sweep",
                "roots": "every",
                "top_k": 8,
                "budget": budget,
                "quantity": "r_gain_over_chain",
            },
            [f"dart_lift_{budget}"],
            percent=True,
            digits=1,
        )
        for budget in (8, 63)
    ),
]


def build(study: Study) -> tables.Table:
    return replayed.build(
        study,
        "dart_replay",
        "DART score logs replayed with best-first trees of rank cap 8: R and gain over the head's own chain.",
        QUANTITIES,
        ["Rounds are rooted at every position of the outputs, as the paper counts them here."],
    )
