"""Scorecard: one verdict for each claim of the paper and each scope of settings that this study measured.

Verdicts: reproduced, direction reproduced, not reproduced, not measured (why), and "the paper disagrees with
itself" where its own printed numbers do. What counts as reproduced is fixed in claims.yaml before any result.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path

import yaml

from cast.errors import CastError

from . import claims, consistency, paper
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
FIELDS = ("id", "text", "where", "paper", "compute", "reproduced", "direction", "applies_to")


def entries() -> list[dict]:
    """The claims of claims.yaml, checked: every field there, every function known, no id twice."""
    path = Path(__file__).with_name("claims.yaml")
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    for entry in loaded:
        absent = [name for name in FIELDS if not entry.get(name)]
        if absent:
            raise CastError(f"{path}: claim {entry.get('id', '?')} lacks {', '.join(absent)}; every claim has them")
        unknown = not hasattr(claims, entry["compute"]) or not hasattr(consistency, entry.get("conflict", "paper"))
        if unknown:
            raise CastError(f"{path}: claim {entry['id']} names a function that figures does not have")
    twice = [name for name, count in Counter(entry["id"] for entry in loaded).items() if count > 1]
    if twice:
        raise CastError(f"{path}: id {twice[0]} occurs twice; ids name a claim in every output")
    return loaded


def scopes(study: Study) -> dict[str, list[str]]:
    """Settings grouped by whose models they are, so that no verdict poses as one on other models."""
    grouped: dict[str, list[str]] = {}
    for setting in study.settings:
        grouped.setdefault(_scope(study, setting), []).append(setting)
    return grouped


def judge(study: Study) -> list[dict]:
    """One entry per claim and scope, with verdict, what was measured, and the claim's own words."""
    verdicts = []
    for entry in entries():
        for scope, settings in (scopes(study) or {"": []}).items():
            verdicts.append(_verdict(entry, study, scope, settings))
    return verdicts


def _verdict(entry: dict, study: Study, scope: str, settings: list[str]) -> dict:
    measured = {"ours": "", "ours_verdict": NOT_MEASURED, "settings": [], "why": NO_RECORDS}
    if settings:
        try:
            finding = getattr(claims, entry["compute"])(study, settings)
        except claims.NotMeasured as reason:
            measured["why"] = str(reason)
        else:
            won = REPRODUCED if finding.reproduced else DIRECTION if finding.direction else NOT_REPRODUCED
            measured = {
                "ours": finding.ours,
                "ours_verdict": won,
                "settings": list(finding.settings),
                "why": "",
            }
    conflict = getattr(consistency, entry["conflict"])() if "conflict" in entry else ""
    return (
        {name: entry[name] for name in FIELDS}
        | {"caveat": entry.get("caveat", ""), "scope": scope}
        | measured
        | {"conflict": conflict, "verdict": CONFLICT if conflict else measured["ours_verdict"]}
    )


def _scope(study: Study, setting: str) -> str:
    target, device = study.target(setting), study.device(setting)
    if "smollm2" in (target or setting).lower():
        return EMBEDDED
    if (target or setting).startswith("tiny"):
        return MACHINERY
    if paper.is_own(setting, target, device):
        return PAPERS_OWN
    return f"stand-in: {target or setting}" + (f" on {device}" if device else "")


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


def markdown(study: Study, verdicts: list[dict]) -> str:
    lines = ["# Scorecard", "", *_preface(study, verdicts), ""]
    lines += [
        "| claim | where | the paper | ours | verdict | judged on |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in verdicts:
        cells = [verdict["text"], verdict["where"], verdict["paper"], shown_ours(verdict)]
        cells += [f"**{shown_verdict(verdict)}**", verdict["scope"] or NOT_MEASURED]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    lines += ["", "## The paper's own numbers", "", *(f"- {line}" for line in consistency.lines())]
    lines += ["", "## What counts", ""]
    for entry in entries():
        lines.append(f"- {entry['text']} *Reproduced*: {entry['reproduced']}. *Direction*: {entry['direction']}.")
        lines.append(
            f"  *Applies to*: {entry['applies_to']}." + (f" {entry['caveat'].strip()}" if "caveat" in entry else "")
        )
    return "\n".join(lines) + "\n"


def page(study: Study, verdicts: list[dict]) -> str:
    """One self-contained HTML page: opens offline, no script."""
    rows = []
    for verdict in verdicts:
        names = ("reproduced", "direction", "applies_to")
        bars = " ".join(f"{name.replace('_', ' ').capitalize()}: {verdict[name]}." for name in names)
        claim = f"{html.escape(verdict['text'])}<details><summary>what counts</summary>{html.escape(bars)}"
        claim += f" {html.escape(verdict['caveat'])}</details>"
        texts = [
            verdict["where"],
            verdict["paper"],
            shown_ours(verdict),
            shown_verdict(verdict),
            verdict["scope"],
        ]
        cells = [f"<td>{claim}</td>", *(f"<td>{html.escape(text)}</td>" for text in texts)]
        rows.append(f'<tr class="v{VERDICTS.index(verdict["verdict"])}">{"".join(cells)}</tr>')
    preface = "".join(f"<p>{html.escape(line)}</p>" for line in _preface(study, verdicts) if line)
    header = "".join(f"<th>{name}</th>" for name in ("claim", "where", "the paper", "ours", "verdict", "judged on"))
    own = "".join(f"<li>{html.escape(line)}</li>" for line in consistency.lines())
    return _PAGE.format(preface=preface, header=header, rows="\n".join(rows), own=own)


def _preface(study: Study, verdicts: list[dict]) -> list[str]:
    judged = "; ".join(f"{scope} ({', '.join(settings)})" for scope, settings in scopes(study).items())
    tally = ", ".join(f"{name}: {count}" for name, count in counts(verdicts).items())
    return [
        f"Judged on: {judged or NO_RECORDS}. Except where that says the paper's models and devices, a "
        "verdict is about other models on other hardware: it tests the claim, not the paper's measurement.",
        "",
        f"{len(verdicts)} verdicts. {tally}.",
    ]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Scorecard</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #222; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; min-width: 60rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid #ddd; }}
th {{ background: #f4f4f4; }}
td:nth-child(5) {{ font-weight: 600; border-left: .35rem solid #9a9a9a; }}
.v0 td:nth-child(5) {{ border-color: #009E73; }}
.v1 td:nth-child(5) {{ border-color: #56B4E9; }}
.v2 td:nth-child(5) {{ border-color: #D55E00; }}
.v4 td:nth-child(5) {{ border-color: #CC79A7; }}
details {{ color: #555; font-size: .9em; }}
</style></head><body>
<h1>Scorecard</h1>
{preface}
<div class="wide"><table><thead><tr>{header}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
<h2>The paper's own numbers</h2>
<ul>{own}</ul>
</body></html>
"""


def render(study: Study, out: Path) -> list[Path]:
    verdicts = judge(study)
    content = {"counts": counts(verdicts), "scopes": scopes(study), "claims": verdicts, "paper": consistency.lines()}
    texts = {
        "md": markdown(study, verdicts),
        "json": json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "html": page(study, verdicts),
    }
    return write_texts(Path(out), texts)
