"""The records of a probe: one row for each timed iteration of a component."""

from __future__ import annotations

import pandera.pandas as pa

from cast.experiments.records.columns import (
    FLOAT,
    INT,
    TEXT,
    above_0,
    at_least_0,
    at_least_1,
    follows_status,
    given,
    measured,
    not_blank,
    schema,
)

COMPONENTS = ("target_forward", "draft")
WEIGHTS = ("checkpoint", "random")

_LATENCY = {
    "component": given(TEXT, pa.Check.isin(COMPONENTS)),
    "prefix_tokens": given(INT, at_least_0),
    "packed_tokens": given(INT, at_least_1),
    "iteration": given(INT, at_least_0),
    "latency_ms": measured(FLOAT, above_0),
}
_LATENCY_UNIQUE = ["experiment", "setting", "drafter", "component", "prefix_tokens", "packed_tokens", "iteration"]

LATENCY = schema("latency", _LATENCY, _LATENCY_UNIQUE, follows_status(measured=["latency_ms"]))

HYBRID_LATENCY = schema(
    "hybrid latency",
    _LATENCY
    | {
        "weights": measured(TEXT, pa.Check.isin(WEIGHTS)),
        "fused_kernels": measured(TEXT, not_blank),  # packages whose kernels ran, or "none"
    },
    _LATENCY_UNIQUE,
    follows_status(measured=["latency_ms", "weights", "fused_kernels"]),
)
