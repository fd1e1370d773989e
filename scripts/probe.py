"""Time the decoder's verification call by packed token count, and one draft; the latency curve of a setting.

python scripts/probe.py setting=smollm2_bf16 prefix_tokens=256
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from cast.experiments.records import LATENCY
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import LatencyProbe


def probe(config: DictConfig) -> None:
    measuring.require(config, LatencyProbe, "probe")
    output = measuring.output_path(config, "probe")
    # A curve means one moment of the machine: half a curve from before is measured again.
    with measuring.measurement(config, output, resumable=False) as job:

        def work() -> None:
            from cast.experiments import latency_probe

            pair = pairs.load(config, job.kind)
            spec = measuring.spec_from(config, latency_probe.LatencyProbeSpec)
            iterations = enumerate(latency_probe.run(pair, spec))
            job.collect(((str(iteration), rows) for iteration, rows in iterations), total=spec.iterations)

        reason = measuring.guarded(work)
        # Every iteration goes through all pack sizes, so a probe that failed has no part of a curve to keep.
        rows = job.failed(_cells(config), reason) if reason else job.rows()
        if reason:
            print(f"failed: {reason}")
        frame = measuring.framed(rows, LATENCY)
        measuring.write(output, frame, LATENCY, job.provenance(len(frame)))
        job.partial.discard()
    measured = frame[frame.status == "measured"]
    medians = measured.groupby(["component", "packed_tokens"])["latency_ms"].median()
    tracking.track(config, output, frame, {f"{part}_ms/{packed}": float(ms) for (part, packed), ms in medians.items()})


def _cells(config: DictConfig) -> list[dict[str, Any]]:
    return [
        {
            "component": "target_forward",
            "prefix_tokens": config.prefix_tokens,
            "packed_tokens": packed,
            "iteration": 0,
        }
        for packed in config.packed_tokens
    ]


if __name__ == "__main__":
    run(probe, experiment="latency_probe")
