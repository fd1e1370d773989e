"""The files a measurement reads, by content: weights kept on disk and prompt sets.

Composed configurations name files; these digests say what is in them. They are in Snakemake's params, in the digest
that lets a job continue, and in the provenance beside a record.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
from pathlib import Path

from omegaconf import DictConfig

from cast.errors import CastError
from cast.experiments.files import sha256_file, write_json

_CHECKPOINT = (".json", ".safetensors")
# Of a working tree; Snakemake's own folder, so that nothing new lies around.
_CACHE = Path(".snakemake/digests.json")


def checkpoint_files(*sources: str) -> list[str]:
    """Weights and configurations of checkpoints kept in folders; a hub id or the embedded target has none."""
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    return [str(path) for folder in folders for path in sorted(folder.iterdir()) if path.suffix in _CHECKPOINT]


def checkpoint_digests(config: DictConfig) -> dict[str, str]:
    """Path -> SHA-256 of every checkpoint file on disk that a job reads."""
    methods = config.get("methods") or ()
    baselines = (head.source for method in methods for head in config.baselines.get(method, {}).values())
    sources = config.target.source, config.drafter.source, *baselines
    return {path: file_digest(path) for path in checkpoint_files(*sources)}


def prompt_digest(config: DictConfig) -> str:
    """SHA-256 of the file with a job's prompts; "" without prompts, and for a set that only the hub holds."""
    domain = config.domain
    if domain is None:
        return ""
    if domain.source == "package":
        return domain.sha256 or ""  # the job refuses a file with another one
    if domain.source == "pydoc":
        return file_digest(importlib.util.find_spec("pydoc_data.topics").origin)
    path = domain.path if domain.source == "file" else None
    if domain.source == "hub" and config.data.root and domain.file:
        path = str(Path(os.path.expanduser(config.data.root), domain.file))
    try:
        return file_digest(path) if path and Path(path).is_file() else ""
    except OSError as error:
        raise CastError(f"cannot read {path} ({error.strerror}); check its permissions") from error


@functools.cache
def file_digest(path: str) -> str:
    """SHA-256 of one file, remembered across runs as long as its size and modification time stay."""
    file = Path(path).resolve()
    stat = file.stat()
    key, state = str(file), [stat.st_size, stat.st_mtime_ns]
    known = _known()
    if known.get(key, [None])[:-1] == state:
        return known[key][-1]
    digest = sha256_file(file)
    if _CACHE.parent.is_dir():
        with contextlib.suppress(CastError, OSError):  # a cache only
            write_json(_CACHE, {**_known(), key: [*state, digest]})
    return digest


def _known() -> dict[str, list]:
    try:
        content = json.loads(_CACHE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
