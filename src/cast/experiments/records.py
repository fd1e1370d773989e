"""The records: one measured row each, checked where they are written and where they are read.

Three schemas share the identity columns: `DECODE` (one row per prompt, method, budget and repeat), `LATENCY`
(one row per timed iteration of a component) and `SCORES` (one row per rank of a mass curve). A row whose
``status`` is ``"failed"`` gives the reason and leaves every measured column empty; a ``"measured"`` row
fills them all, except those that a schema names as optional. Units are in the column names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pandera.pandas as pa

from cast.errors import CastError
from cast.experiments.files import atomic_write

METHODS = ("autoregressive", "dflash", "cast", "eagle3", "dart", "ngram")
ENGINES = ("eager", "graph")
STATUSES = ("measured", "failed")
SAMPLERS = ("greedy", "walk", "recursive")
LEVELS = ("first", "deeper", "sequence")
VERDICTS = ("same", "near_tie", "departure", "violation")
STOP_REASONS = ("stop", "length")
COMPONENTS = ("target_forward", "draft")
WEIGHTS = ("checkpoint", "random")
SERVING_POLICIES = ("chain", "fixed_wide", "uniform", "best_first", "priced")
EXAMPLE_KINDS = ("root", "candidate", "chain", "tree", "target")

# "Int64" and "boolean" hold missing values and refuse to round 1.5 or to read None as True.
_INT, _FLOAT, _BOOL, _TEXT = "Int64", "float64", "boolean", "string"


def _column(dtype: str, *checks: pa.Check, nullable: bool = False) -> pa.Column:
    return pa.Column(dtype, list(checks), nullable=nullable)


def _measured(dtype: str, *checks: pa.Check) -> pa.Column:
    return _column(dtype, *checks, nullable=True)  # the status decides, see _follows_status


def _row_check(column: str, holds, message: str) -> pa.Check:
    """A check over whole rows; ``holds(frame)`` is a boolean Series, ``column`` is the one to blame."""
    return pa.Check(holds, name=column, error=message, ignore_na=False)


def _where_known(condition: pd.Series) -> pd.Series:
    """A comparison with an empty operand is not a violation: `_follows_status` looks after emptiness."""
    return condition.fillna(True).astype(bool)


def _follows_status(measured: Iterable[str], optional: Iterable[str] = ()) -> list[pa.Check]:
    checks = [
        _row_check(
            column,
            lambda frame, column=column: frame[column].notna() == (frame["status"] == "measured"),
            "must be filled in measured rows and empty in failed rows",
        )
        for column in measured
    ]
    checks += [
        _row_check(
            column,
            lambda frame, column=column: frame[column].isna() | (frame["status"] == "measured"),
            "must be empty in failed rows",
        )
        for column in optional
    ]
    checks.append(
        _row_check(
            "reason",
            lambda frame: (frame["reason"] != "") == (frame["status"] == "failed"),
            "must say why in failed rows and be empty in measured rows",
        )
    )
    return checks


def _schema(name: str, columns: dict[str, pa.Column], unique: list[str], checks: list[pa.Check]) -> pa.DataFrameSchema:
    return pa.DataFrameSchema(_IDENTITY | columns, name=name, strict=True, coerce=True, unique=unique, checks=checks)


_not_blank = pa.Check.str_length(min_value=1)
_at_least_0 = pa.Check.ge(0)
_at_least_1 = pa.Check.ge(1)
_above_0 = pa.Check.gt(0)

_IDENTITY = {
    "experiment": _column(_TEXT, _not_blank),
    "setting": _column(_TEXT, _not_blank),
    "device": _column(_TEXT),
    "target": _column(_TEXT),
    "drafter": _column(_TEXT),
    "domain": _column(_TEXT),
    "dtype": _column(_TEXT),
    "engine": _column(_TEXT, pa.Check.isin(ENGINES)),
    "threads": _column(_INT, _at_least_1),
    "host": _column(_TEXT),
    "session": _column(_TEXT),
    "status": _column(_TEXT, pa.Check.isin(STATUSES)),
    "reason": _column(_TEXT),
}

DECODE = _schema(
    "decode",
    {
        "method": _column(_TEXT, pa.Check.isin(METHODS)),
        "budget": _column(_INT, _at_least_0),  # nodes: 0 for autoregressive, block_size - 1 for dflash
        "prompt_id": _column(_TEXT),
        "prompt_index": _column(_INT, _at_least_0),
        "repeat": _column(_INT, _at_least_0),
        "seed": _column(_INT),
        "temperature": _column(_FLOAT, _at_least_0),
        "sampler": _column(_TEXT, pa.Check.isin(SAMPLERS)),  # greedy at temperature 0
        "top_k": _column(_INT, _at_least_0),
        "block_size": _column(_INT, _at_least_0),
        "max_new_tokens": _column(_INT, _at_least_1),
        "order": _column(_INT, _at_least_0),  # place of this method in the prompt's rotation
        "traced": _column(_BOOL),  # the extra repeat that times the parts; in no timing statistic
        "prompt_tokens": _measured(_INT, _at_least_1),
        "new_tokens": _measured(_INT, _at_least_1),
        "rounds": _measured(_INT, _at_least_0),
        "committed_tokens": _measured(_INT, _at_least_0),  # sum of R, not truncated, without the prefill's token
        "stop_reason": _measured(_TEXT, pa.Check.isin(STOP_REASONS)),
        "prefill_ms": _measured(_FLOAT, _above_0),
        "first_draft_ms": _measured(_FLOAT, _at_least_0),  # empty where nothing is drafted
        "decode_ms": _measured(_FLOAT, _above_0),
        "ms_per_token": _measured(_FLOAT, _above_0),
        "drafter_passes": _measured(_INT, _at_least_0),
        "target_passes": _measured(_INT, _at_least_0),
        "draft_ms_per_round": _measured(_FLOAT, _at_least_0),
        "verify_ms_per_round": _measured(_FLOAT, _at_least_0),
        "overhead_ms_per_round": _measured(_FLOAT),
        "repeat_share": _measured(_FLOAT, pa.Check.in_range(0, 1)),
        "departure": _measured(_INT, pa.Check.ge(-1)),  # first token unlike the AR output of the prompt; -1: none
        "departure_gap": _measured(_FLOAT, _at_least_0),  # the target's top-two logit gap there
        "output_sha256": _measured(_TEXT, pa.Check.str_matches(r"^[0-9a-f]{64}$")),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "method", "budget", "block_size"),
        *("max_new_tokens", "temperature", "seed", "prompt_id", "repeat", "traced"),
    ],
    checks=[
        *_follows_status(
            measured=[
                *("new_tokens", "rounds", "committed_tokens", "stop_reason", "prefill_ms", "decode_ms"),
                *(
                    "ms_per_token",
                    "drafter_passes",
                    "target_passes",
                    "repeat_share",
                    "departure",
                    "output_sha256",
                ),
            ],
            optional=[
                *("first_draft_ms", "draft_ms_per_round", "verify_ms_per_round", "overhead_ms_per_round"),
                "departure_gap",
            ],
        ),
        _row_check(
            "prompt_tokens",  # a prompt that failed may have been counted before
            lambda frame: frame["prompt_tokens"].notna() | (frame["status"] == "failed"),
            "must be filled in measured rows",
        ),
        _row_check(
            "budget",
            lambda frame: (frame["method"] != "autoregressive") | (frame["budget"] == 0),
            "must be 0 for autoregressive",
        ),
        _row_check(
            "committed_tokens",
            lambda frame: _where_known(frame["committed_tokens"] >= frame["rounds"]),
            "must be at least rounds: every round commits a token",
        ),
        _row_check(
            "new_tokens",
            lambda frame: _where_known(
                (frame["new_tokens"] <= frame["max_new_tokens"])
                & (frame["new_tokens"] <= frame["committed_tokens"] + 1)
            ),
            "must be at most max_new_tokens and committed_tokens + 1",
        ),
        _row_check(
            "ms_per_token",
            lambda frame: _where_known(
                (frame["ms_per_token"] - frame["decode_ms"] / frame["new_tokens"]).abs()
                <= 1e-6 * frame["ms_per_token"].abs()
            ),
            "must be decode_ms / new_tokens",
        ),
        _row_check(
            "departure_gap",
            lambda frame: frame["departure_gap"].isna() | _where_known(frame["departure"] >= 0),
            "must be empty where nothing departs",
        ),
        *(
            _row_check(
                column,
                lambda frame, column=column: frame[column].isna() | frame["traced"],
                "must be empty unless the row is traced",
            )
            for column in ("draft_ms_per_round", "verify_ms_per_round", "overhead_ms_per_round")
        ),
    ],
)

_LATENCY = {
    "component": _column(_TEXT, pa.Check.isin(COMPONENTS)),
    "prefix_tokens": _column(_INT, _at_least_0),
    "packed_tokens": _column(_INT, _at_least_1),
    "iteration": _column(_INT, _at_least_0),
    "latency_ms": _measured(_FLOAT, _above_0),
}
_LATENCY_UNIQUE = ["experiment", "setting", "drafter", "component", "prefix_tokens", "packed_tokens", "iteration"]

LATENCY = _schema("latency", _LATENCY, _LATENCY_UNIQUE, _follows_status(measured=["latency_ms"]))

HYBRID_LATENCY = _schema(
    "hybrid latency",
    _LATENCY
    | {
        "weights": _measured(_TEXT, pa.Check.isin(WEIGHTS)),
        "fused_kernels": _measured(_TEXT, _not_blank),  # packages whose kernels ran, or "none"
    },
    _LATENCY_UNIQUE,
    _follows_status(measured=["latency_ms", "weights", "fused_kernels"]),
)

SCORES = _schema(
    "scores",
    {
        "rank": _column(_INT, _at_least_1),
        "mass": _measured(_FLOAT, pa.Check.in_range(0, 1 + 1e-6)),  # mean over rounds
        "rounds": _measured(_INT, _at_least_1),
    },
    unique=["experiment", "setting", "drafter", "domain", "rank"],
    checks=_follows_status(measured=["mass", "rounds"]),
)

SCORE_LOG = _schema(
    "score log",
    {
        "prompt_id": _column(_TEXT),
        "prompt_index": _column(_INT, _at_least_0),
        "prompt_tokens": _measured(_INT, _at_least_1),
        "new_tokens": _measured(_INT, _at_least_1),  # emitted, the prefill's token included
        "output_tokens": _measured(_INT, _at_least_1),  # with the continuation that ends the last rounds
        "roots": _measured(_INT, _at_least_0),  # of which marginals are stored
        "departures": _measured(_INT, _at_least_0),  # emitted tokens that are not the teacher-forced arg-max
        "max_new_tokens": _measured(_INT, _at_least_1),
        "block_size": _measured(_INT, pa.Check.ge(2)),
        "top": _measured(_INT, _at_least_1),  # tokens stored at each root and depth
    },
    unique=["experiment", "setting", "drafter", "domain", "prompt_id"],
    checks=_follows_status(
        measured=[
            *("prompt_tokens", "new_tokens", "output_tokens", "roots"),
            *("departures", "max_new_tokens", "block_size", "top"),
        ]
    ),
)

REPLAY = _schema(
    "replay",
    {
        "analysis": _column(_TEXT, _not_blank),
        "roots": _column(_TEXT),  # at which roots rounds start: own, chain or every; "" where that says nothing
        "method": _column(_TEXT),
        "budget": _column(_INT, _at_least_0, nullable=True),
        "top_k": _column(_INT, _at_least_1, nullable=True),
        "bin": _column(_TEXT),
        "quantity": _column(_TEXT, _not_blank),
        "value": _measured(_FLOAT),
        # 95% interval, prompts drawn anew (Wilson's for hit rates; batches drawn anew for a shared budget); or none.
        "low": _measured(_FLOAT),
        "high": _measured(_FLOAT),
        "n": _measured(_INT, _at_least_0),  # rounds, events, nodes or batches the value rests on
        "prompts": _measured(_INT, _at_least_0),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain"),
        *("analysis", "roots", "method", "budget", "top_k", "bin", "quantity"),
    ],
    checks=[
        *_follows_status(measured=["value", "n", "prompts"], optional=["low", "high"]),
        _row_check(
            "high",
            lambda frame: (frame["low"].isna() & frame["high"].isna()) | (frame["high"] >= frame["low"]),
            "must be at least low, or empty with it",
        ),
    ],
)

EXAMPLE = _schema(
    "example",
    {
        "prompt_id": _column(_TEXT),
        "round": _measured(_INT, _at_least_0),
        "budget": _column(_INT, _at_least_0),
        "kind": _column(_TEXT, pa.Check.isin(EXAMPLE_KINDS)),
        "depth": _column(_INT, _at_least_0),
        "token_id": _measured(_INT, _at_least_0),
        "token": _measured(_TEXT),
        "rank": _measured(_INT, _at_least_1),  # of a candidate at its position
        "node": _measured(_INT, _at_least_0),
        "parent": _measured(_INT, pa.Check.ge(-1)),
        "log_probability": _measured(_FLOAT, pa.Check.le(1e-6)),  # a candidate's own; a tree node's mass
        "accepted": _measured(_BOOL),
    },
    unique=["experiment", "setting", "drafter", "domain", "kind", "depth", "rank", "node"],
    checks=_follows_status(
        measured=["round", "token_id", "token"], optional=["rank", "node", "parent", "log_probability", "accepted"]
    ),
)


EQUIVALENCE = _schema(
    "equivalence",
    {
        "method": _column(_TEXT, pa.Check.isin(METHODS)),
        "budget": _column(_INT, _at_least_0),
        "prompt_id": _column(_TEXT),
        "prompt_index": _column(_INT, _at_least_0),
        "top_k": _column(_INT, _at_least_0),
        "block_size": _column(_INT, _at_least_0),
        "max_new_tokens": _column(_INT, _at_least_1),
        # Gaps are differences of the target's two largest logits, in the dtype that is measured. The last
        # interval has no upper end (infinity).
        "gap_from": _column(_FLOAT, _at_least_0),
        "gap_to": _column(_FLOAT, _above_0),
        # Of this output, up to the departure and including it, where the AR output's gap lies in the interval.
        "positions": _measured(_INT, _at_least_0),
        "departures": _measured(_INT, pa.Check.isin((0, 1))),  # here, hence for one interval of an output at most
        "verdict": _measured(_TEXT, pa.Check.isin(VERDICTS)),  # "same" for the intervals without a departure
        "departure": _measured(_INT, _at_least_0),  # new token, counted from 0
        "departure_gap": _measured(_FLOAT, _at_least_0),
        "fp32_agrees": _measured(_BOOL),  # no departure in fp32, for this prompt, method and width
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "dtype", "method", "budget", "block_size"),
        *("prompt_id", "gap_from"),
    ],
    checks=[
        *_follows_status(
            measured=["positions", "departures", "verdict"],
            optional=["departure", "departure_gap", "fp32_agrees"],
        ),
        _row_check("gap_to", lambda frame: frame["gap_to"] > frame["gap_from"], "must be above gap_from"),
        _row_check(
            "departure_gap",
            lambda frame: (
                frame["departure_gap"].isna() | frame["departure_gap"].between(frame["gap_from"], frame["gap_to"])
            ),
            "must lie between gap_from and gap_to",
        ),
        *(
            _row_check(
                column,
                lambda frame, column=column: frame[column].notna() == (frame["departures"].fillna(0) == 1),
                "must be filled where the output departs, and only there",
            )
            for column in ("departure", "departure_gap")
        ),
        _row_check(
            "verdict",
            lambda frame: _where_known((frame["verdict"] == "same") == (frame["departures"] == 0)),
            "must be same where nothing departs, and only there",
        ),
    ],
)

TOTAL_VARIATION = _schema(
    "total variation",
    {
        "level": _column(_TEXT, pa.Check.isin(LEVELS)),
        "sampler": _column(_TEXT, pa.Check.isin(("autoregressive", *SAMPLERS))),
        "prompt_id": _column(_TEXT),
        "prompt_index": _column(_INT, _at_least_0),
        "depth": _column(_INT, _at_least_0),  # of the node; for a sequence, its length
        "budget": _column(_INT, _at_least_0),
        "top_k": _column(_INT, _at_least_0),
        "temperature": _column(_FLOAT, _above_0),
        "top_p": _column(_FLOAT, _above_0, nullable=True),
        "seed": _column(_INT),
        "walks": _column(_INT, _at_least_1),  # of the tree, or generations
        "prefix_tokens": _measured(_INT, _at_least_0),  # before the pending root
        "siblings": _measured(_INT, _at_least_0),  # retained children of the node
        "draws": _measured(_INT, _at_least_1),  # walks that reached the node
        "total_variation": _measured(_FLOAT, pa.Check.in_range(0, 1)),  # of the draws from the AR law
        "floor_mean": _measured(_FLOAT, pa.Check.in_range(0, 1)),  # of as many draws from the AR law itself
        "floor_q999": _measured(_FLOAT, pa.Check.in_range(0, 1)),
        "law_distance": _measured(_FLOAT, pa.Check.in_range(0, 1)),  # of the packed pass's law from the AR law
        "chi_square": _measured(_FLOAT, _at_least_0),
        "degrees_of_freedom": _measured(_INT, _at_least_0),
        "p_value": _measured(_FLOAT, pa.Check.in_range(0, 1)),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "dtype", "prompt_id", "level", "sampler"),
        *("budget", "temperature", "seed", "walks"),
    ],
    checks=[
        *_follows_status(
            measured=[
                *("prefix_tokens", "draws", "total_variation", "floor_mean", "floor_q999"),
                *("chi_square", "degrees_of_freedom", "p_value"),
            ],
            optional=["siblings", "law_distance"],
        ),
        _row_check("draws", lambda frame: _where_known(frame["draws"] <= frame["walks"]), "must be at most walks"),
    ],
)


WIDTH_TAX = _schema(
    "width tax",
    {
        "component": _column(_TEXT, pa.Check.isin(("verify_dense", "verify_ragged", "draft"))),
        "batch": _column(_INT, _at_least_1),  # requests of the pass
        "packed_tokens": _column(_INT, _at_least_1),  # of each request, the root included
        "prefix_tokens": _column(_INT, _at_least_0),
        "iteration": _column(_INT, _at_least_0),
        "latency_ms": _measured(_FLOAT, _above_0),
    },
    unique=[*("experiment", "setting", "drafter", "component", "batch", "packed_tokens", "prefix_tokens"), "iteration"],
    checks=_follows_status(measured=["latency_ms"]),
)

SERVING = _schema(
    "serving",
    {
        "active": _column(_INT, _at_least_1),  # requests that decode at once
        "verifier": _column(_TEXT, pa.Check.str_matches(r"^(dense|ragged|bucketed_\d+)$")),
        "policy": _column(_TEXT, pa.Check.isin(SERVING_POLICIES)),
        "repeat": _column(_INT, _at_least_0),
        "order": _column(_INT, _at_least_0),  # place of this variant in the repeat's rotation
        "traced": _column(_BOOL),  # a shorter run that times the passes; in no timing statistic
        "load": _column(_FLOAT, _above_0, nullable=True),  # offered; empty where all arrive at the start
        "arrivals_per_s": _column(_FLOAT, _above_0, nullable=True),  # that make the load
        "max_new_tokens": _column(_INT, _at_least_1),
        "temperature": _column(_FLOAT, _at_least_0),
        "top_k": _column(_INT, _at_least_1),
        "seed": _column(_INT),
        "requests": _measured(_INT, _at_least_1),
        "rounds": _measured(_INT, _at_least_1),
        "committed_tokens": _measured(_INT, _at_least_1),  # sum of R, not truncated, without the prefills' tokens
        "new_tokens": _measured(_INT, _at_least_1),
        "full_rounds": _measured(_INT, _at_least_1),  # rounds in which every slot was taken
        "full_committed_tokens": _measured(_INT, _at_least_1),
        "full_ms": _measured(_FLOAT, _above_0),
        "goodput_tokens_per_s": _measured(_FLOAT, _above_0),  # committed over time, of the full rounds
        "elapsed_s": _measured(_FLOAT, _above_0),  # prefills, idling and all
        "tokens_per_s": _measured(_FLOAT, _above_0),  # new tokens over elapsed_s
        "r_pooled": _measured(_FLOAT, _at_least_1),
        "nodes_per_request": _measured(_FLOAT, _at_least_0),  # of a round
        "padded_share": _measured(_FLOAT, pa.Check.in_range(0, 1)),  # of all verified rows
        "mean_active": _measured(_FLOAT, _at_least_1),  # over time spent in rounds
        "wait_s": _measured(_FLOAT, _at_least_0),  # from arrival to a slot, mean
        "latency_s": _measured(_FLOAT, _at_least_0),  # from arrival to the last token, mean
        "departures": _measured(_INT, _at_least_0),  # outputs unlike plain decoding; empty where not compared
        "largest_gap": _measured(_FLOAT, _at_least_0),  # the target's top-two logit gap at a departure
        "draft_ms_per_round": _measured(_FLOAT, _above_0),
        "verify_ms_per_round": _measured(_FLOAT, _above_0),
    },
    unique=[
        *("experiment", "setting", "drafter", "domain", "active", "verifier", "policy", "load", "temperature"),
        *("seed", "repeat", "traced"),
    ],
    checks=[
        *_follows_status(
            measured=[
                *("rounds", "committed_tokens", "new_tokens", "full_rounds", "full_committed_tokens", "full_ms"),
                *("goodput_tokens_per_s", "elapsed_s", "tokens_per_s", "r_pooled", "nodes_per_request"),
                *("padded_share", "mean_active", "wait_s", "latency_s"),
            ],
            optional=["departures", "largest_gap", "draft_ms_per_round", "verify_ms_per_round"],
        ),
        _row_check(
            "requests",  # a run that failed may have counted them
            lambda frame: frame["requests"].notna() | (frame["status"] == "failed"),
            "must be filled in measured rows",
        ),
        _row_check(
            "new_tokens",
            lambda frame: _where_known(frame["new_tokens"] <= frame["committed_tokens"] + frame["requests"]),
            "must be at most committed_tokens and one of each request",
        ),
        *(
            _row_check(
                f"full_{column}",
                lambda frame, column=column: _where_known(frame[f"full_{column}"] <= frame[column]),
                f"must be at most {column}",
            )
            for column in ("rounds", "committed_tokens")
        ),
        _row_check(
            "tokens_per_s",
            lambda frame: _where_known(
                (frame["tokens_per_s"] * frame["elapsed_s"] - frame["new_tokens"]).abs() <= 1e-6 * frame["new_tokens"]
            ),
            "must be new_tokens / elapsed_s",
        ),
        _row_check(
            "goodput_tokens_per_s",
            lambda frame: _where_known(
                (frame["goodput_tokens_per_s"] * frame["full_ms"] / 1e3 - frame["full_committed_tokens"]).abs()
                <= 1e-6 * frame["full_committed_tokens"]
            ),
            "must be full_committed_tokens / full_ms",
        ),
        _row_check(
            "padded_share",
            lambda frame: ~(frame["padded_share"] > 0) | (frame["verifier"] != "ragged"),
            "must be 0 where nothing is padded",
        ),
        *(
            _row_check(
                column,
                lambda frame, column=column: frame[column].isna() | frame["traced"],
                "must be empty unless the row is traced",
            )
            for column in ("draft_ms_per_round", "verify_ms_per_round")
        ),
    ],
)


def write_records(frame: pd.DataFrame, path: str | os.PathLike[str], schema: pa.DataFrameSchema) -> None:
    """Check rows against ``schema`` and write them as Parquet, atomically, columns in the schema's order.

    Raises:
        CastError: naming column and row (counted from 0) of the first violation; nothing is written then.
            Also as `cast.experiments.files.atomic_write`.
    """
    checked = _checked(frame, schema, source=str(path))
    with atomic_write(path) as temporary:
        checked.to_parquet(temporary, index=False)


def read_records(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], schema: pa.DataFrameSchema
) -> pd.DataFrame:
    """Read one or several Parquet files of records, each checked against ``schema``, into one frame.

    Raises:
        CastError: when no path is given, or a file is missing, damaged, empty or violates the schema.
    """
    files = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not files:
        raise CastError(f"no {schema.name} records to read; give at least one file")
    return pd.concat([_checked(_read_parquet(file), schema, source=str(file)) for file in files], ignore_index=True)


def _read_parquet(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise CastError(f"{path}: no such record file; run the job that writes it")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        first_line = str(error).splitlines()[0]
        raise CastError(f"{path}: not a readable Parquet file ({first_line}); delete it and rerun its job") from error


def _checked(frame: pd.DataFrame, schema: pa.DataFrameSchema, source: str) -> pd.DataFrame:
    if frame.empty:
        raise CastError(f"{source}: no rows; {schema.name} records need at least one, failed or measured")
    frame = frame.reset_index(drop=True)
    try:
        checked = schema.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as errors:
        raise CastError(f"{source}: {_first_violation(errors.schema_errors, frame, schema)}") from errors
    return checked[list(schema.columns)]


def _first_violation(errors: list[pa.errors.SchemaError], frame: pd.DataFrame, schema: pa.DataFrameSchema) -> str:
    """The most basic problem in one line: columns, then types, then values."""
    reason = pa.errors.SchemaErrorReason
    basic_first = [reason.COLUMN_NOT_IN_SCHEMA, reason.COLUMN_NOT_IN_DATAFRAME, reason.DATATYPE_COERCION]
    error = min(
        errors,
        key=lambda e: basic_first.index(e.reason_code) if e.reason_code in basic_first else len(basic_first),
    )
    if error.reason_code is reason.COLUMN_NOT_IN_SCHEMA:
        return f"column {error.failure_cases} is unknown; {schema.name} records have no such column"
    if error.reason_code is reason.COLUMN_NOT_IN_DATAFRAME:
        return f"column {error.failure_cases} is missing; {schema.name} records need it in every row"
    if error.reason_code is reason.DATATYPE_COERCION:
        column = error.schema.name
        dtype = schema.columns[column].dtype
        row = next((i for i, value in enumerate(frame[column]) if not _fits(value, dtype)), 0)
        return f"column {column}, row {row}: {_shown(frame[column].iloc[row])} is not of type {dtype}"
    row = int(min(error.failure_cases["index"]))
    if error.reason_code is reason.DUPLICATES:
        row = int(np.flatnonzero(frame.duplicated(schema.unique))[0])
        where = ", ".join(f"{column}={frame[column].iloc[row]}" for column in schema.unique)
        return f"column {schema.unique[-1]}, row {row}: repeats an earlier row ({where})"
    column = (
        error.schema.name if error.schema is not schema and error.schema.name in schema.columns else error.check.name
    )
    if error.reason_code is reason.SERIES_CONTAINS_NULLS:
        return f"column {column}, row {row}: is empty; a value is needed"
    return f"column {column}, row {row}: {_shown(frame[column].iloc[row])} {_requirement(error.check)}"


def _requirement(check: pa.Check) -> str:
    return check.error if check.error.startswith("must") else f"violates {check.error}"


def _shown(value: object) -> str:
    if pd.isna(value):
        return "an empty value"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _fits(value: object, dtype: object) -> bool:
    try:
        pd.Series([value]).astype(str(dtype))
    except (TypeError, ValueError):
        return False
    return True
