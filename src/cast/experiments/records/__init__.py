"""The records: one measured row each, checked where they are written and where they are read.

A schema for each kind of record, by family: sweeps (``decoding``), probes (``probing``), what a drafter offers
(``drafting``), whether outputs are the target's own (``exactness``) and several requests at once (``serving``). All
share the identity columns and the meaning of ``status`` (``columns``).
"""

from cast.experiments.records.columns import METHODS
from cast.experiments.records.decoding import DECODE
from cast.experiments.records.drafting import EXAMPLE, REPLAY, SCORE_LOG, SCORES
from cast.experiments.records.exactness import EQUIVALENCE, TOTAL_VARIATION
from cast.experiments.records.probing import HYBRID_LATENCY, LATENCY
from cast.experiments.records.serving import SERVING, SERVING_POLICIES, WIDTH_TAX
from cast.experiments.records.storage import read_records, write_records

__all__ = [
    "DECODE",
    "EQUIVALENCE",
    "EXAMPLE",
    "HYBRID_LATENCY",
    "LATENCY",
    "METHODS",
    "REPLAY",
    "SCORES",
    "SCORE_LOG",
    "SERVING",
    "SERVING_POLICIES",
    "TOTAL_VARIATION",
    "WIDTH_TAX",
    "read_records",
    "write_records",
]
