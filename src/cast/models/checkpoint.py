"""The files of a checkpoint: its folder, its JSON and its tensors, one line for whatever is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cast.errors import CastError, HubUnavailable

PICKLED = (
    "pickled weights are not read; convert once where you trust the file: python -c 'import torch, safetensors.torch "
    'as s; s.save_file(torch.load("pytorch_model.bin", weights_only=True), "model.safetensors")\''
)
INDEX = "model.safetensors.index.json"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
        raise kind(f"checkpoint {source} is no local folder and the hub does not serve it: {one_line(error)}") from None


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
        raise CastError(f"checkpoint {folder} has a broken {name}: {one_line(error)}") from None
    if not isinstance(config, dict):
        raise CastError(f"checkpoint {folder} has a broken {name}: it holds no JSON object")
    return config


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint folder, mapped into memory and not read yet."""
    weights: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder):
        try:
            held = load_file(file)
        except FileNotFoundError:
            raise CastError(f"checkpoint {folder} lacks {file.name}; download it again") from None
        except (SafetensorError, OSError) as error:
            raise CastError(f"checkpoint file {file} is truncated or broken: {one_line(error)}") from None
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


def check_tensors(
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


def one_line(error: Exception) -> str:
    """An error's text in one line, however it was laid out."""
    return " ".join(str(error).split())[:300] or type(error).__name__
