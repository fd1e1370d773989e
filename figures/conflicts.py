"""Where the paper disagrees with itself, recomputed from its printed numbers: one sentence per conflict."""

from __future__ import annotations

import pandas as pd

from . import paper
from .probe import slopes


def slope() -> str:
    found = slopes(*_curve("h100_sxm-qwen3_8b"))
    return (
        f"H100 SXM, Qwen3-8B: least squares over Table 5 gives {found['least_squares']:.4f}, endpoints "
        f"{found['endpoints']:.4f}; the text calls 0.018 a linear fit, while 0.056 on Blackwell is one"
    )


def wider_where_flatter() -> str:
    widths = paper.table("table2").set_index("setting")["predicted_width"]
    flat, steep = "blackwell-qwen3_4b", "h100_sxm-qwen3_8b"
    slope = {name: slopes(*_curve(name))["least_squares"] for name in (flat, steep)}
    return (
        f"by its own Table 5 Blackwell, Qwen3-4B is flatter ({slope[flat]:.4f} ms per token) than H100 SXM, "
        f"Qwen3-8B ({slope[steep]:.4f}), yet has the narrower N* ({widths[flat]} against {widths[steep]})"
    )


def width_tax() -> str:
    latency = dict(zip(*_curve("blackwell-qwen3_8b"), strict=True))
    growth = 100 * (latency[64] / latency[1] - 1)
    return f"Table 5, Blackwell Qwen3-8B, rises by {growth:.1f}% from 1 to 64 packed tokens, not 10%"


def round_length() -> str:
    domain = {"domain": "mtbench"}
    h100 = _cell("table12", setting="h100_sxm-qwen3_8b", method="dflash", **domain)["r"]
    blackwell = _cell("table9", setting="blackwell-qwen3_8b", **domain)["dflash_r"]
    return (
        f"greedy chain R of Qwen3-8B on MT-Bench is {h100:.2f} in Table 12 and {blackwell:.2f} in Table 9: "
        "by their ms/token a mean over prompts in one, tokens over rounds in the other"
    )


def _curve(setting: str) -> tuple[list[int], list[float]]:
    rows = paper.table("table5").query("setting == @setting")
    return list(rows["packed_tokens"]), list(rows["latency_ms"])


def _cell(table: str, **keys: str) -> pd.Series:
    rows = paper.table(table)
    for column, value in keys.items():
        rows = rows[rows[column] == value]
    return rows.iloc[0]
