"""Log the drafter's sorted candidate masses round by round; their average is the mass curve of the rule.

python scripts/scores.py setting=smollm2_fp32 domain=math rounds=300
"""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import DictConfig

from cast.experiments.files import atomic_write
from cast.experiments.prompts import load_prompts
from cast.experiments.records import SCORES
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import DrafterScores


def scores(config: DictConfig) -> None:
    measuring.require(config, DrafterScores, "scores")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "scores")
    with measuring.measurement(config, output) as job:

        def work() -> None:
            from cast.experiments import drafter_scores

            rounds_left = config.rounds - sum(len(unit.content) for unit in job.partial.units)
            if rounds_left <= 0:
                return
            pair = pairs.load(config, job.kind)
            spec = measuring.spec_from(
                config, drafter_scores.ScoresSpec, rounds=rounds_left, time_limit_s=job.time_left_s
            )
            units = drafter_scores.run(pair, prompts, spec, done=job.partial.done)
            job.collect(units, total=len(prompts))

        reason = measuring.guarded(work)
        if reason:
            rows = job.failed([{"rank": 1}], reason)
            print(f"failed: {reason}")
        else:
            masses = np.concatenate([unit.content for unit in job.partial.units])
            with atomic_write(output.with_suffix(".npz")) as temporary:
                np.savez_compressed(temporary, masses=masses)
            rows = _curve(masses, job)
        frame = measuring.framed(rows, SCORES)
        measuring.write(output, frame, SCORES, job.provenance(len(frame)))
        job.partial.discard()
    tracking.track(config, output, frame, {"rounds": int(frame["rounds"].fillna(0).max())})


def _curve(masses: np.ndarray, job: measuring.Measurement) -> list[dict[str, Any]]:
    identity = {**job.identity, "session": job.partial.session, "status": "measured", "reason": ""}
    return [
        {**identity, "rank": rank, "mass": float(mass), "rounds": len(masses)}
        for rank, mass in enumerate(masses.mean(axis=0, dtype=np.float64), start=1)
    ]


if __name__ == "__main__":
    run(scores, experiment="drafter_scores")
