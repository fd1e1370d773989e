"""Values that no job can have: told before a device is claimed or a model loaded, and before a study starts."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from cast.errors import MOST_NODES, CastError
from jobs import schema

SMALLEST = {
    "seed": 0,
    "seeds": 0,
    "budgets": 0,
    "packed_tokens": 1,
    "max_new_tokens": 1,
    "lengths": 1,
    "block_size": 2,
    "block_sizes": 2,
    "temperature": 0,
    "top_k": 1,
    "repeats": 1,
    "iterations": 1,
    "warmups": 0,
    "rounds": 1,
    "masses": 1,
    "prefix_tokens": 1,
    "prefixes": 1,
    "prompt_limit": 1,
    "time_limit_s": 0,
    "min_prompts": 1,
    "overhead_ms": 0,
    "budget": 0,
    "lead": 0,
    "lead_rounds": 0,
    "top": 1,
    "roots_at_once": 1,
    "largest_budget": 1,
    "shape_budget": 1,
    "batch_size": 2,
    "batches": 1,
    "requests": 2,
    "nodes_per_request": 1,
    "resamples": 2,
    "prompt_draws": 2,
    "batch_sizes": 1,
    "active": 1,
    "width": 0,
    "wide": 0,
    "priced_packed_tokens": 1,
    "requests_per_slot": 1,
    "draws": 1,
    "floor_samples": 1,
    "lead_tokens": 0,
    "sequence_draws": 0,
    "sequence_tokens": 1,
    "sequence_top_k": 1,
}
"""Least value of a key, in whichever experiment has it."""

TREES = ("budgets", "budget", "largest_budget", "shape_budget", "nodes_per_request", "width", "wide")
"""Keys of trees' nodes: the decoder has a limit."""

ABOVE_0 = ("load", "top_p")

WITHOUT_OPTIONS = ("autoregressive", "dflash", "cast")
"""Methods that take their widths from `budgets` and the drafter's block."""

DRAFTING = (
    schema.DrafterScores,
    schema.WorkedExample,
    schema.TotalVariation,
    schema.WidthTax,
    schema.Serving,
    schema.SamplingUnderLoad,
)
"""Jobs that draft with the setting's drafter whatever their methods; they have no such key."""


def check_values(config: DictConfig) -> None:
    """Refuse what no pair could decode with.

    Raises:
        CastError: a value below its least, no finite number or too large; a list that is empty or names one twice;
            values that exclude each other; a method without its head or widths; a key
            without a value, other than `inputs`.
    """
    deleted = OmegaConf.get_type(config).__dataclass_fields__.keys() - config.keys()
    if deleted:
        raise CastError(f"{min(deleted)} is deleted; give it a value instead")
    missing = {key for key in OmegaConf.missing_keys(config) if not key.startswith("inputs.")}
    if missing:
        raise CastError(f"no value for {min(missing)}; set it in conf/ or as an override")
    _check_methods(config)
    if config.device.threads < 1:
        raise CastError(f"device.threads must be 1 or more, not {config.device.threads}")
    for key in config:
        value = None if OmegaConf.is_missing(config, key) else config[key]
        _check_numbers(key, list(value) if OmegaConf.is_list(value) else [value])
    if config.get("top_p") is not None and config.top_p > 1:
        raise CastError(f"top_p must be 1 or less, not {config.top_p}")
    for key in ABOVE_0:
        if config.get(key) is not None and config[key] <= 0:
            raise CastError(f"{key} must be above 0, or null, not {config[key]}")
    _check_together(config)


def drafts(config: DictConfig) -> bool:
    """Whether a job drafts with the setting's own drafter by blocks, as the chain and the tree do."""
    methods = config.get("methods")
    if methods is None:
        return issubclass(OmegaConf.get_type(config), DRAFTING)
    return config.experiment.loads_models and bool({"dflash", "cast"} & set(methods))


