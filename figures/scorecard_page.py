"""The scorecard as one HTML page: opens offline, filters by verdict, section and experiment, fits a phone."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

COLOURS = ("#009E73", "#56B4E9", "#D55E00", "#9a9a9a", "#CC79A7")
_TEMPLATE = Path(__file__).with_suffix(".html")


def page(
    verdicts: Sequence[dict], preface: Sequence[str], names: Sequence[str], own: Sequence[str], deviation: str
) -> str:
    """The whole page.

    verdicts: one dict per row, with ``shown_ours`` and ``shown_verdict`` beside the scorecard's own keys.
    names: the possible verdicts, in the order of their colours; deviation: what the numbers of that name mean.
    """
    parts = {
        "preface": "".join(f"<p>{html.escape(line)}</p>" for line in preface),
        "verdicts": _buttons(verdicts, names),
        "sections": _options(part for verdict in verdicts for part in verdict["sections"]),
        "experiments": _options(sorted({part for verdict in verdicts for part in verdict["experiments"]})),
        "scopes": _options(verdict["scope"] for verdict in verdicts if verdict["scope"]),
        "deviation": html.escape(deviation),
        "rows": "\n".join(_row(verdict, names) for verdict in verdicts),
        "own": "".join(f"<li>{html.escape(line)}</li>" for line in own),
        "colours": "\n".join(f".v{place} {{ --verdict: {colour}; }}" for place, colour in enumerate(COLOURS)),
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part).replace(f"/*{name}*/", part)
    return text


def _buttons(verdicts: Sequence[dict], names: Sequence[str]) -> str:
    shown = []
    for place, name in enumerate(names):
        count = sum(verdict["verdict"] == name for verdict in verdicts)
        shown.append(
            f'<label class="v{place}"><input type="checkbox" name="verdict" value="{place}" checked> '
            f"{html.escape(name)} <b>{count}</b></label>"
        )
    return "\n".join(shown)


def _options(values) -> str:
    return "".join(f"<option>{html.escape(value)}</option>" for value in dict.fromkeys(values))


def _row(verdict: dict, names: Sequence[str]) -> str:
    place = names.index(verdict["verdict"])
    bars = " ".join(
        f"<b>{name.replace('_', ' ').capitalize()}:</b> {html.escape(verdict[name])}."
        for name in ("reproduced", "direction", "applies_to")
    )
    caveat = html.escape(verdict["caveat"].strip())
    measures = html.escape(f"{', '.join(verdict['experiments'])} ({verdict['compute']})")
    claim = (
        f"{html.escape(verdict['text'])}<details><summary>what counts</summary>{bars} <b>From:</b> {measures}. "
        f"{caveat}</details>"
    )
    cells = {
        "claim": claim,
        "where": html.escape(verdict["where"]),
        "the paper": html.escape(verdict["paper"].strip()),
        "ours": html.escape(verdict["shown_ours"]),
        "deviation": html.escape(verdict["deviation"]),
        "verdict": html.escape(verdict["shown_verdict"]),
        "judged on": html.escape(verdict["scope"]),
    }
    data = {
        "verdict": str(place),
        "sections": json.dumps(verdict["sections"]),
        "experiments": json.dumps(verdict["experiments"]),
        "scope": verdict["scope"],
    }
    attributes = " ".join(f'data-{name}="{html.escape(value)}"' for name, value in data.items())
    shown = "".join(f'<td data-name="{name}">{text}</td>' for name, text in cells.items())
    return f'<tr id="{verdict["id"]}" class="v{place}" {attributes}>{shown}</tr>'
