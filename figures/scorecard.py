"""Scorecard: one verdict for each claim of the paper and each scope of settings that this study measured.

Verdicts: reproduced, direction reproduced, not reproduced, not measured (why), and "the paper disagrees with
itself" where its own printed numbers do. What counts as reproduced is fixed in figures/claims before any result.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pandas as pd

from . import claims, consistency, paper, scorecard_page
from .data import NO_RECORDS, Study
from .files import write_texts

REPRODUCED = "reproduced"
DIRECTION = "direction reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_MEASURED = "not measured"
CONFLICT = "the paper disagrees with itself"
VERDICTS = [REPRODUCED, DIRECTION, NOT_REPRODUCED, NOT_MEASURED, CONFLICT]

EMBEDDED = "embedded: SmolLM2-135M"
MACHINERY = "tiny models: proves the machinery, says nothing about speed"
PAPERS_OWN = "the paper's models and devices"
DEVIATION = "the paper's number from ours, in half-widths of our 95% interval"


def scopes(study: Study) -> dict[str, list[str]]:
    """Settings grouped by whose models they are, so that no verdict poses as one on other models."""

    def grouped() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for setting in _every_setting(study):
            found.setdefault(_scope(study, setting), []).append(setting)
        return found

    return study.once(("scopes",), grouped)


def judge(study: Study) -> list[dict]:
    """One entry per claim and scope, with verdict, what was measured, and the claim's own words."""
    verdicts = []
    for entry in claims.entries():
        for scope, settings in (scopes(study) or {"": []}).items():
            verdicts.append(_verdict(entry, study, scope, settings))
    return verdicts


def counts(verdicts: list[dict]) -> dict[str, int]:
    """How often each verdict was given, all verdicts named."""
    found = Counter(verdict["verdict"] for verdict in verdicts)
    return {name: found.get(name, 0) for name in VERDICTS}


def shown_verdict(verdict: dict) -> str:
    """The verdict in words, with the reason, and with ours where the paper's own numbers decide."""
    if verdict["verdict"] == NOT_MEASURED:
        return f"{NOT_MEASURED} ({verdict['why']})"
    if verdict["verdict"] == CONFLICT:
        return f"{CONFLICT}: {verdict['conflict']} (here: {verdict['ours_verdict']})"
    return verdict["verdict"]


def shown_ours(verdict: dict) -> str:
    """What was measured, or why nothing was."""
    return verdict["ours"] or f"{NOT_MEASURED}: {verdict['why']}"


def preface(study: Study, verdicts: list[dict]) -> list[str]:
    """What the verdicts are about, how many of each there are, and what "reaches" means in their bars."""
    judged = "; ".join(f"{scope} ({', '.join(settings)})" for scope, settings in scopes(study).items())
    tally = ", ".join(f"{name}: {count}" for name, count in counts(verdicts).items())
    return [
        f"Judged on: {judged or NO_RECORDS}. Except where that says the paper's models and devices, a "
        "verdict is about other models on other hardware: it tests the claim, not the paper's measurement.",
        f"{len(claims.entries())} claims, {len(verdicts)} verdicts. {tally}.",
        claims.REACHING,
    ]


def markdown(study: Study, verdicts: list[dict]) -> str:
    header = ["claim", "where", "the paper", "ours", "deviation", "verdict", "judged on"]
    lines = ["# Scorecard", ""]
    for paragraph in [*preface(study, verdicts), f"Deviation: {DEVIATION}; + where ours is larger."]:
        lines += [paragraph, ""]
    lines += [f"| {' | '.join(header)} |", "| " + " | ".join(["---"] * len(header)) + " |"]
    for verdict in verdicts:
        cells = [verdict["text"], verdict["where"], verdict["paper"], shown_ours(verdict), verdict["deviation"]]
        cells += [f"**{shown_verdict(verdict)}**", verdict["scope"] or NOT_MEASURED]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    lines += ["", "## The paper's own numbers", "", *(f"- {line}" for line in consistency.lines())]
    lines += ["", "## What counts", ""]
    for entry in claims.entries():
        lines.append(f"- {entry['text']} *Reproduced*: {entry['reproduced']}. *Direction*: {entry['direction']}.")
        lines.append(
            f"  *Applies to*: {entry['applies_to']}." + (f" {entry['caveat'].strip()}" if "caveat" in entry else "")
        )
    return "\n".join(lines) + "\n"


def page(study: Study, verdicts: list[dict]) -> str:
    """One self-contained HTML page with filters; see `scorecard_page`."""
    rows = []
    for verdict in verdicts:
        # The reason stands in the column of ours already.
        told = NOT_MEASURED if verdict["verdict"] == NOT_MEASURED else shown_verdict(verdict)
        rows.append(verdict | {"shown_verdict": told, "shown_ours": shown_ours(verdict)})
    return scorecard_page.page(rows, preface(study, verdicts), VERDICTS, consistency.lines(), DEVIATION)


def render(study: Study, out: Path) -> list[Path]:
    verdicts = judge(study)
    content = {"counts": counts(verdicts), "scopes": scopes(study), "claims": verdicts, "paper": consistency.lines()}
    texts = {
        "md": markdown(study, verdicts),
        "json": json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "html": page(study, verdicts),
    }
    return write_texts(Path(out), texts)


def _verdict(entry: dict, study: Study, scope: str, settings: list[str]) -> dict:
    measured = {"ours": "", "ours_verdict": NOT_MEASURED, "deviation": "", "settings": [], "why": NO_RECORDS}
    if settings:
        try:
            finding = claims.function(entry)(study, settings)
        except claims.NotMeasured as reason:
            measured["why"] = str(reason)
        else:
            won = REPRODUCED if finding.reproduced else DIRECTION if finding.direction else NOT_REPRODUCED
            measured = {
                "ours": finding.ours,
                "ours_verdict": won,
                "deviation": finding.deviation,
                "settings": list(finding.settings),
                "why": "",
            }
    conflict = consistency.conflict(entry["conflict"]) if "conflict" in entry else ""
    return (
        {name: entry[name] for name in claims.FIELDS}
        | {"sections": claims.sections(entry["where"]), "caveat": entry.get("caveat", ""), "scope": scope}
        | measured
        | {"conflict": conflict, "verdict": CONFLICT if conflict else measured["ours_verdict"]}
    )


def _every_setting(study: Study) -> list[str]:
    """Those of the sweep and the probe, then those that only another experiment measured."""
    return list(dict.fromkeys([*study.settings, *_first_records(study)]))


def _first_records(study: Study) -> dict[str, Path]:
    """setting -> one record file of it."""
    first: dict[str, Path] = {}
    for path in study.once(("record files",), lambda: sorted(study.root.glob("*/*/*.parquet"))):
        first.setdefault(path.parent.name, path)
    return first


def _identity(study: Study, setting: str) -> tuple[str, str]:
    """Target and device as the records name them; empty where there is none."""
    if study.target(setting) or setting not in _first_records(study):
        return study.target(setting), study.device(setting)
    path = _first_records(study)[setting]
    row = study.once(("identity", setting), lambda: pd.read_parquet(path, columns=["target", "device"]).iloc[0])
    return str(row["target"]), str(row["device"])


def _scope(study: Study, setting: str) -> str:
    target, device = _identity(study, setting)
    if "smollm2" in (target or setting).lower():
        return EMBEDDED
    if (target or setting).startswith("tiny"):
        return MACHINERY
    if paper.is_own(setting, target, device):
        return PAPERS_OWN
    return f"stand-in: {target or setting}" + (f" on {device}" if device else "")
