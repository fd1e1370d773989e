"""Appendices G and G.1, and the shared budget of appendix F, replayed from our score logs."""

from __future__ import annotations

from . import replayed, tables
from .data import Study
from .replayed import Quantity, r_of

BINS = [f"0.{low}-0.{low + 1}" for low in range(9)] + ["0.9-1.0"]
REGRET_BUDGETS = (32, 63, 95, 127)
QUANTITIES = [
    r_of("R of the chain", "dflash", ["replayed_chain_r"], analysis="fixed_shapes"),
    r_of("R of the best-first tree at 47 nodes", "cast", ["best_first_r"], analysis="fixed_shapes"),
    r_of("R of the (8,4,2,2,1,...) tree at 47 nodes", "schedule_8_4_2_2_1", ["fixed_schedule_r"]),
    r_of("R of the uniform binary tree at 47 nodes", "binary", ["binary_tree_r"]),
    *(
        r_of(f"R of the best-first tree, N = {budget}", "cast", budget=budget, analysis="budget_sweep", top_k=8)
        for budget in (1, 7, 15, 31, 63, 95, 127)
    ),
    *(
        Quantity(
            f"first rejection: target's rank {band}",
            {"analysis": "rejection_ranks", "quantity": "share", "bin": band},
            printed,
            percent=True,
            digits=1,
        )
        for band, printed in (
            ("2-4", ["rejection_rank_2_4"]),
            ("5-8", ["rejection_rank_5_8"]),
            ("9-32", []),
            ("beyond 32", ["rejection_beyond_32"]),
        )
    ),
    *(
        Quantity(
            f"hit rate at depth one, confidence {edges}",
            {"analysis": "reliability", "quantity": "hit_rate", "top_k": 8, "bin": edges},
        )
        for edges in BINS
    ),
    *(
        Quantity(
            f"mean mass of candidate {rank}",
            {"analysis": "mass_curve", "budget": rank},
            ["sorted_mass"],
            digits=4,
            says=f" {rank}(?:st|th) ",
        )
        for rank in (1, 48, 64, 127)
    ),
    *(
        Quantity(
            f"rank cap of 8 over full rank at {budget} nodes, R",
            {"analysis": "rank_cap", "roots": "chain", "quantity": "r_capped_over_full", "budget": budget},
            [f"rank_cap_{budget}"] if budget in (32, 63) else [],
            percent=True,
        )
        for budget in REGRET_BUDGETS
    ),
    Quantity(
        "target beyond rank 8, all depths",
        {"analysis": "rank_cap", "quantity": "share_beyond_cap", "bin": "all depths"},
        ["beyond_rank_8"],
        percent=True,
        digits=1,
    ),
    *(
        Quantity(
            f"plug-in regret at {budget} nodes{' (its bound)' if bound else ''}",
            {"analysis": "plug_in_regret", "quantity": "regret_bound" if bound else "regret", "budget": budget},
        )
        for budget in REGRET_BUDGETS
        for bound in (False, True)
    ),
    *(
        Quantity(
            f"shared budget of {nodes} nodes a request: {name} over uniform, accepted",
            {"analysis": "shared_budget", "quantity": "accepted_over_uniform", "method": method, "budget": nodes},
            ["allocation_oracle"] if (method, nodes) == ("best_first", 4) else [],
            percent=True,
            digits=1,
        )
        for nodes in (4, 8, 32)
        for method, name in (("best_first", "best-first"), ("hindsight", "hindsight"))
    ),
]


def build(study: Study) -> tables.Table:
    return replayed.build(
        study,
        "replay",
        "Score logs replayed: committed tokens, ranks, reliability, masses, rank caps, regret and shared budgets.",
        QUANTITIES,
        [
            "R is pooled over the rounds of the method's own walk, which the live decoder takes too; the rank cap's is "
            "over the chain's rounds, as the paper's. Rank cap and shared budget are ratios less one; the paper prints "
            "its rank cap as a loss. n counts candidates at depth one in a hit rate, tokens of all depths beyond "
            "rank 8, and batches of a shared budget, whose intervals are Student's with the spread over draws of the "
            "prompts, batches drawn anew in each. A share of 0 or 1 has no interval.",
        ],
    )
