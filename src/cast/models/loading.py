"""Loading checkpoints: safetensors only, no remote code, one line for whatever is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tqdm import tqdm

from cast.errors import CastError, HubUnavailable
from cast.models.drafters import PICKLED, new_head
from cast.models.head import DraftHead
from cast.models.pair import Pair
from cast.models.random_models import random_head, random_name, random_pair
from cast.models.target import Target, check_family, end_of_sequence
from cast.models.target_weights import EMBEDDING, tensor_shapes

INDEX = "model.safetensors.index.json"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    weights = _read_safetensors(folder)
    weights = _checked(weights, tensor_shapes(config, weights), f"target checkpoint {target}")
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
    weights = head.accept(_read_safetensors(folder))
    expected = head.state_dict()
    tables = {name for name, tensor in expected.items() if not tensor.is_floating_point()}
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    weights = _checked(weights, shapes, f"drafter checkpoint {source}", tables)
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


def checkpoint_folder(source: str | Path, revision: str | None = None) -> Path:
    """The local folder of a checkpoint: the path itself, or a hub snapshot's.

    Raises:
        HubUnavailable: the repository is gated, or the hub cannot be reached.
        CastError: neither a folder nor a repository of the hub.
    """
    if not isinstance(source, (str, Path)):
        raise CastError(f"a checkpoint is named by a folder or a hub id, not {source!r}")
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_absolute() or str(source).startswith(".") or str(source).count("/") != 1:
        raise CastError(f"checkpoint {source} is neither a folder nor a hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        patterns = ["*.json", "*.safetensors", "*.txt"]
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:  # ValueError: no repository name
        # A gated repository is a RepositoryNotFoundError, too.
        misnamed = isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError)) or (
            isinstance(error, ValueError) and not isinstance(error, (OSError, LocalEntryNotFoundError))
        )
        kind = CastError if misnamed and not isinstance(error, GatedRepoError) else HubUnavailable
        raise kind(
            f"checkpoint {source} is no local folder and the hub does not serve it: {_one_line(error)}"
        ) from None


def read_config(folder: Path, name: str = "config.json") -> dict:
    """`config.json`, or another of a checkpoint folder's, as raw JSON.

    Raises:
        CastError: absent, unreadable or no JSON object.
    """
    try:
        config = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CastError(f"checkpoint {folder} has no {name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CastError(f"checkpoint {folder} has a broken {name}: {_one_line(error)}") from None
    if not isinstance(config, dict):
        raise CastError(f"checkpoint {folder} has a broken {name}: it holds no JSON object")
    return config


def _read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint folder, mapped into memory and not read yet."""
    weights: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder):
        try:
            held = load_file(file)
        except FileNotFoundError:
            raise CastError(f"checkpoint {folder} lacks {file.name}; download it again") from None
        except (SafetensorError, OSError) as error:
            raise CastError(f"checkpoint file {file} is truncated or broken: {_one_line(error)}") from None
        if twice := weights.keys() & held.keys():
            raise CastError(
                f"checkpoint {folder} holds tensor {min(twice)!r} twice, in {file.name} and in a file before it; "
                "remove the one that is not the model's"
            )
        weights |= held
    return weights


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or the shards of the index: a folder may hold files of another format beside them."""
    if (single := folder / "model.safetensors").exists():
        return [single]
    if (folder / INDEX).exists():
        shards = read_config(folder, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(map(_is_shard, shards.values())):
            raise CastError(
                f"checkpoint {folder} has a broken {INDEX}: its weight_map does not name .safetensors files beside it"
            )
        return [folder / name for name in sorted(set(shards.values()))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CastError(f"checkpoint {folder} has no .safetensors file ({PICKLED})")
    return files


def _is_shard(name: object) -> bool:
    """Whether an index may name that file: one of the checkpoint's own folder, in a message of one line."""
    return isinstance(name, str) and name.isprintable() and name == Path(name).name and name.endswith(".safetensors")


def _checked(
    weights: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]], checkpoint: str, tables: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The weights, if their names, shapes and kinds of number are as expected; else a CastError about one of them.

    Args:
        shapes: what the checkpoint's config.json describes.
        tables: names of whole-number tensors.
    """
    # Older releases of transformers saved these, too, which follow from the configuration.
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    if lacking := shapes.keys() - weights.keys():
        raise CastError(f"{checkpoint} lacks tensor {min(lacking)!r}, which its config.json describes")
    if unexpected := weights.keys() - shapes.keys():
        raise CastError(f"{checkpoint} has unexpected tensor {min(unexpected)!r}, unknown to its config.json")
    for name, tensor in weights.items():
        if tuple(tensor.shape) != shapes[name]:
            raise CastError(
                f"{checkpoint} has tensor {name!r} of shape {tuple(tensor.shape)}, where its config.json describes "
                f"{shapes[name]}"
            )
        if name not in tables and tensor.dtype not in DTYPES.values():
            raise CastError(f"{checkpoint} holds {tensor.dtype} in {name!r}; quantised weights are not supported")
    return weights


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
        raise CastError(f"target {folder} has a config transformers does not accept: {_one_line(error)}") from None


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
        raise CastError(f"target {folder} cannot be loaded: {_one_line(error)}") from None
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
        raise CastError(f"target {folder} has a broken tokenizer: {_one_line(error)}") from None
    if len(tokenizer) > vocabulary:
        raise CastError(
            f"the tokenizer of {folder} knows {len(tokenizer)} tokens, but the target's vocabulary has {vocabulary}"
        )
    return tokenizer


def _one_line(error: Exception) -> str:
    """An error's text in one line, however it was laid out."""
    return " ".join(str(error).split())[:300] or type(error).__name__
