"""Log the drafter's sorted candidate masses round by round; their average is the mass curve of the rule.

python scripts/scores.py setting=smollm2_fp32 domain=math rounds=300
"""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import DictConfig

from cast.errors import CastError
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

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import drafter_scores

        rounds_left = config.rounds - sum(len(unit.content) for unit in job.partial.units)
        if rounds_left <= 0:
            return
        pair = pairs.load(config, job.kind)
        spec = measuring.spec_from(config, drafter_scores.ScoresSpec, rounds=rounds_left, time_limit_s=job.time_left_s)
        job.collect(drafter_scores.run(pair, prompts, spec, done=job.done), total=config.rounds, size=len)

    frame = measuring.record(config, output, SCORES, work, lambda _: [{"rank": 1}], rows=_curve)
    tracking.track(config, output, frame, {"rounds": int(frame["rounds"].fillna(0).max())})


def _curve(job: measuring.Measurement) -> list[dict[str, Any]]:
    """The rows, and beside the record the masses of each round."""
    if not job.partial.units:
        raise CastError("no prompt has a round to log: every output ended at its first token; raise max_new_tokens")
    masses = np.concatenate([unit.content for unit in job.partial.units])
    with atomic_write(job.output.with_suffix(".npz")) as temporary:
        np.savez_compressed(temporary, masses=masses)
    identity = {**job.identity, "session": job.partial.session, "status": "measured", "reason": ""}
    return [
        {**identity, "rank": rank, "mass": float(mass), "rounds": len(masses)}
        for rank, mass in enumerate(masses.mean(axis=0, dtype=np.float64), start=1)
    ]


if __name__ == "__main__":
    run(scores, experiment="drafter_scores")
