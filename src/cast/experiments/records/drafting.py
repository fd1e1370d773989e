"""What a drafter offers: its mass curve, its log at every root, replays of that log, and one round in full."""

from __future__ import annotations

import pandera.pandas as pa

from cast.experiments.records.columns import (
    BOOL,
    FLOAT,
    INT,
    TEXT,
    at_least_0,
    at_least_1,
    follows_status,
    given,
    measured,
    not_blank,
    row_check,
    schema,
)

EXAMPLE_KINDS = ("root", "candidate", "chain", "tree", "target")

SCORES = schema(
    "scores",
    {
        "rank": given(INT, at_least_1),
        "mass": measured(FLOAT, pa.Check.in_range(0, 1 + 1e-6)),  # mean over rounds
        "rounds": measured(INT, at_least_1),
    },
    unique=["experiment", "setting", "drafter", "domain", "rank"],
    checks=follows_status(measured=["mass", "rounds"]),
)

SCORE_LOG = schema(
    "score log",
    {
        "prompt_id": given(TEXT),
        "prompt_index": given(INT, at_least_0),
        "prompt_tokens": measured(INT, at_least_1),
        "new_tokens": measured(INT, at_least_1),  # emitted, the prefill's token included
        "output_tokens": measured(INT, at_least_1),  # with the continuation that ends the last rounds
        "roots": measured(INT, at_least_0),  # of which marginals are stored
        "departures": measured(INT, at_least_0),  # emitted tokens that are not the teacher-forced arg-max
        "max_new_tokens": measured(INT, at_least_1),
        "block_size": measured(INT, pa.Check.ge(2)),
        "top": measured(INT, at_least_1),  # tokens stored at each root and depth
    },
    unique=["experiment", "setting", "drafter", "domain", "prompt_id"],
    checks=follows_status(
        measured=[
            *("prompt_tokens", "new_tokens", "output_tokens", "roots"),
            *("departures", "max_new_tokens", "block_size", "top"),
        ]
    ),
)

REPLAY = schema(
    "replay",
    {
        "analysis": given(TEXT, not_blank),
        "roots": given(TEXT),  # at which roots rounds start: own, chain or every; "" where that says nothing
        "method": given(TEXT),
        "budget": given(INT, at_least_0, nullable=True),
        "top_k": given(INT, at_least_1, nullable=True),
        "bin": given(TEXT),
        "quantity": given(TEXT, not_blank),
        "value": measured(FLOAT),
        # 95% interval, prompts drawn anew; or none.
        "low": measured(FLOAT),
        "high": measured(FLOAT),
        "n": measured(INT, at_least_0),  # rounds, events, candidates or batches the value rests on
        "prompts": measured(INT, at_least_0),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain"),
        *("analysis", "roots", "method", "budget", "top_k", "bin", "quantity"),
    ],
    checks=[
        *follows_status(measured=["value", "n", "prompts"], optional=["low", "high"]),
        row_check(
            "high",
            lambda frame: (frame["low"].isna() & frame["high"].isna()) | (frame["high"] >= frame["low"]),
            "must be at least low, or empty with it",
        ),
    ],
)

EXAMPLE = schema(
    "example",
    {
        "prompt_id": given(TEXT),
        "round": measured(INT, at_least_0),
        "budget": given(INT, at_least_0),
        "kind": given(TEXT, pa.Check.isin(EXAMPLE_KINDS)),
        "depth": given(INT, at_least_0),
        "token_id": measured(INT, at_least_0),
        "token": measured(TEXT),
        "rank": measured(INT, at_least_1),  # of a candidate at its position
        "node": measured(INT, at_least_0),
        "parent": measured(INT, pa.Check.ge(-1)),
        "log_probability": measured(FLOAT, pa.Check.le(1e-6)),  # a candidate's own; a tree node's mass
        "accepted": measured(BOOL),
    },
    unique=["experiment", "setting", "drafter", "domain", "kind", "depth", "rank", "node"],
    checks=follows_status(
        measured=["round", "token_id", "token"], optional=["rank", "node", "parent", "log_probability", "accepted"]
    ),
)
