"""The types of a job's configuration, so that a wrong key or value fails before any model is loaded.

One dataclass for each group in ``conf/`` and one root for each kind of job. Hydra merges the YAML files
into these, which makes ``seed=abc`` or an unknown key an error of one line. ``MISSING`` marks what a YAML
file must give.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


class DeviceKind(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class DType(StrEnum):
    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class TrackingMode(StrEnum):
    none = "none"
    offline = "offline"
    online = "online"


class Method(StrEnum):
    autoregressive = "autoregressive"
    dflash = "dflash"
    cast = "cast"
    eagle3 = "eagle3"
    dart = "dart"
    ngram = "ngram"


class Engine(StrEnum):
    eager = "eager"
    graph = "graph"


class Sampler(StrEnum):
    walk = "walk"
    recursive = "recursive"


class Cost(StrEnum):
    affine = "affine"
    measured = "measured"


class Rounding(StrEnum):
    up = "up"
    best = "best"


class Slope(StrEnum):
    least_squares = "least_squares"
    endpoints = "endpoints"


@dataclass
class Device:
    """Where a setting runs. ``gpu_name`` is a part of the name the driver must report; null accepts any.
    ``exclusive``: nothing runs beside a job; false only where timings mean nothing."""

    name: str = MISSING
    kind: DeviceKind = MISSING
    threads: int = MISSING
    gpu_name: str | None = None
    exclusive: bool = True


@dataclass
class Target:
    """``source``: ``embedded``, a folder, or a hub id."""

    name: str = MISSING
    source: str = MISSING
    revision: str | None = None


@dataclass
class Drafter:
    """``source``: a folder or a hub id."""

    name: str = MISSING
    source: str = MISSING
    revision: str | None = None


@dataclass
class Setting:
    """One device x target x drafter x dtype, the paper's unit of comparison."""

    name: str = MISSING
    dtype: DType = MISSING


@dataclass
class Domain:
    """One prompt set; ``cast.experiments.prompts`` says what each key means."""

    name: str = MISSING
    source: str = MISSING
    field: str = MISSING
    template: str = MISSING
    license: str = MISSING
    key: str | None = None
    path: str | None = None
    package: str | None = None
    version: str | None = None
    resource: str | None = None
    sha256: str | None = None
    file: str | None = None
    hub_id: str | None = None
    hub_field: str | None = None
    hub_key: str | None = None
    config: str | None = None
    split: str | None = None
    characters: int | None = None
    cut_tokens: int | None = None


@dataclass
class Source:
    """The record of another job of the same study."""

    experiment: str = MISSING
    setting: str = "${setting.name}"
    domain: str = "${domain.name}"


@dataclass
class Experiment:
    """``script``: measures it, scripts/<script>.py. ``yields``: the experiments of the paper (E01-E48) whose
    measurement this is. ``reads``: records it is computed from; each becomes ``inputs.<key>`` of its job.
    ``loads_models``: false where those records are all it needs."""

    name: str = MISSING
    about: str = MISSING
    script: str = MISSING
    yields: list[str] = field(default_factory=list)
    reads: dict[str, Source] = field(default_factory=dict)
    loads_models: bool = True


@dataclass
class Data:
    """``root``: a folder with the paper's prompt sets as JSONL, used instead of the hub."""

    root: str | None = None


@dataclass
class SiteDevice:
    """What a cluster calls one device, and how it is asked for."""

    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    gpu_model: str | None = None
    exclusive: bool = False


@dataclass
class Site:
    """A cluster's names for our devices; empty on a single machine."""

    name: str = MISSING
    devices: dict[str, SiteDevice] = field(default_factory=dict)


@dataclass
class Tracking:
    mode: TrackingMode = MISSING
    project: str = "cast"
    entity: str | None = None


@dataclass
class Job:
    """What every measuring job has."""

    experiment: Experiment = MISSING
    setting: Setting = MISSING
    target: Target = MISSING
    drafter: Drafter = MISSING
    baselines: dict[str, dict[str, Drafter]] = field(default_factory=dict)  # other heads, by method and a short name
    domain: Domain | None = None
    device: Device = MISSING
    site: Site = MISSING
    tracking: Tracking = MISSING
    data: Data = field(default_factory=Data)
    engine: Engine = Engine.eager  # the paper's kind of loop; graph: captured CUDA graphs, another latency curve
    seed: int = 0
    out: str | None = None  # the record file; null: outputs/<job>/<overrides>/records.parquet


@dataclass
class WidthSweep(Job):
    methods: list[Method] = MISSING
    budgets: list[int] = MISSING
    prompt_limit: int = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_k: int = MISSING
    block_size: int | None = None
    block_sizes: list[int] | None = None
    lengths: list[int] | None = None
    repeats: int = MISSING
    traced: bool = MISSING
    sampler: Sampler = Sampler.walk
    seeds: list[int] | None = None  # null: `seed` alone
    method_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    neighbour: bool = False  # a process that streams memory on the same device
    time_limit_s: float | None = None
    min_prompts: int = 1


@dataclass
class LatencyProbe(Job):
    prefix_tokens: int = MISSING
    packed_tokens: list[int] = MISSING
    warmups: int = MISSING
    iterations: int = MISSING


@dataclass
class PrefixProbe(Job):
    prefixes: list[int] = MISSING
    packed_tokens: list[int] = MISSING
    warmups: int = MISSING
    iterations: int = MISSING


@dataclass
class HybridProbe(PrefixProbe):
    """The same values, for a target that is probed only."""


