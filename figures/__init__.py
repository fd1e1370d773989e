"""Figures and tables: pure functions of records, one module for each artefact of the paper.

Run as ``python -m figures.fig3 --records results/embedded --out results/embedded/figures/fig3``; each module
has ``--help``.
"""
