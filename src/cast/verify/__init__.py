"""Verification: one packed target pass over a tree, then a walk that commits what the target agrees with."""

from cast.verify.packed import verify
from cast.verify.select import GreedySelector, RecursiveSelector, SampledSelector, Selector, TargetLaw
from cast.verify.walk import Walk, walk

__all__ = ["GreedySelector", "RecursiveSelector", "SampledSelector", "Selector", "TargetLaw", "Walk", "verify", "walk"]
