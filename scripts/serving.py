"""Serving under load: the verifier's width tax, goodput of allocation policies, continuous batching.

python scripts/serving.py experiment=width_tax setting=smollm2_fp32 'batch_sizes=[1,2,4]' prefix_tokens=128
python scripts/serving.py experiment=serving_goodput setting=smollm2_fp32 domain=math 'active=[1,4]'
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from cast.experiments.prompts import load_prompts
from cast.experiments.records import SERVING, WIDTH_TAX
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import Serving, WidthTax


def serving(config: DictConfig) -> None:
    if OmegaConf.get_type(config) is WidthTax:
        _width_tax(config)
    else:
        measuring.require(config, Serving, "serving")
        _runs(config)


def _width_tax(config: DictConfig) -> None:
    output = measuring.output_path(config, "serving")
    with measuring.measurement(config, output) as job:

        def work() -> None:
            from cast.experiments import serving_tax

            pair = pairs.load(config, job.kind)
            missing = [batch for batch in config.batch_sizes if str(batch) not in job.partial.done]
            spec = measuring.spec_from(config, serving_tax.WidthTaxSpec, batch_sizes=tuple(missing))
            job.collect(serving_tax.run(pair, spec), total=len(config.batch_sizes))

        reason = measuring.guarded(work)
        rows = job.rows()
        if reason:
            rows += job.failed(_tax_cells(config, {int(key) for key in job.partial.done}), reason)
            print(f"failed: {reason}")
        frame = measuring.framed(rows, WIDTH_TAX)
        measuring.write(output, frame, WIDTH_TAX, job.provenance(len(frame)))
        job.partial.discard()
    medians = frame[frame.status == "measured"].groupby(["component", "batch", "packed_tokens"])["latency_ms"].median()
    summary = {f"{part}_ms/{batch}x{packed}": float(ms) for (part, batch, packed), ms in medians.items()}
    tracking.track(config, output, frame, summary)


def _runs(config: DictConfig) -> None:
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "serving")
    with measuring.measurement(config, output) as job:

        def work() -> None:
            from cast.experiments import serving_runs

            pair = pairs.load(config, job.kind)
            spec = measuring.spec_from(config, serving_runs.ServingSpec)
            units = serving_runs.run(pair, prompts, spec, done=job.partial.done)
            job.collect(units, total=len(config.active) * config.repeats)

        reason = measuring.guarded(work)
        rows = job.rows()
        if reason:
            rows += job.failed(_run_cells(config, job.partial.done), reason)
            print(f"failed: {reason}")
        frame = measuring.framed(rows, SERVING)
        measuring.write(output, frame, SERVING, job.provenance(len(frame)))
        job.partial.discard()
    measured = frame[(frame.status == "measured") & ~frame.traced.astype(bool)]
    means = measured.groupby(["active", "verifier", "policy"])["goodput_tokens_per_s"].mean()
    summary = {f"goodput/{active}/{how}/{policy}": float(value) for (active, how, policy), value in means.items()}
    tracking.track(config, output, frame, summary)


def _tax_cells(config: DictConfig, done: set[int]) -> list[dict[str, Any]]:
    """One row for each cell that was not measured, with what the configuration alone knows."""
    return [
        {
            "component": f"verify_{verifier}",
            "batch": batch,
            "packed_tokens": packed,
            "prefix_tokens": config.prefix_tokens,
            "iteration": 0,
        }
        for batch in config.batch_sizes
        if batch not in done
        for verifier in config.verifiers
        for packed in config.packed_tokens
    ]


def _run_cells(config: DictConfig, done: set[str]) -> list[dict[str, Any]]:
    shared = {key: config[key] for key in ("load", "max_new_tokens", "temperature", "top_k", "seed")}
    return [
        {"active": active, "verifier": verifier, "policy": policy, "repeat": repeat, "order": 0, "traced": False}
        | shared
        for active in config.active
        for repeat in range(config.repeats)
        if f"{active}/{repeat}" not in done
        for verifier, policy in (variant.split("/") for variant in config.variants)
    ]


if __name__ == "__main__":
    run(serving, experiment="serving_goodput")