@dataclass
class DrafterScores(Job):
    rounds: int = MISSING
    masses: int = MISSING
    top_k: int = MISSING
    max_new_tokens: int = MISSING
    prompt_limit: int = MISSING
    time_limit_s: float | None = None


@dataclass
class WorkedExample(Job):
    budget: int = MISSING
    top_k: int = MISSING
    lead: int = MISSING
    prompt_limit: int = MISSING
    max_new_tokens: int = MISSING


@dataclass
class GreedyEquivalence(Job):
    methods: list[Method] = MISSING
    budgets: list[int] = MISSING
    prompt_limit: int = MISSING
    max_new_tokens: int = MISSING
    top_k: int = MISSING
    block_size: int | None = None
    gap_edges: list[float] = MISSING
    time_limit_s: float | None = None
    min_prompts: int = 1


@dataclass
class TotalVariation(Job):
    samplers: list[Sampler] = MISSING
    dtypes: list[DType] = MISSING
    draws: list[int] = MISSING
    floor_samples: int = MISSING
    budget: int = MISSING
    top_k: int = MISSING
    lead_tokens: int = MISSING
    prompt_limit: int = MISSING
    temperature: float = MISSING
    top_p: float | None = None
    sequence_draws: int = MISSING
    sequence_tokens: int = MISSING
    sequence_top_k: int = MISSING
    time_limit_s: float | None = None


@dataclass
class ScoreLog(Job):
    methods: list[Method] = MISSING  # one: dflash, the setting's drafter, or dart, its other head
    prompt_limit: int = MISSING
    max_new_tokens: int = MISSING
    top: int = MISSING
    block_size: int | None = None
    roots_at_once: int = MISSING
    time_limit_s: float | None = None


@dataclass
class ReplayInputs:
    """The score log a replay walks."""

    score_log: str = MISSING


@dataclass
class Replay(Job):
    methods: list[Method] = MISSING  # that of the score log
    largest_budget: int = MISSING
    top_k: int = MISSING
    shape_budget: int = MISSING
    budgets: list[int] = MISSING
    batch_size: int = MISSING
    batches: int = MISSING
    requests: int = MISSING
    nodes_per_request: list[int] = MISSING
    prompt_draws: int = MISSING
    resamples: int = MISSING
    inputs: ReplayInputs = field(default_factory=ReplayInputs)


@dataclass
class WidthTax(Job):
    batch_sizes: list[int] = MISSING
    packed_tokens: list[int] = MISSING
    prefix_tokens: int = MISSING
    verifiers: list[str] = MISSING
    warmups: int = MISSING
    iterations: int = MISSING


@dataclass
class Serving(Job):
    active: list[int] = MISSING
    variants: list[str] = MISSING
    width: int = MISSING
    wide: int = MISSING
    priced_packed_tokens: list[int] = MISSING
    requests: int | None = None
    requests_per_slot: int = MISSING
    load: float | None = None
    prompt_limit: int = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_k: int = MISSING
    repeats: int = MISSING
    compare: bool = MISSING
    traced: bool = MISSING


@dataclass
class SamplingUnderLoad(Job):
    samplers: list[Sampler] = MISSING
    dtypes: list[DType] = MISSING
    draws: list[int] = MISSING
    floor_samples: int = MISSING
    batch_size: int = MISSING
    lead_rounds: int = MISSING
    budget: int = MISSING
    top_k: int = MISSING
    prompt_limit: int = MISSING
    temperature: float = MISSING
    top_p: float | None = None


@dataclass
class Scores:
    """Whose score log the rule reads: one curve for each drafter, reused for every setting and domain."""

    setting: str = MISSING
    domain: str = MISSING


@dataclass
class Inputs:
    """Records a prediction is computed from."""

    latency: str = MISSING
    scores: str = MISSING


@dataclass
class Width(Job):
    budgets: list[int] = MISSING
    cost: Cost = MISSING
    rounding: Rounding = MISSING
    slope: Slope = MISSING
    overhead_ms: float = MISSING
    scores: Scores = field(default_factory=Scores)
    inputs: Inputs = field(default_factory=Inputs)


# Experiment files name one of these, so that each accepts exactly its own keys.
JOB_SCHEMAS: dict[str, type[Job]] = {
    "width_sweep": WidthSweep,
    "latency_probe": LatencyProbe,
    "prefix_probe": PrefixProbe,
    "hybrid_probe": HybridProbe,
    "drafter_scores": DrafterScores,
    "width": Width,
    "worked_example": WorkedExample,
    "sampled_decoding": WidthSweep,
    "block_length": WidthSweep,
    "generation_length": WidthSweep,
    "long_prefix": WidthSweep,
    "repeated_panel": WidthSweep,
    "drafter_comparison": WidthSweep,
    "drafter_comparison_sampled": WidthSweep,
    "shared_device": WidthSweep,
    "greedy_equivalence": GreedyEquivalence,
    "total_variation": TotalVariation,
    "score_log": ScoreLog,
    "replay": Replay,
    "dart_score_log": ScoreLog,
    "dart_replay": Replay,
    "width_tax": WidthTax,
    "serving_goodput": Serving,
    "continuous_batching": Serving,
    "sampling_under_load": SamplingUnderLoad,
}


def register() -> None:
    """Make the schemas known to Hydra; calling it again changes nothing."""
    from jobs.study_schema import WholeStudy  # made of the types above

    store = ConfigStore.instance()
    store.store(name="whole_study_schema", node=WholeStudy)
    for name, node in JOB_SCHEMAS.items():
        store.store(group="schema", name=name, node=node)
