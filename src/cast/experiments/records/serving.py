"""Several requests at once: what width costs a batch, and the runs of a server."""

from __future__ import annotations

import pandera.pandas as pa

from cast.experiments.records.columns import (
    BOOL,
    FLOAT,
    INT,
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

SERVING_POLICIES = ("chain", "fixed_wide", "uniform", "best_first", "priced")

WIDTH_TAX = schema(
    "width tax",
    {
        "component": given(TEXT, pa.Check.isin(("verify_dense", "verify_ragged", "draft"))),
        "batch": given(INT, at_least_1),  # requests of the pass
        "packed_tokens": given(INT, at_least_1),  # of each request, the root included
        "prefix_tokens": given(INT, at_least_0),
        "iteration": given(INT, at_least_0),
        "latency_ms": measured(FLOAT, above_0),
    },
    unique=[*("experiment", "setting", "drafter", "component", "batch", "packed_tokens", "prefix_tokens"), "iteration"],
    checks=follows_status(measured=["latency_ms"]),
)

SERVING = schema(
    "serving",
    {
        "active": given(INT, at_least_1),  # requests that decode at once
        "verifier": given(TEXT, pa.Check.str_matches(r"^(dense|ragged|bucketed_\d+)$")),
        "policy": given(TEXT, pa.Check.isin(SERVING_POLICIES)),
        "repeat": given(INT, at_least_0),
        "order": given(INT, at_least_0),  # place of this variant in the repeat's rotation
        "traced": given(BOOL),  # a shorter run that times the passes; in no timing statistic
        "load": given(FLOAT, above_0, nullable=True),  # offered; empty where all arrive at the start
        "arrivals_per_s": given(FLOAT, above_0, nullable=True),  # that make the load
        "max_new_tokens": given(INT, at_least_1),
        "temperature": given(FLOAT, at_least_0),
        "top_k": given(INT, at_least_1),
        "seed": given(INT),
        "requests": measured(INT, at_least_1),
        "rounds": measured(INT, at_least_1),
        "committed_tokens": measured(INT, at_least_1),  # sum of R, not truncated, without the prefills' tokens
        "new_tokens": measured(INT, at_least_1),
        "full_rounds": measured(INT, at_least_1),  # rounds in which every slot was taken
        "full_committed_tokens": measured(INT, at_least_1),
        "full_ms": measured(FLOAT, above_0),
        "goodput_tokens_per_s": measured(FLOAT, above_0),  # committed over time, of the full rounds
        "elapsed_s": measured(FLOAT, above_0),  # prefills, idling and all
        "tokens_per_s": measured(FLOAT, above_0),  # new tokens over elapsed_s
        "r_pooled": measured(FLOAT, at_least_1),
        "nodes_per_request": measured(FLOAT, at_least_0),  # of a round
        "padded_share": measured(FLOAT, is_share),  # of all verified rows
        "mean_active": measured(FLOAT, at_least_1),  # over time spent in rounds
        "wait_s": measured(FLOAT, at_least_0),  # from arrival to a slot, mean
        "latency_s": measured(FLOAT, at_least_0),  # from arrival to the last token, mean
        "departures": measured(INT, at_least_0),  # outputs unlike plain decoding; empty where not compared
        "largest_gap": measured(FLOAT, at_least_0),  # the target's top-two logit gap at a departure
        "draft_ms_per_round": measured(FLOAT, above_0),
        "verify_ms_per_round": measured(FLOAT, above_0),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "active", "verifier", "policy", "load", "temperature"),
        *("seed", "repeat", "traced"),
    ],
    checks=[
        *follows_status(
            measured=[
                *("rounds", "committed_tokens", "new_tokens", "full_rounds", "full_committed_tokens", "full_ms"),
                *("goodput_tokens_per_s", "elapsed_s", "tokens_per_s", "r_pooled", "nodes_per_request"),
                *("padded_share", "mean_active", "wait_s", "latency_s"),
            ],
            optional=["departures", "largest_gap", "draft_ms_per_round", "verify_ms_per_round"],
        ),
        filled_where_measured("requests"),  # a run that failed may have counted them
        row_check(
            "new_tokens",
            lambda frame: where_known(frame["new_tokens"] <= frame["committed_tokens"] + frame["requests"]),
            "must be at most committed_tokens and one of each request",
        ),
        *(
            row_check(
                f"full_{column}",
                lambda frame, column=column: where_known(frame[f"full_{column}"] <= frame[column]),
                f"must be at most {column}",
            )
            for column in ("rounds", "committed_tokens")
        ),
        row_check(
            "tokens_per_s",
            lambda frame: where_known(
                (frame["tokens_per_s"] * frame["elapsed_s"] - frame["new_tokens"]).abs() <= 1e-6 * frame["new_tokens"]
            ),
            "must be new_tokens / elapsed_s",
        ),
        row_check(
            "goodput_tokens_per_s",
            lambda frame: where_known(
                (frame["goodput_tokens_per_s"] * frame["full_ms"] / 1e3 - frame["full_committed_tokens"]).abs()
                <= 1e-6 * frame["full_committed_tokens"]
            ),
            "must be full_committed_tokens / full_ms",
        ),
        row_check(
            "padded_share",
            lambda frame: ~(frame["padded_share"] > 0) | (frame["verifier"] != "ragged"),
            "must be 0 where nothing is padded",
        ),
        *only_where_traced("draft_ms_per_round", "verify_ms_per_round"),
    ],
)
