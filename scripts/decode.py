"""Decode the prompts of one setting and domain with every method and tree width; one record of rows.

python scripts/decode.py setting=smollm2_bf16 domain=math 'budgets=[15,31,63]' prompt_limit=5
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from omegaconf import DictConfig

from cast.experiments.prompts import load_prompts
from cast.experiments.records import DECODE
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import WidthSweep


def decode(config: DictConfig) -> None:
    measuring.require(config, WidthSweep, "decode")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "decode")

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import width_sweep
        from cast.experiments.neighbour import beside

        pair = pairs.load(config, job.kind)
        spec = measuring.spec_from(config, width_sweep.WidthSweepSpec, time_limit_s=job.time_left_s)
        heads = pairs.load_baselines(config, job.kind, pair)
        lacking = {key: {row["order"] for row in rows} for key, rows in job.lacking.items()}
        units = width_sweep.run(pair, prompts, spec, done=job.done, heads=heads, lacking=lacking)
        if config.neighbour:
            units = beside(job.kind, units)
        job.collect(((rows[0]["prompt_id"], rows) for rows in units), total=len(prompts))

    frame = measuring.record(config, output, DECODE, work, lambda _: _cells(config))
    measured = frame[frame.status == "measured"]
    tracking.track(config, output, frame, _summary(measured))


def _cells(config: DictConfig) -> list[dict[str, Any]]:
    """One row for each variant and seed, with what the configuration alone knows."""
    from cast.experiments.width_sweep import WidthSweepSpec, sampler_of, variants_of

    spec = measuring.spec_from(config, WidthSweepSpec)
    heads = {method: {head.name: None for head in heads} for method, heads in pairs.baseline_heads(config).items()}
    return [
        {
            "drafter": variant.head or config.drafter.name,
            "method": variant.method,
            "budget": variant.budget,
            "prompt_id": "",
            "prompt_index": 0,
            "repeat": 0,
            "seed": seed,
            "temperature": config.temperature,
            "sampler": sampler_of(variant.method, spec.sampler) if config.temperature else "greedy",
            "top_k": config.top_k,
            "block_size": variant.block_size or config.block_size or 0,
            "max_new_tokens": variant.max_new_tokens or config.max_new_tokens,
            "order": 0,
            "traced": False,
        }
        for variant in variants_of(None, spec, heads)
        for seed in spec.seeds or (spec.seed,)
    ]


def _summary(measured: pd.DataFrame) -> dict[str, float]:
    timed = measured[~measured.traced.astype(bool)]
    keys = ["method", "budget", *(key for key in ("block_size", "max_new_tokens") if timed[key].nunique() > 1)]
    means = timed.groupby(keys)["ms_per_token"].mean()
    return {f"ms_per_token/{'_'.join(map(str, cell))}": float(value) for cell, value in means.items()}


if __name__ == "__main__":
    run(decode, experiment="width_sweep")
