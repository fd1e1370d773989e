"""Loading targets and drafters: safetensors only, no remote code."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from tqdm import tqdm

from cast.errors import CastError
from cast.models.checkpoint import (
    DTYPES,
    check_tensors,
    checkpoint_folder,
    one_line,
    read_config,
    read_tensors,
)
from cast.models.drafters import new_head
from cast.models.head import DraftHead
from cast.models.pair import Pair
from cast.models.random_models import random_head, random_name, random_pair
from cast.models.target import Target, check_family, end_of_sequence
from cast.models.target_weights import EMBEDDING, tensor_shapes


def load_pair(
    target: str | Path,
    drafter: str | Path | DraftHead | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    revision: str | None = None,
    drafter_revision: str | None = None,
) -> Pair:
    """Load a target and, if named, a drafter for it.

    Args:
        target: hub id or local folder of a Llama- or Qwen3-family checkpoint in safetensors, or
            ``random:<family>``, see `cast.models.random_models`.
        drafter: hub id or local folder of a DFlash, EAGLE-3 or DART checkpoint, ``random:<head>``, a loaded head,
            or None.
        device: "auto" takes the first CUDA device, or the CPU.
        dtype: "auto" takes the dtype the target's checkpoint names, or else that of its embeddings.
        revision, drafter_revision: hub revisions; the default branch when None.

    Raises:
        CastError: a checkpoint is missing, truncated, incomplete or of an unsupported kind, or the two do
            not fit each other.
    """
    device = resolve_device(device)
    asked = resolve_dtype(dtype)
    if (family := random_name(target)) is not None:
        dtype = asked or torch.float32
        return random_pair(family, None, device=device, dtype=dtype).with_drafter(drafter)
    folder = checkpoint_folder(target, revision)
    config = target_config(folder)
    check_family(config)
    stop = _stop_token_ids(folder, config)
    tokenizer = _tokenizer(folder, config.vocab_size)
    # The drafter goes first: it is small, and a pair that does not fit should not cost a target's load.
    if named := isinstance(drafter, (str, Path)):
        drafter = load_drafter(drafter, device=device, revision=drafter_revision, target=config)
        drafter.check_fits(config)
    weights = read_tensors(folder)
    weights = check_tensors(weights, tensor_shapes(config, weights), f"target checkpoint {target}")
    dtype = asked or resolve_dtype(config.dtype or weights[EMBEDDING].dtype)
    if named:
        drafter.to(dtype)
    # The bar shows on a terminal alone, and goes when it is done.
    track = partial(tqdm, desc=f"Loading {Path(target).resolve().name}", leave=False, disable=None)
    built = Target(config, weights, stop_token_ids=stop, device=device, dtype=dtype, track=track)
    return Pair(built, tokenizer=tokenizer, name=str(target)).with_drafter(drafter)


def load_drafter(
    source: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    target=None,
) -> DraftHead:
    """Load a DFlash, EAGLE-3 or DART head from a hub id or a local folder, or draw one (``random:<head>``).

    Args:
        target: the transformers configuration of the target, which sizes a random head.

    Raises:
        CastError: missing or truncated file, another architecture, missing, unexpected or misshapen tensors.
    """
    if (name := random_name(source)) is not None:
        if target is None:
            raise CastError(f"{source} takes its sizes from a target; use load_pair or pair.with_drafter")
        return random_head(name, target, device=resolve_device(device), dtype=resolve_dtype(dtype) or torch.float32)
    folder = checkpoint_folder(source, revision)
    head = new_head(read_config(folder))
    weights = head.accept(read_tensors(folder))
    expected = head.state_dict()
    tables = {name for name, tensor in expected.items() if not tensor.is_floating_point()}
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    weights = check_tensors(weights, shapes, f"drafter checkpoint {source}", tables)
    stored = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    head.load_state_dict(weights, assign=True)
    return head.to(resolve_device(device), resolve_dtype(dtype) or stored).eval().requires_grad_(False)


def resolve_device(device: str | torch.device) -> torch.device:
    """`torch.device`, with "auto" meaning the first CUDA device where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise CastError(f"unknown device {device!r}; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CastError("device cuda was asked for, but torch sees no CUDA device")
    return device


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """A dtype that models run in, by its name or itself; None for "auto"."""
    if dtype == "auto":
        return None
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found not in DTYPES.values():
        raise CastError(f"no model runs in dtype {dtype!r}; use one of {', '.join(DTYPES)}")
    return found


def _stop_token_ids(folder: Path, config) -> tuple[int, ...]:
    generation = "generation_config.json"
    stop = read_config(folder, generation).get("eos_token_id") if (folder / generation).exists() else None
    ids = end_of_sequence(stop, config)
    if not all(type(token) is int for token in ids):
        raise CastError(f"checkpoint {folder} names end-of-sequence tokens that are no whole numbers: {ids}")
    return ids


def target_config(folder: Path):
    """The transformers configuration of a checkpoint folder.

    Raises:
        CastError: broken, or refused by transformers.
    """
    from transformers import AutoConfig

    read_config(folder)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers validates with classes of its own, which share no base
        raise CastError(f"target {folder} has a config transformers does not accept: {one_line(error)}") from None


def target_model(folder: Path, config, dtype: torch.dtype):
    """The transformers model of a checkpoint folder on the CPU, in evaluation mode.

    Raises:
        CastError: missing, broken, unexpected or misshapen weights.
    """
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (SafetensorError, OSError, ValueError, RuntimeError, ImportError) as error:
        raise CastError(f"target {folder} cannot be loaded: {one_line(error)}") from None
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(problem):
            raise CastError(
                f"target {folder} does not hold the tensors its config.json describes: "
                f"{problem.replace('_', ' ')}, the first of them {min(report[problem])}"
            )
    return model.eval().requires_grad_(False)


def _tokenizer(folder: Path, vocabulary: int):
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # as for the configuration
        raise CastError(f"target {folder} has a broken tokenizer: {one_line(error)}") from None
    if len(tokenizer) > vocabulary:
        raise CastError(
            f"the tokenizer of {folder} knows {len(tokenizer)} tokens, but the target's vocabulary has {vocabulary}"
        )
    return tokenizer
