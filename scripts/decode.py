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
    with measuring.measurement(config, output) as job:

        def work() -> None:
            from cast.experiments import width_sweep

            pair = pairs.load(config, job.kind)
            spec = measuring.spec_from(config, width_sweep.WidthSweepSpec, time_limit_s=job.time_left_s)
            units = width_sweep.run(pair, prompts, spec, done=job.partial.done)
            job.collect(((rows[0]["prompt_id"], rows) for rows in units), total=len(prompts))

        reason = measuring.guarded(work)
        rows = job.rows()
        if reason:
            rows += job.failed(_cells(config), reason)
            print(f"failed: {reason}")
        frame = measuring.framed(rows, DECODE)
        measuring.write(output, frame, DECODE, job.provenance(len(frame)))
        job.partial.discard()
    measured = frame[frame.status == "measured"]
    tracking.track(config, output, frame, _summary(measured))


def _cells(config: DictConfig) -> list[dict[str, Any]]:
    """One row for each method, width and seed, with what the configuration alone knows."""
    from cast.experiments.width_sweep import sampler_of

    widths = {"autoregressive": [0], "dflash": [(config.block_size or 1) - 1], "cast": list(config.budgets)}
    return [
        {
            "method": method,
            "budget": budget,
            "prompt_id": "",
            "prompt_index": 0,
            "repeat": 0,
            "seed": seed,
            "temperature": config.temperature,
            "sampler": sampler_of(method, config.sampler.value) if config.temperature else "greedy",
            "top_k": config.top_k,
            "block_size": config.block_size or 0,
            "max_new_tokens": config.max_new_tokens,
            "order": 0,
            "traced": False,
        }
        for method in (chosen.value for chosen in config.methods)
        for budget in widths[method]
        for seed in config.seeds or [config.seed]
    ]


def _summary(measured: pd.DataFrame) -> dict[str, float]:
    timed = measured[~measured.traced.astype(bool)]
    means = timed.groupby(["method", "budget"])["ms_per_token"].mean()
    return {f"ms_per_token/{method}_{budget}": float(value) for (method, budget), value in means.items()}


if __name__ == "__main__":
    run(decode, experiment="width_sweep")
