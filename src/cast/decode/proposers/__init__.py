"""Proposers: what each method asks the target to verify. The loop is the same for all of them."""

from cast.decode.proposers.base import Autoregressive, Proposer
from cast.decode.proposers.block import CastTree, DFlashChain, candidate_tree, most_likely, top_log_probs
from cast.decode.proposers.registry import METHODS, make_proposer, register

__all__ = [
    "METHODS",
    "Autoregressive",
    "CastTree",
    "DFlashChain",
    "Proposer",
    "candidate_tree",
    "make_proposer",
    "most_likely",
    "register",
    "top_log_probs",
]
