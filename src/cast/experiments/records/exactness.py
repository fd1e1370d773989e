"""Whether outputs are the target's own: greedy outputs token by token, sampled ones by their law."""

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
    follows_status,
    given,
    is_share,
    measured,
    row_check,
    schema,
    where_known,
)

LEVELS = ("first", "deeper", "sequence")
VERDICTS = ("same", "near_tie", "departure", "violation")

EQUIVALENCE = schema(
    "equivalence",
    {
        "method": given(TEXT, pa.Check.isin(METHODS)),
        "budget": given(INT, at_least_0),
        "prompt_id": given(TEXT),
        "prompt_index": given(INT, at_least_0),
        "top_k": given(INT, at_least_0),
        "block_size": given(INT, at_least_0),
        "max_new_tokens": given(INT, at_least_1),
        # Gaps are differences of the target's two largest logits, in the dtype that is measured. The last
        # interval has no upper end (infinity).
        "gap_from": given(FLOAT, at_least_0),
        "gap_to": given(FLOAT, above_0),
        # Of this output, up to the departure and including it, where the AR output's gap lies in the interval.
        "positions": measured(INT, at_least_0),
        "departures": measured(INT, pa.Check.isin((0, 1))),  # here, hence for one interval of an output at most
        "verdict": measured(TEXT, pa.Check.isin(VERDICTS)),  # "same" for the intervals without a departure
        "departure": measured(INT, at_least_0),  # new token, counted from 0
        "departure_gap": measured(FLOAT, at_least_0),
        "fp32_agrees": measured(BOOL),  # no departure in fp32, for this prompt, method and width
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "dtype", "method", "budget", "block_size"),
        *("prompt_id", "gap_from"),
    ],
    checks=[
        *follows_status(
            measured=["positions", "departures", "verdict"],
            optional=["departure", "departure_gap", "fp32_agrees"],
        ),
        row_check("gap_to", lambda frame: frame["gap_to"] > frame["gap_from"], "must be above gap_from"),
        row_check(
            "departure_gap",
            lambda frame: (
                frame["departure_gap"].isna() | frame["departure_gap"].between(frame["gap_from"], frame["gap_to"])
            ),
            "must lie between gap_from and gap_to",
        ),
        *(
            row_check(
                column,
                lambda frame, column=column: frame[column].notna() == (frame["departures"].fillna(0) == 1),
                "must be filled where the output departs, and only there",
            )
            for column in ("departure", "departure_gap")
        ),
        row_check(
            "verdict",
            lambda frame: where_known((frame["verdict"] == "same") == (frame["departures"] == 0)),
            "must be same where nothing departs, and only there",
        ),
    ],
)

TOTAL_VARIATION = schema(
    "total variation",
    {
        "level": given(TEXT, pa.Check.isin(LEVELS)),
        "sampler": given(TEXT, pa.Check.isin(("autoregressive", *SAMPLERS))),
        "prompt_id": given(TEXT),
        "prompt_index": given(INT, at_least_0),
        "depth": given(INT, at_least_0),  # of the node; for a sequence, its length
        "budget": given(INT, at_least_0),
        "top_k": given(INT, at_least_0),
        "temperature": given(FLOAT, above_0),
        "top_p": given(FLOAT, above_0, nullable=True),
        "seed": given(INT),
        "walks": given(INT, at_least_1),  # of the tree, or generations
        "prefix_tokens": measured(INT, at_least_0),  # before the pending root
        "siblings": measured(INT, at_least_0),  # retained children of the node
        "draws": measured(INT, at_least_1),  # walks that reached the node
        "total_variation": measured(FLOAT, is_share),  # of the draws from the AR law
        "floor_mean": measured(FLOAT, is_share),  # of as many draws from the AR law itself
        "floor_q999": measured(FLOAT, is_share),
        "law_distance": measured(FLOAT, is_share),  # of the packed pass's law from the AR law
        "chi_square": measured(FLOAT, at_least_0),
        "degrees_of_freedom": measured(INT, at_least_0),
        "p_value": measured(FLOAT, is_share),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "dtype", "prompt_id", "level", "sampler"),
        *("budget", "temperature", "seed", "walks"),
    ],
    checks=[
        *follows_status(
            measured=[
                *("prefix_tokens", "draws", "total_variation", "floor_mean", "floor_q999"),
                *("chi_square", "degrees_of_freedom", "p_value"),
            ],
            optional=["siblings", "law_distance"],
        ),
        row_check("draws", lambda frame: where_known(frame["draws"] <= frame["walks"]), "must be at most walks"),
    ],
)
