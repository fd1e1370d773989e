"""Greedy equivalence (appendix D.2 and F): outputs of chain and tree against plain decoding, token by token.

An output departs at its first token unlike the plain one; the gap is the difference of the target's two largest
logits there. In fp32 a departure is a near-tie (gap below 1e-3, none in fp64) or a violation; in a lower precision a
departure whose prompt, method and width departs in fp32 beyond a near-tie is a violation.
"""

from __future__ import annotations

import math

import pandas as pd

from cast.experiments.records import EQUIVALENCE

from . import paper, tables
from .data import CHAIN, PLAIN, Study
from .methods import method_label
from .panels import measured

EXPERIMENT = "greedy_equivalence"
HEADER = [
    "Setting", "Domain", "Method, N", "Prompts", "Tokens compared", "As AR", "Near-ties", "Departures", "Violations",
    "fp32 agrees", "Largest gap", "Gap ≤ {near}", "Rate there", "Rate beyond",
]  # fmt: skip
_CELL = ["setting", "domain", "dtype", "method", "budget", "block_size"]
_EXACT = ("float32", "float64")
_ALL = "all"


def near_tie() -> float:
    """The largest top-two gap at which the paper saw a bf16 output depart."""
    prose = paper.prose()
    return float(prose.loc[prose["id"] == "bf16_near_tie", "value"].astype(float).iloc[0])


def build(study: Study) -> tables.Table:
    shown, data, rules, notes, compared = [], [], set(), [], []
    for place in measured(study, EXPERIMENT, EQUIVALENCE):
        if place.reason:
            shown.append(place.missing_row(len(HEADER)))
            data.append(place.record)
            continue
        compared.append(place.rows[place.rows["method"] != PLAIN])
        for _, cell in sorted(compared[-1].groupby(_CELL), key=_chain_first):
            numbers = _numbers(cell)
            shown.append(_row(numbers))
            data.append({"source": "ours"} | numbers)
        rules.add(len(shown) - 1)
    for (setting, dtype), mine in pd.concat(compared).groupby(["setting", "dtype"]) if compared else []:
        everything = _numbers(mine) | {"domain": _ALL, "method": _ALL, "budget": None, "block_size": None}
        shown.append(_row(everything))
        by_gap = _by_gap(mine)
        place = {"source": "ours", "setting": setting, "dtype": dtype, "domain": _ALL, "method": _ALL}
        data += [{"source": "ours"} | everything, *(place | interval for interval in by_gap)]
        notes.append(_told(setting, dtype, by_gap))
    rules.add(len(shown) - 1)
    for printed in _paper_records():
        shown.append(_paper_row(printed))
        data.append(printed)
    return tables.Table(
        title="Greedy outputs of chain and tree against plain decoding, token by token.",
        header=[title.format(near=f"{near_tie():g}") for title in HEADER],
        rows=shown,
        data=pd.DataFrame(data, columns=_COLUMNS),
        rules_after=rules,
        notes=[
            "As AR: outputs without a departure, of all. A departure is the first token unlike the plain output; "
            "tokens are compared up to it and including it. Near-ties: fp32 departures at a top-two logit gap below "
            "0.001 that fp64 does not show; any other is a violation. fp32 agrees: of the outputs that depart in a "
            "lower precision, those whose fp32 rerun departs nowhere.",
            f"Gap ≤ {near_tie():g}: share of the compared tokens whose top-two logit gap is that near. Rates: "
            "departures per 1,000 such tokens, and per 1,000 others.",
            *notes,
            "The paper gives its comparison in prose: no fp32 departure; over its bf16 prompts only near-ties; the "
            "gap is the one it states for batched decoding.",
        ],
    )


_COUNTS = ["prompts", "outputs", "tokens_compared", "same", "near_ties", "departures", "violations"]
_COLUMNS = [
    "source", *_CELL, *_COUNTS, "fp32_agrees", "fp32_compared", "largest_gap", "share_near_percent",
    "rate_near_per_1000", "rate_beyond_per_1000", "gap_from", "gap_to", "share_percent", "rate_per_1000", "note",
]  # fmt: skip


def _chain_first(group: tuple[tuple, pd.DataFrame]) -> tuple:
    cell = dict(zip(_CELL, group[0], strict=True))
    return cell["dtype"], cell["method"] != CHAIN, cell["budget"], cell["block_size"]


