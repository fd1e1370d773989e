"""Measurement protocols, their records and statistics.

``records``, ``statistics`` and ``files`` are torch-free; the protocols load a model.
"""
