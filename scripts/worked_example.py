"""Record one round in full, chain against tree on the same drafter pass: the worked example of Figure 1.

python scripts/worked_example.py setting=smollm2_fp32 domain=math
"""

from __future__ import annotations

from omegaconf import DictConfig

from cast.experiments.prompts import load_prompts
from cast.experiments.records import EXAMPLE
from jobs import measuring, pairs, tracking
from jobs.entry import run
from jobs.schema import WorkedExample


def worked_example(config: DictConfig) -> None:
    measuring.require(config, WorkedExample, "worked_example")
    measuring.require_domain(config)
    prompts = load_prompts(config.domain, limit=config.prompt_limit, data_root=config.data.root)
    output = measuring.output_path(config, "worked_example")

    def work(job: measuring.Measurement) -> None:
        from cast.experiments import worked_example as protocol

        if not job.done:
            spec = measuring.spec_from(config, protocol.WorkedExampleSpec)
            job.collect([("round", protocol.run(pairs.load(config, job.kind), prompts, spec))], total=1)

    nothing = {"kind": "root", "depth": 0, "prompt_id": "", "budget": config.budget}
    frame = measuring.record(config, output, EXAMPLE, work, lambda _: [nothing])
    tracking.track(config, output, frame, {"accepted": int((frame["accepted"] == True).sum())})  # noqa: E712


if __name__ == "__main__":
    run(worked_example, experiment="worked_example")
