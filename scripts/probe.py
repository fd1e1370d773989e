"""Time a target's verification call by packed token count, and one draft; the latency curve of a setting.

python scripts/probe.py setting=smollm2_bf16 prefix_tokens=256
python scripts/probe.py experiment=prefix_probe setting=smollm2_bf16 'prefixes=[256,1024,4096]'
python scripts/probe.py experiment=hybrid_probe setting=tiny_qwen3_5 'prefixes=[1024]'
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from cast.experiments.records import HYBRID_LATENCY, LATENCY
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import HybridProbe, LatencyProbe, PrefixProbe


def probe(config: DictConfig) -> None:
    measuring.require(config, (LatencyProbe, PrefixProbe), "probe")
    hybrid = OmegaConf.get_type(config) is HybridProbe
    schema = HYBRID_LATENCY if hybrid else LATENCY
    output = measuring.output_path(config, "probe")

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import hybrid_probe, latency_probe

        spec = measuring.spec_from(config, latency_probe.LatencyProbeSpec, prefix_tokens=_prefixes(config))
        if hybrid:
            iterations = hybrid_probe.run(pairs.load_hybrid(config, job.kind), spec)
        else:
            iterations = latency_probe.run(pairs.load(config, job.kind), spec)
        job.collect(((str(number), rows) for number, rows in enumerate(iterations)), total=spec.iterations)

    # A curve means one moment of the machine, and every iteration goes through all pack sizes: half a curve from
    # before is measured again, and a probe that failed has no part to keep.
    frame = measuring.record(config, output, schema, work, lambda _: _cells(config), told=_slopes, resumable=False)
    measured = frame[frame.status == "measured"]
    medians = measured.groupby(["component", "prefix_tokens", "packed_tokens"])["latency_ms"].median()
    several = len(_prefixes(config)) > 1
    tracking.track(
        config,
        output,
        frame,
        {
            f"{part}_ms/{f'{prefix}/' if several else ''}{packed}": float(ms)
            for (part, prefix, packed), ms in medians.items()
        },
    )


def _prefixes(config: DictConfig) -> list[int]:
    return [config.prefix_tokens] if "prefix_tokens" in config else list(config.prefixes)


def _slopes(frame: pd.DataFrame) -> dict[str, Any]:
    measured = frame[frame.status == "measured"]
    if measured.empty:
        return {"slopes_ms_per_token": []}
    from cast.experiments.latency_probe import slopes

    return {"slopes_ms_per_token": slopes(measured)}


def _cells(config: DictConfig) -> list[dict[str, Any]]:
    return [
        {"component": "target_forward", "prefix_tokens": prefix, "packed_tokens": packed, "iteration": 0}
        for prefix in _prefixes(config)
        for packed in config.packed_tokens
    ]


if __name__ == "__main__":
    run(probe, experiment="latency_probe")
