"""Candidate trees: what a round asks the target to verify."""

from cast.trees.best_first import BestFirstOrder, best_first_order, best_first_tree, best_first_tree_from_topk
from cast.trees.candidate import CandidateTree, ancestor_mask
from cast.trees.chain import chain_tree
from cast.trees.on_device import best_first_tree_on_device
from cast.trees.ranking import ranked_candidates, to_host, top_candidates
from cast.trees.recorded import best_recorded

__all__ = [
    "BestFirstOrder",
    "CandidateTree",
    "ancestor_mask",
    "best_first_order",
    "best_first_tree",
    "best_first_tree_from_topk",
    "best_first_tree_on_device",
    "best_recorded",
    "chain_tree",
    "ranked_candidates",
    "to_host",
    "top_candidates",
]
