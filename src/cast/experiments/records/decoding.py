"""The record of a sweep: one row for each prompt, method, width and repeat."""

from __future__ import annotations

import pandera.pandas as pa

from cast.experiments.records.columns import (
    BOOL,
    FLOAT,
    INT,
    METHODS,
    SAMPLERS,
    TEXT,
    above_0,
    at_least_0,
    at_least_1,
    filled_where_measured,
    follows_status,
    given,
    is_share,
    measured,
    only_where_traced,
    row_check,
    schema,
    where_known,
)

STOP_REASONS = ("stop", "length")

DECODE = schema(
    "decode",
    {
        "method": given(TEXT, pa.Check.isin(METHODS)),
        "budget": given(INT, at_least_0),  # nodes: 0 for autoregressive, block_size - 1 for dflash
        "prompt_id": given(TEXT),
        "prompt_index": given(INT, at_least_0),
        "repeat": given(INT, at_least_0),
        "seed": given(INT),
        "temperature": given(FLOAT, at_least_0),
        "sampler": given(TEXT, pa.Check.isin(SAMPLERS)),  # greedy at temperature 0
        "top_k": given(INT, at_least_0),
        "block_size": given(INT, at_least_0),
        "max_new_tokens": given(INT, at_least_1),
        "order": given(INT, at_least_0),  # place of this method in the prompt's rotation
        "traced": given(BOOL),  # the extra repeat that times the parts; in no timing statistic
        "prompt_tokens": measured(INT, at_least_1),
        "new_tokens": measured(INT, at_least_1),
        "rounds": measured(INT, at_least_0),
        "committed_tokens": measured(INT, at_least_0),  # sum of R, not truncated, without the prefill's token
        "stop_reason": measured(TEXT, pa.Check.isin(STOP_REASONS)),
        "prefill_ms": measured(FLOAT, above_0),
        "first_draft_ms": measured(FLOAT, at_least_0),  # empty where nothing is drafted
        "decode_ms": measured(FLOAT, above_0),
        "ms_per_token": measured(FLOAT, above_0),
        "drafter_passes": measured(INT, at_least_0),
        "target_passes": measured(INT, at_least_0),
        "draft_ms_per_round": measured(FLOAT, at_least_0),
        "verify_ms_per_round": measured(FLOAT, at_least_0),
        "overhead_ms_per_round": measured(FLOAT),
        "repeat_share": measured(FLOAT, is_share),
        "departure": measured(INT, pa.Check.ge(-1)),  # first token unlike plain decoding; -1: none; empty: not compared
        "departure_gap": measured(FLOAT, at_least_0),  # the target's top-two logit gap there
        "output_sha256": measured(TEXT, pa.Check.str_matches(r"^[0-9a-f]{64}$")),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "method", "budget", "block_size"),
        *("max_new_tokens", "temperature", "seed", "prompt_id", "repeat", "traced"),
    ],
    checks=[
        *follows_status(
            measured=[
                *("new_tokens", "rounds", "committed_tokens", "stop_reason", "prefill_ms", "decode_ms"),
                *("ms_per_token", "drafter_passes", "target_passes", "repeat_share", "output_sha256"),
            ],
            optional=[
                *("first_draft_ms", "draft_ms_per_round", "verify_ms_per_round", "overhead_ms_per_round"),
                *("departure", "departure_gap"),
            ],
        ),
        filled_where_measured("prompt_tokens"),  # a prompt that failed may have been counted before
        row_check(
            "budget",
            lambda frame: (frame["method"] != "autoregressive") | (frame["budget"] == 0),
            "must be 0 for autoregressive",
        ),
        row_check(
            "committed_tokens",
            lambda frame: where_known(frame["committed_tokens"] >= frame["rounds"]),
            "must be at least rounds: every round commits a token",
        ),
        row_check(
            "new_tokens",
            lambda frame: where_known(
                (frame["new_tokens"] <= frame["max_new_tokens"])
                & (frame["new_tokens"] <= frame["committed_tokens"] + 1)
            ),
            "must be at most max_new_tokens and committed_tokens + 1",
        ),
        row_check(
            "ms_per_token",
            lambda frame: where_known(
                (frame["ms_per_token"] - frame["decode_ms"] / frame["new_tokens"]).abs()
                <= 1e-6 * frame["ms_per_token"].abs()
            ),
            "must be decode_ms / new_tokens",
        ),
        row_check(
            "departure_gap",
            lambda frame: frame["departure_gap"].isna() | (frame["departure"] >= 0).fillna(False),
            "must be empty where nothing departs",
        ),
        *only_where_traced("draft_ms_per_round", "verify_ms_per_round", "overhead_ms_per_round"),
    ],
)