def _check_methods(config: DictConfig) -> None:
    methods, kind = config.get("methods") or (), OmegaConf.get_type(config)
    others = [method.value for method in methods if method not in WITHOUT_OPTIONS]
    if issubclass(kind, schema.GreedyEquivalence) and others:
        raise CastError(
            f"{config.experiment.name} compares {', '.join(WITHOUT_OPTIONS)}, not {others[0]}; leave it out of methods "
            "(drafter_comparison holds every method's outputs against plain decoding)"
        )
    for method in others:
        if method in ("eagle3", "dart") and not config.baselines.get(method):
            raise CastError(
                f"setting {config.setting.name} has no {method} head; give it one in baselines.{method}, "
                "or leave the method out"
            )
    for method in set(config.baselines) & set(WITHOUT_OPTIONS):
        raise CastError(
            f"baselines.{method}: {method} drafts with the setting's drafter; name the head there, or leave it out"
        )
    if issubclass(kind, schema.WidthSweep):
        _check_options(config, others)
    if drafts(config) and config.drafter.source == "none":
        raise CastError(
            f"{config.experiment.name} drafts, and setting {config.setting.name} has no drafter; give it one, or time "
            "its target alone (latency_probe; hybrid_probe where layers are recurrent)"
        )


def _check_options(config: DictConfig, methods: list[str]) -> None:
    for method, own in config.method_options.items():
        if method not in schema.Method.__members__:
            raise CastError(f"method_options names {method!r}; methods: {', '.join(schema.Method.__members__)}")
        if method in WITHOUT_OPTIONS:
            raise CastError(f"method_options.{method}: {method} has no options; its widths are those of budgets")
        if method not in methods:
            continue
        widths = own.get("budgets")
        if not OmegaConf.is_list(widths) or not all(type(width) is int for width in widths):
            raise CastError(f"method_options.{method}.budgets must be a list of whole numbers, not {widths!r}")
        _check_numbers(f"method_options.{method}.budgets", list(widths))
    for method in methods:
        if method not in config.method_options:
            raise CastError(
                f"method {method} has no widths; give it some, as in '+method_options.{method}={{budgets: [15]}}'"
            )


def _check_numbers(key: str, values: list) -> None:
    """Those of one key, which may be a single one."""
    if not values:
        raise CastError(f"{key} is empty; give at least one value")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise CastError(f"{key} names {value} twice; each cell is measured once")
        if not isinstance(value, int | float):
            continue
        if not abs(value) < 2**63:  # NaN refused as well
            raise CastError(f"{key} must be a finite number that fits 64 bits, not {value}")
        kind = key.rpartition(".")[2]
        if value < SMALLEST.get(kind, value):
            raise CastError(f"{key} must be {SMALLEST[kind]} or more, not {value}")
        if kind in TREES and value > MOST_NODES:
            raise CastError(f"{key} must be {MOST_NODES} or less, not {value}")


def _check_together(config: DictConfig) -> None:
    """Values that are right one by one and not together."""
    kind, seeds = OmegaConf.get_type(config), config.get("seeds")
    if seeds and config.seed not in (schema.Job.seed, seeds[0]):
        raise CastError(
            f"seed={config.seed} does nothing in {config.experiment.name}, which runs seeds={list(seeds)}; "
            f"give seeds=[{config.seed}] as well"
        )
    if issubclass(kind, (schema.TotalVariation, schema.SamplingUnderLoad)) and config.temperature == 0:
        raise CastError(f"{config.experiment.name} compares sampled tokens; temperature must be above 0")
    if issubclass(kind, schema.Replay):
        if config.requests < config.batch_size:
            raise CastError(f"a batch of {config.batch_size} is drawn from requests={config.requests}; give as many")
        if max(config.budgets) > config.largest_budget:
            raise CastError(
                f"budgets has {max(config.budgets)}, above largest_budget={config.largest_budget}; raise that"
            )
    if issubclass(kind, schema.Serving) and any(variant.endswith("/priced") for variant in config.variants):
        priced = list(config.priced_packed_tokens)
        if min(priced) != 1 or len(priced) < 2:
            raise CastError(f"priced_packed_tokens must begin at 1 (a root alone) and go on; got {priced}")
    if issubclass(kind, schema.Serving) and config.requests is not None and config.requests < max(config.active):
        raise CastError(
            f"requests={config.requests} never fill {max(config.active)} active slots; give as many, or fewer slots"
        )