def _numbers(rows: pd.DataFrame) -> dict:
    """Of the rows of some outputs, one for each gap interval: what the table says of them together."""
    departed = rows[rows["departures"] == 1]
    outputs = rows.groupby([*_CELL, "prompt_id"]).ngroups
    compared = departed["fp32_agrees"].dropna().astype(bool)
    verdicts = departed["verdict"].value_counts()
    near = rows["gap_to"] <= near_tie()
    known = (rows["gap_to"] == near_tie()).any()
    nearby, beyond = (_rate(part) if known else math.nan for part in (rows[near], rows[~near]))
    tokens = int(rows["positions"].sum())
    return dict(rows.iloc[0][_CELL]) | {
        "prompts": rows.groupby(["domain", "prompt_id"]).ngroups,
        "outputs": outputs,
        "tokens_compared": tokens,
        "same": outputs - len(departed),
        "near_ties": int(verdicts.get("near_tie", 0)),
        "departures": int(verdicts.get("departure", 0)),
        "violations": int(verdicts.get("violation", 0)),
        "fp32_agrees": int(compared.sum()),
        "fp32_compared": len(compared),
        "largest_gap": departed["departure_gap"].max(),
        "share_near_percent": 100 * rows.loc[near, "positions"].sum() / tokens if known and tokens else math.nan,
        "rate_near_per_1000": nearby,
        "rate_beyond_per_1000": beyond,
        "note": "",
    }


def _rate(rows: pd.DataFrame) -> float:
    """Departures per 1,000 compared tokens; NaN where there were none."""
    tokens = rows["positions"].sum()
    return float(1000 * rows["departures"].sum() / tokens) if tokens else math.nan


def _by_gap(rows: pd.DataFrame) -> list[dict]:
    tokens = rows["positions"].sum()
    return [
        {"gap_from": start, "gap_to": end, "tokens_compared": int(part["positions"].sum())}
        | {"departures": int(part["departures"].sum()), "rate_per_1000": _rate(part)}
        | {"share_percent": 100 * part["positions"].sum() / tokens if tokens else math.nan}
        for (start, end), part in rows.groupby(["gap_from", "gap_to"])
    ]


def _told(setting: str, dtype: str, by_gap: list[dict]) -> str:
    """Departures over tokens by interval, up to the last one in which an output departed."""
    last = max((place for place, part in enumerate(by_gap) if part["departures"]), default=None)
    if last is None:
        return f"{setting} ({dtype}), by gap: no departure."
    parts = [
        f"{part['gap_from']:g}–{part['gap_to']:g}: {part['departures']} of {part['tokens_compared']:,}"
        for part in by_gap[: last + 1]
    ]
    rest = sum(part["tokens_compared"] for part in by_gap[last + 1 :])
    return f"{setting} ({dtype}), departures by gap: {'; '.join(parts)}; beyond: 0 of {rest:,}."


def _row(numbers: dict) -> tables.Row:
    exact = numbers["dtype"] in _EXACT
    agrees = f"{numbers['fp32_agrees']} of {numbers['fp32_compared']}" if numbers["fp32_compared"] else tables.NONE
    share = tables.number(numbers["share_near_percent"])
    return tables.Row(
        [
            f"{numbers['setting']} ({numbers['dtype']})",
            _label(numbers["domain"]),
            _method(numbers["method"], numbers["budget"]),
            str(numbers["prompts"]),
            f"{numbers['tokens_compared']:,}",
            f"{numbers['same']} of {numbers['outputs']}",
            str(numbers["near_ties"]) if exact else tables.NONE,
            tables.NONE if exact else str(numbers["departures"]),
            tables.Cell(str(numbers["violations"]), bold=numbers["violations"] > 0),
            agrees,
            tables.number(numbers["largest_gap"], 4),
            share if share == tables.NONE else f"{share}%",
            *(tables.number(numbers[f"rate_{side}_per_1000"]) for side in ("near", "beyond")),
        ]
    )


def _label(domain: str) -> str:
    return paper.DOMAIN_LABELS.get(domain, domain)


def _method(method: str, budget: int | None) -> str:
    return method if budget is None else f"{method_label(method)}, {budget}"


def _paper_records() -> list[dict]:
    """One record for each of the paper's two comparisons."""
    prose = paper.prose().set_index("id")["value"].astype(float)
    exact = {"dtype": "float32", "violations": int(prose["fp32_mismatches"])}
    rounded = {"dtype": "bfloat16", "prompts": int(prose["bf16_prompts"]), "largest_gap": near_tie()}
    return [
        {"source": "paper", "setting": "Qwen3-8B and 4B", "domain": _ALL, "method": _ALL} | row
        for row in (exact, rounded)
    ]


def _paper_row(record: dict) -> tables.Row:
    shown = dict.fromkeys(HEADER, tables.NONE)
    shown |= {"Setting": f"{record['setting']} ({record['dtype']})", "Domain": _ALL, "Method, N": _ALL}
    shown |= {
        "Prompts": str(record.get("prompts", tables.NONE)),
        "Violations": str(record.get("violations", tables.NONE)),
    }
    shown["Largest gap"] = f"≤ {record['largest_gap']:g}" if "largest_gap" in record else tables.NONE
    return tables.Row(list(shown.values()), paper=True)
