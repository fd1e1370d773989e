"""Draw from the samplers at fixed prefixes and compare with autoregressive sampling.

python scripts/total_variation.py setting=smollm2_fp32 domain=math prompt_limit=2 'draws=[500,2000]'
"""

from __future__ import annotations

import pandas as pd
from omegaconf import DictConfig

from cast.experiments.prompts import load_prompts
from cast.experiments.records import TOTAL_VARIATION
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import TotalVariation


def total_variation(config: DictConfig) -> None:
    measuring.require(config, TotalVariation, "total_variation")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "total_variation")

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import total_variation

        pair = pairs.load(config, job.kind)
        spec = measuring.spec_from(config, total_variation.TotalVariationSpec, time_limit_s=job.time_left_s)
        units = total_variation.run(pair, prompts, spec, done=job.done)
        job.collect(units, total=len(prompts) + bool(config.sequence_draws))

    def cells(_: set[str]) -> list[dict[str, object]]:
        return [_cell(config, sampler.value) for sampler in config.samplers]

    frame = measuring.record(config, output, TOTAL_VARIATION, work, cells)
    tracking.track(config, output, frame, _summary(frame[frame.status == "measured"]))


def _cell(config: DictConfig, sampler: str) -> dict[str, object]:
    """What the configuration alone knows of a sampler's rows."""
    shared = {key: config[key] for key in ("budget", "top_k", "temperature", "top_p", "seed")}
    place = {"level": "first", "prompt_id": "", "prompt_index": 0, "depth": 0, "walks": max(config.draws)}
    return {"sampler": sampler, **place, **shared}


def _summary(measured: pd.DataFrame) -> dict[str, float]:
    """Mean distance of each sampler and precision at the largest number of walks, first token."""
    last = measured[(measured.level == "first") & (measured.walks == measured.walks.max())]
    means = last.groupby(["dtype", "sampler"])["total_variation"].mean()
    return {f"total_variation/{dtype}/{sampler}": float(value) for (dtype, sampler), value in means.items()}


if __name__ == "__main__":
    run(total_variation, experiment="total_variation")
