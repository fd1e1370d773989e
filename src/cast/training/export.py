"""Write a trained head in its public layout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def export_head(
    folder: Path, raw_config: dict, weights: dict[str, Tensor], dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write `config.json` and `model.safetensors`; each file is replaced only by a complete one.

    Args:
        weights: state dict of a head, in any dtype; stored in `dtype`, tables of integers as they are.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.safetensors.partial"
    save_file(
        {
            name: value.detach().to("cpu", dtype if value.is_floating_point() else value.dtype).contiguous()
            for name, value in weights.items()
        },
        partial,
        {"format": "pt"},
    )
    os.chmod(partial, 0o644)
    os.replace(partial, folder / "model.safetensors")
    partial = folder / "config.json.partial"
    partial.write_text(json.dumps(raw_config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(partial, folder / "config.json")
