"""Compare the greedy outputs of all methods and widths with plain decoding; one record of rows.

python scripts/equivalence.py setting=smollm2_bf16 domain=math 'budgets=[15,31]' prompt_limit=5

A departure that breaks the rule for near-ties is a measurement like any other: the record keeps it, the script says
so, and the study it belongs to ends with an error.
"""

from __future__ import annotations

import sys
from typing import Any

from omegaconf import DictConfig

from cast.experiments.prompts import load_prompts
from cast.experiments.records import EQUIVALENCE
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import GreedyEquivalence


def equivalence(config: DictConfig) -> None:
    measuring.require(config, GreedyEquivalence, "equivalence")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "equivalence")

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import greedy_equivalence

        spec = measuring.spec_from(config, greedy_equivalence.GreedyEquivalenceSpec, time_limit_s=job.time_left_s)
        pair = pairs.load(config, job.kind)
        job.collect(greedy_equivalence.run(pair, prompts, spec, done=job.done), total=len(prompts))

    def cells(_: set[str]) -> list[dict[str, Any]]:
        return [_cell(config, method.value) for method in config.methods]

    frame = measuring.record(config, output, EQUIVALENCE, work, cells)
    measured = frame[frame.status == "measured"]
    tracking.track(config, output, frame, measured.groupby("verdict")["departures"].sum().astype(float).to_dict())
    violations = measured[measured.verdict == "violation"]
    if len(violations):
        first = violations.iloc[0]
        print(
            f"violation: {len(violations)} outputs break the rule for departures; the first is {first.method} "
            f"(budget {first.budget}) on {first.prompt_id} at new token {first.departure}, "
            f"gap {first.departure_gap:.2g}; all are in {output}",
            file=sys.stderr,
        )


def _cell(config: DictConfig, method: str) -> dict[str, Any]:
    """What the configuration alone knows of a method's rows."""
    shared = {key: config[key] for key in ("top_k", "max_new_tokens")}
    gaps = {"gap_from": config.gap_edges[0], "gap_to": float("inf")}
    place = {"budget": 0, "prompt_id": "", "prompt_index": 0, "block_size": config.block_size or 0}
    return {"method": method, **place, **shared, **gaps}


if __name__ == "__main__":
    run(equivalence, experiment="greedy_equivalence")
