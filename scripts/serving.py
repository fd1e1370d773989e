"""Serving under load: the verifier's width tax, goodput of policies, continuous batching, the law of served draws.

python scripts/serving.py experiment=width_tax setting=smollm2_fp32 'batch_sizes=[1,2,4]' prefix_tokens=128
python scripts/serving.py experiment=serving_goodput setting=smollm2_fp32 domain=math 'active=[1,4]'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from cast.errors import CastError
from cast.experiments.prompts import load_prompts
from cast.experiments.records import SERVING, SERVING_POLICIES, TOTAL_VARIATION, WIDTH_TAX
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import Engine, SamplingUnderLoad, Serving, WidthTax

Rows = list[dict[str, Any]]

if TYPE_CHECKING:
    from cast.models import Pair

    Measure = Callable[[Pair], Iterable[tuple[str, Rows]]]

_VERIFIER = re.compile(r"dense|ragged|bucketed_[1-9]\d*")


def serving(config: DictConfig) -> None:
    measuring.check_values(config)
    kind = OmegaConf.get_type(config)
    if config.engine != Engine.eager:
        raise CastError(f"serving runs the target eagerly, not on engine={config.engine.value}; use engine=eager")
    if kind is WidthTax:
        _width_tax(config)
    elif kind is SamplingUnderLoad:
        _served_law(config)
    else:
        measuring.require(config, Serving, "serving")
        _runs(config)


def _width_tax(config: DictConfig) -> None:
    def protocol(job: measuring.Measurement) -> Measure:
        from cast.experiments import serving_tax

        missing = tuple(batch for batch in config.batch_sizes if str(batch) not in job.done)
        spec = measuring.spec_from(config, serving_tax.WidthTaxSpec, batch_sizes=missing)
        return lambda pair: serving_tax.run(pair, spec)

    def cells(done: set[str]) -> Rows:
        shared = {"prefix_tokens": config.prefix_tokens, "iteration": 0}
        return [
            {"component": f"verify_{verifier}", "batch": batch, "packed_tokens": packed} | shared
            for batch in config.batch_sizes
            if str(batch) not in done
            for verifier in config.verifiers
            for packed in config.packed_tokens
        ]

    frame = _measure(config, WIDTH_TAX, protocol, cells, total=len(config.batch_sizes))
    medians = frame[frame.status == "measured"].groupby(["component", "batch", "packed_tokens"])["latency_ms"].median()
    _track(config, frame, {f"{part}_ms/{batch}x{packed}": ms for (part, batch, packed), ms in medians.items()})


def _runs(config: DictConfig) -> None:
    _check_variants(config.variants)
    prompts = _prompts(config)

    def protocol(job: measuring.Measurement) -> Measure:
        from cast.experiments import serving_runs

        spec = measuring.spec_from(config, serving_runs.ServingSpec)
        rates = serving_runs.known_rates([row for unit in job.partial.units for row in unit.content])
        return lambda pair: serving_runs.run(pair, prompts, spec, job.done, rates)

    def cells(done: set[str]) -> Rows:
        shared = {key: config[key] for key in ("load", "max_new_tokens", "temperature", "top_k", "seed")}
        return [
            {"active": active, "verifier": verifier, "policy": policy, "repeat": repeat, "order": 0, "traced": False}
            | shared
            for active in config.active
            for repeat in range(config.repeats)
            if f"{active}/{repeat}" not in done
            for verifier, policy in (variant.split("/") for variant in config.variants)
        ]

    frame = _measure(config, SERVING, protocol, cells, total=len(config.active) * config.repeats)
    timed = frame[(frame.status == "measured") & ~frame.traced.astype(bool)]
    means = timed.groupby(["active", "verifier", "policy"])["goodput_tokens_per_s"].mean()
    _track(config, frame, {f"goodput/{active}/{how}/{policy}": mean for (active, how, policy), mean in means.items()})


def _served_law(config: DictConfig) -> None:
    prompts = _prompts(config)
    if len(prompts) < config.batch_size:
        raise CastError(
            f"batch_size={config.batch_size} requests need as many prompts, not {len(prompts)}; raise prompt_limit"
        )

    def protocol(job: measuring.Measurement) -> Measure:
        from cast.experiments import serving_law

        spec = measuring.spec_from(config, serving_law.ServedLawSpec)
        return lambda pair: serving_law.run(pair, prompts, spec, job.done)

    def cells(done: set[str]) -> Rows:
        shared = {key: config[key] for key in ("budget", "top_k", "temperature", "top_p", "seed")}
        place = {"level": "first", "prompt_id": "", "prompt_index": 0, "depth": 0, "walks": max(config.draws)}
        return [
            {"sampler": sampler.value, "dtype": dtype.value} | place | shared
            for dtype in config.dtypes
            if dtype.value not in done
            for sampler in config.samplers
        ]

    frame = _measure(config, TOTAL_VARIATION, protocol, cells, total=len(config.dtypes))
    first = frame[(frame.status == "measured") & (frame.level == "first")]
    largest = first[first.walks == first.walks.max()].groupby(["dtype", "sampler"])["total_variation"].max()
    _track(config, frame, {f"total_variation/{dtype}/{sampler}": far for (dtype, sampler), far in largest.items()})


def _check_variants(variants: Iterable[str]) -> None:
    for variant in variants:
        verifier, _, policy = variant.partition("/")
        if not _VERIFIER.fullmatch(verifier) or policy not in SERVING_POLICIES:
            raise CastError(
                f"unknown variant {variant!r}; one is <verifier>/<policy>, of dense, ragged and bucketed_<n>, and of "
                f"{', '.join(SERVING_POLICIES)}"
            )


def _prompts(config: DictConfig) -> list[Any]:
    measuring.require_domain(config)
    return load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)


def _measure(
    config: DictConfig,
    schema: Any,
    protocol: Callable[[measuring.Measurement], Measure],
    cells: Callable[[set[str]], Rows],
    total: int,
) -> pd.DataFrame:
    """Collect a protocol's units and write the record.

    Args:
        protocol: given the job and what it has done, a function of the pair that measures the rest; made before the
            pair is loaded, so that what it refuses costs no load.
        cells: what the configuration alone knows of the others, for the record of a failure.
        total: units in all.
    """

    def work(job: measuring.Measurement) -> None:
        measure = protocol(job)
        job.collect(measure(pairs.load(config, job.kind)), total=total)

    return measuring.record(config, measuring.output_path(config, "serving"), schema, work, cells)


def _track(config: DictConfig, frame: pd.DataFrame, summary: dict[str, Any]) -> None:
    numbers = {name: float(value) for name, value in summary.items()}
    tracking.track(config, measuring.output_path(config, "serving"), frame, numbers)


if __name__ == "__main__":
    run(serving, experiment="serving_goodput")
