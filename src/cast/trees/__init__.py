"""Candidate trees: what a round asks the target to verify."""

from cast.trees.best_first import best_first_tree, best_first_tree_from_topk, top_candidates
from cast.trees.candidate import CandidateTree, ancestor_mask
from cast.trees.chain import chain_tree

__all__ = [
    "CandidateTree",
    "ancestor_mask",
    "best_first_tree",
    "best_first_tree_from_topk",
    "chain_tree",
    "top_candidates",
]
