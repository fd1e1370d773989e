"""Log the drafter's marginals at every root of the greedy outputs; replays walk them without a model.

python scripts/score_log.py setting=smollm2_fp32 domain=math prompt_limit=40
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from cast.experiments.prompts import load_prompts
from cast.experiments.records import SCORE_LOG
from cast.experiments.replay_log import write_arrays
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import ScoreLog


def score_log(config: DictConfig) -> None:
    measuring.require(config, ScoreLog, "score_log")
    measuring.require_domain(config)
    measuring.check_values(config)
    head = pairs.one_pass_head(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "score_log")
    of_head = {"drafter": head.name}

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import score_log as protocol

        pair = pairs.load(config, job.kind)
        if head is not config.drafter:
            pair = pairs.load_baselines(config, job.kind, pair)[config.methods[0].value][head.name]
        spec = measuring.spec_from(config, protocol.ScoreLogSpec, time_limit_s=job.time_left_s)
        job.collect(protocol.run(pair, prompts, spec, done=job.done), total=len(prompts))

    def rows(job: measuring.Measurement) -> list[dict[str, Any]]:
        # A second session may have gone back to a prompt: rows and arrays in the order of the prompts.
        units = sorted(job.partial.units, key=lambda unit: unit.content["row"]["prompt_index"])
        write_arrays(output, [unit.content for unit in units])
        identity = {**job.identity, **of_head, "status": "measured", "reason": ""}
        return [{**identity, **unit.content["row"], "session": unit.session} for unit in units]

    nothing = {"prompt_id": "", "prompt_index": 0, **of_head}
    frame = measuring.record(config, output, SCORE_LOG, work, lambda _: [nothing], rows=rows)
    totals = {name: int(frame[name].fillna(0).sum()) for name in ("roots", "departures")}
    print(f"{totals['roots']} roots of {len(frame)} prompts, {totals['departures']} departures")
    tracking.track(config, output, frame, totals)


if __name__ == "__main__":
    run(score_log, experiment="score_log")
