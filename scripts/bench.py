"""Time our autoregressive loop against `generate` of transformers, paired: a slow baseline would void every speedup.

    python scripts/bench.py setting=smollm2_bf16 domain=chat prompt_limit=4 max_new_tokens=64

Prints one JSON object on standard output. It takes a width sweep's configuration and measures its first
prompts with plain decoding only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from omegaconf import DictConfig

from cast.experiments import device
from cast.experiments.prompts import load_prompts
from jobs import measuring, pairs
from jobs.entry import run
from jobs.schema import WidthSweep


def bench(config: DictConfig) -> None:
    measuring.require(config, WidthSweep, "bench")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    kind = device.resolve_kind(config.device.kind.value)
    device.check_threads(config.device.threads)
    with device.exclusive(kind):
        pairs.set_threads(config.device.threads)
        from cast.experiments import baseline

        pair = pairs.load(config, kind)
        stock = baseline.stock_model(pair)
        rows: list[dict[str, Any]] = []
        for row in baseline.run(pair, stock, prompts, max_new_tokens=config.max_new_tokens):
            rows.append(row)
            print(f"{row['prompt_id']}: ours / transformers = {row['ratio']:.3f}", file=sys.stderr, flush=True)
    summary = {
        "setting": config.setting.name,
        "device": device.describe(kind, config.device.threads)["name"],
        "threads": config.device.threads,
        "max_new_tokens": config.max_new_tokens,
        "prompts": len(rows),
        "autoregressive_over_transformers_generate": baseline.geometric_mean([row["ratio"] for row in rows]),
        "rows": rows,
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    run(bench, experiment="width_sweep")
