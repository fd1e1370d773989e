"""What decides the matrix of a study on this machine, found out without torch."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cast.experiments.device import cuda_gpu

# Instruction sets that multiply bf16 natively: x86 (AMX, AVX-512) and Arm.
_NATIVE_BF16 = {"amx_bf16", "avx512_bf16", "bf16"}


@functools.cache
def bf16_is_emulated(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """True when bf16 settings would run on a CPU that has no bf16 instructions.

    ``torch.ops.mkldnn._is_mkldnn_bf16_supported()`` answers the same question, but the matrix of a study
    is composed without torch, so the CPU's own flags are read. A system without ``/proc/cpuinfo`` counts
    as emulated.
    """
    if cuda_gpu():
        return False
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    flags = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return not any(_NATIVE_BF16 & set(line.split()) for line in flags[:1])
