"""The one decoding loop of all methods, its timer, and the public `generate`."""

from cast.decode.generate import Generation, generate
from cast.decode.loop import decode
from cast.decode.proposers import METHODS, Proposer, make_proposer, register

__all__ = ["METHODS", "Generation", "Proposer", "decode", "generate", "make_proposer", "register"]
