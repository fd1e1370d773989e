"""Replay a score log: committed rounds at every budget, and the paper's offline analyses (appendices F, G, G.1).

python scripts/replay.py setting=smollm2_fp32 domain=math inputs.score_log=outputs/score_log/records.parquet
"""

from __future__ import annotations

import functools
import secrets
import socket
import time
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from cast.errors import CastError
from cast.experiments.files import sha256_file
from cast.experiments.provenance import Provenance
from cast.experiments.records import REPLAY
from cast.experiments.replay_log import arrays_path, read_log
from jobs import measuring, pairs, tracking
from jobs.composition import config_digest, plain
from jobs.entry import run
from jobs.schema import Replay
from jobs.status import shown

IDENTITY = ("setting", "device", "target", "drafter", "domain", "dtype", "engine", "threads")
"""Of the log, which is what a replayed number says something about."""


def replay(config: DictConfig) -> None:
    measuring.require(config, Replay, "replay")
    measuring.require_domain(config)
    measuring.check_values(config)
    if OmegaConf.is_missing(config.inputs, "score_log"):
        raise CastError("no inputs.score_log given; add inputs.score_log=<record>.parquet, written by score_log.py")
    output = measuring.output_path(config, "replay")
    measuring.check_free(config, output, computed=True)
    source = config.inputs.score_log
    log_rows, logs = read_log(source)
    wanted = {"setting": config.setting.name, "drafter": pairs.one_pass_head(config).name, "domain": config.domain.name}
    for what, name in wanted.items():
        measuring.check_source("score_log", source, log_rows[what], name, what)
    provenance = Provenance(plain(config), config_digest(config), "cpu", config.device.threads, config.seed)
    session = secrets.token_hex(4)
    identity = {name: log_rows[name].iloc[0] for name in IDENTITY}
    identity |= {"experiment": config.experiment.name, "host": socket.gethostname(), "session": session}
    started = time.monotonic()
    rows = _replayed(config, logs) if logs else _failed(log_rows)
    replay_s = round(time.monotonic() - started, 3)
    frame = measuring.framed([identity | row for row in rows], REPLAY)
    for column in ("roots", "method", "bin"):
        frame[column] = frame[column].fillna("")
    inputs = {str(path): sha256_file(path) for path in ([source, arrays_path(source)] if logs else [source])}
    told = provenance.close(records=len(frame), sessions=[session], replay_s=replay_s, inputs=inputs)
    measuring.write(output, frame, REPLAY, told)
    if logs:
        print("\n".join(report(frame, config.top_k)))
        print(f"replayed in {replay_s:.1f} s")
    tracking.track(config, output, frame, {"replay_s": replay_s})


def _replayed(config: DictConfig, logs: list) -> list[dict[str, Any]]:
    from cast.experiments.replay_analyses import ReplaySpec, analyse

    spec = measuring.spec_from(config, ReplaySpec)
    label = f"{config.experiment.name} {config.setting.name}/{config.domain.name}: draws of prompts"
    return [{"status": "measured", "reason": ""} | row for row in analyse(logs, spec, functools.partial(shown, label))]


def _failed(log_rows: pd.DataFrame) -> list[dict[str, Any]]:
    reason = f"the score log failed ({log_rows['reason'].iloc[0]})"
    print(f"failed: {reason}")
    return [{"status": "failed", "reason": reason, "analysis": "score_log", "quantity": "rounds"}]


def report(frame: pd.DataFrame, top_k: int) -> list[str]:
    """The numbers that the paper's appendices F, G and G.1 print, from the rows of one replay, each with its n."""
    lines = []
    for text, where in _reported(top_k):
        rows = frame
        for column, wanted in where.items():
            rows = rows[rows[column].isin(wanted) if isinstance(wanted, list) else rows[column] == wanted]
        for row in rows.itertuples():
            between = "" if pd.isna(row.low) else f" [{row.low:.4g}, {row.high:.4g}]"
            lines.append(f"{text.format(row)}: {row.value:.4g}{between} (n = {row.n})")
    return lines


def _reported(top_k: int) -> list[tuple[str, dict[str, Any]]]:
    """Each group of numbers: what to call a row, and which rows."""
    own = {"roots": "own", "quantity": "r_pooled"}
    regret = {"analysis": "plug_in_regret"}
    return [
        ("R by shape, {0.method} N = {0.budget:.0f}", {"analysis": "fixed_shapes", **own}),
        (
            "R of the best-first tree, N = {0.budget:.0f}",
            {"analysis": "budget_sweep", "top_k": top_k, "budget": [1, 3, 7, 15, 31, 47, 63, 95, 127], **own},
        ),
        (
            "target's rank at the chain's first rejection, {0.bin}",
            {"analysis": "rejection_ranks", "quantity": "share"},
        ),
        (
            "hit rate at depth one, confidence {0.bin}",
            {"analysis": "reliability", "top_k": top_k, "quantity": "hit_rate"},
        ),
        ("mass {0.budget:.0f}", {"analysis": "mass_curve", "budget": [1, 15, 31, 48, 64, 96, 127]}),
        (
            "R of the rank cap over full rank - 1, N = {0.budget:.0f}",
            {"analysis": "rank_cap", "roots": "chain", "quantity": "r_capped_over_full"},
        ),
        ("target beyond the rank cap, {0.bin}", {"analysis": "rank_cap", "quantity": "share_beyond_cap"}),
        ("plug-in regret, N = {0.budget:.0f}", {**regret, "quantity": "regret"}),
        ("its bound, N = {0.budget:.0f}", {**regret, "quantity": "regret_bound"}),
        ("rounds above the bound, N = {0.budget:.0f}", {**regret, "quantity": "rounds_above_bound"}),
        ("R of the oracle tree, N = {0.budget:.0f}", {**regret, **own}),
        (
            "accepted over a uniform split - 1, {0.method}, {0.budget:.0f} nodes a request",
            {"analysis": "shared_budget", "quantity": "accepted_over_uniform"},
        ),
        (
            "gain in hindsight less that of best-first, {0.budget:.0f} nodes a request",
            {"analysis": "shared_budget", "quantity": "ahead_of_best_first"},
        ),
    ]


if __name__ == "__main__":
    run(replay, experiment="replay")
