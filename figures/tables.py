"""A table once, written four times: CSV (full precision), Markdown, LaTeX (booktabs) and a page of HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pandas as pd

from .files import write_texts

NONE = "–"
NOTHING = "not measured: no record in this study has what this table shows"
PAPERS_OWN = "The paper's numbers (its own settings)"
WORDS = 40
"""Characters from which a cell of a page may break into lines."""
_TEMPLATE = Path(__file__).with_name("table_page.html")


@dataclass(frozen=True)
class Cell:
    """What a reader sees in one cell. ``missing`` holds the reason where there is no number."""

    text: str
    bold: bool = False
    underline: bool = False
    missing: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a table; rows of the paper are set apart and greyed."""

    cells: list[Cell | str]
    paper: bool = False

    @property
    def shown(self) -> list[Cell]:
        return [cell if isinstance(cell, Cell) else Cell(cell) for cell in self.cells]


@dataclass
class Table:
    """A table as shown, and the data behind it.

    data: the CSV, one row per shown row or finer, numbers at full precision with units in the column
        names; ``source`` says "ours" or "paper", ``note`` why a number is missing.
    rules_after: indices of rows after which a thin rule separates blocks.
    """

    title: str
    header: list[str]
    rows: list[Row]
    data: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    rules_after: set[int] = field(default_factory=set)


def missing(reason: str) -> Cell:
    """A cell without a number, and why."""
    return Cell(f"not measured: {reason}", missing=reason)


def number(value: float | None, digits: int = 2) -> str:
    """A plain number, or a dash where there is none."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as a signed percentage: 0.198 -> "+19.8%"."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:+.{digits}f}%"


def gain(summary: Mapping[str, float], suffix: str = "", prefix: str = "") -> str:
    """The gain of a cell or setting with its 95% interval, where it has one: "+19.8% [18.1, 21.4]".

    suffix, prefix: of the columns, e.g. "_low_repeat".
    """
    value, low, high = (summary[f"{prefix}{name}{suffix}"] for name in ("gain", "gain_low", "gain_high"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return percent(value)
    return f"{percent(value)} [{100 * low:.1f}, {100 * high:.1f}]"


def gain_columns(cell: Mapping[str, float]) -> dict[str, float]:
    """A cell's gain over DFlash and its 95% interval, in percent, for the CSV."""
    return {f"{name}_percent": 100 * cell[name] for name in ("gain", "gain_low", "gain_high")}


MEDIAN_RUN = (
    "The paper's Blackwell values are each of the run with the median gain of three. Ours average a prompt's runs; "
    "where a sweep has several, the run of the median gain is given too (all of its numbers in the CSV)."
)


def with_median_run(shown: str, run: Mapping | None) -> str:
    """A cell's gain and, where it ran several times, that of the run of the median gain."""
    if run is None:
        return shown
    return f"{shown}; median of {run['median_run_of']} runs {percent(run['median_run_gain'])}"


def median_run_columns(run: Mapping | None) -> dict:
    """What `cast.experiments.statistics.median_runs` says of a cell, for the CSV; nothing of a single run."""
    found = {name: value for name, value in (run or {}).items() if name.startswith("median_run")}
    gains = {f"{name}_percent": 100 * found.pop(name) for name in list(found) if "_gain" in name}
    return gains | found


def gap(summary: Mapping[str, float]) -> str:
    """A gap in percentage points with its 95% interval, where it has one: "-1.7 [-2.9, -0.4]"."""
    points, low, high = (summary[f"gap_{name}"] for name in ("points", "low", "high"))
    shown = f"{points:+.1f}"
    return f"{shown} [{low:.1f}, {high:.1f}]" if math.isfinite(low) and math.isfinite(high) else shown


def write(table: Table, out: Path) -> list[Path]:
    """Write <out>.csv, <out>.md, <out>.tex and <out>.html, all or none."""
    csv = table.data.to_csv(index=False, lineterminator="\n")
    return write_texts(Path(out), {"csv": csv, "md": markdown(table), "tex": latex(table), "html": html(table)})


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown; rows of the paper are italic and start with "paper:"."""
    lines = [f"**{table.title}**", "", _pipe(table.header), _pipe(["---"] * len(table.header))]
    if _only_the_papers(table):
        lines.append(_pipe([NOTHING] + [""] * (len(table.header) - 1)))
    lines += [_pipe(_markdown_row(row)) for row in table.rows]
    lines += [""] + [f"- {note}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """The table for booktabs (needs packages booktabs and xcolor); long reasons become notes below it."""
    reasons: list[str] = []
    body = [_spanning(NOTHING, table)] if _only_the_papers(table) else []
    shown_paper = False
    for index, row in enumerate(table.rows):
        if row.paper and not shown_paper:
            shown_paper = True
            body.append(r"\midrule")
            body.append(_spanning(rf"\textit{{{PAPERS_OWN}}}", table))
        cells = [_latex_cell(cell, row.paper, reasons) for cell in row.shown]
        body.append(" & ".join(cells) + r" \\")
        if index in table.rules_after and index + 1 < len(table.rows) and row.paper == table.rows[index + 1].paper:
            body.append(r"\addlinespace")
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,xcolor}",
            r"\begin{table}[t]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escape(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            " & ".join(_escape(title) for title in table.header) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\smallskip\footnotesize {_escape(note)}" for note in [*_told(reasons), *table.notes]),
            r"\end{table}",
            "",
        ]
    )


def html(table: Table) -> str:
    """The table as a page that opens by itself, for the report; long reasons become notes below it."""
    reasons: list[str] = []
    columns = list(zip(*(row.shown for row in table.rows), strict=True)) or [()] * len(table.header)
    looks = ["number" if all(map(_is_number, cells)) else "" for cells in columns]
    body = [_html_heading(NOTHING, table)] if _only_the_papers(table) else []
    for index, row in enumerate(table.rows):
        if row.paper and not (index and table.rows[index - 1].paper):
            body.append(_html_heading(PAPERS_OWN, table))
        classes = " ".join(["paper"] * row.paper + ["last"] * (index in table.rules_after))
        cells = (_html_cell(cell, look, reasons) for cell, look in zip(row.shown, looks, strict=True))
        body.append(f'<tr class="{classes}">{"".join(cells)}</tr>')
    parts = {
        "title": escape(table.title),
        "header": "".join(
            f'<th class="{look}">{escape(title)}</th>' for title, look in zip(table.header, looks, strict=True)
        ),
        "body": "\n".join(body),
        "notes": "\n".join(f"<li>{escape(note)}</li>" for note in [*_told(reasons), *table.notes]),
    }
    page = _TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    return page


def _only_the_papers(table: Table) -> bool:
    """Whether no row is ours."""
    return all(row.paper for row in table.rows)


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _markdown_row(row: Row) -> list[str]:
    texts = []
    for index, cell in enumerate(row.shown):
        text = cell.text
        if cell.underline:
            text = f"<u>{text}</u>"
        if cell.bold:
            text = f"**{text}**"
        if row.paper and index == 0:
            text = f"*paper: {text}*"
        texts.append(text)
    return texts


def _latex_cell(cell: Cell, paper: bool, reasons: list[str]) -> str:
    if cell.missing:
        return rf"n.m.\textsuperscript{{{_lettered(cell.missing, reasons)}}}"
    text = _escape(cell.text)
    if cell.underline:
        text = rf"\underline{{{text}}}"
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    return rf"\textcolor{{gray}}{{{text}}}" if paper else text


def _html_heading(text: str, table: Table) -> str:
    return f'<tr><td class="heading" colspan="{len(table.header)}">{escape(text)}</td></tr>'


def _is_number(cell: Cell) -> bool:
    return bool(cell.missing or re.match(rf"[-+≤{NONE}\d]", cell.text))


def _html_cell(cell: Cell, look: str, reasons: list[str]) -> str:
    """look: of its column, "number" or nothing."""
    if cell.missing:
        return f'<td class="{look} missing">n.m.<sup>{_lettered(cell.missing, reasons)}</sup></td>'
    text = escape(cell.text)
    text = f"<u>{text}</u>" if cell.underline else text
    text = f"<b>{text}</b>" if cell.bold else text
    return f'<td class="{"words" if len(cell.text) > WORDS else look}">{text}</td>'


def _lettered(reason: str, reasons: list[str]) -> str:
    """The letter of a reason among those met so far, to which it is added."""
    if reason not in reasons:
        reasons.append(reason)
    return _letter(reasons.index(reason))


def _told(reasons: list[str]) -> list[str]:
    """The reasons as notes below a table."""
    return [f"{_letter(place)}: not measured: {reason}." for place, reason in enumerate(reasons)]


def _spanning(text: str, table: Table) -> str:
    return rf"\multicolumn{{{len(table.header)}}}{{l}}{{{text}}} \\"


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else str(index + 1)


_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", NONE: "--", "‡": r"$\ddagger$", "≤": r"$\le$",
}  # fmt: skip


def _escape(text: str) -> str:
    escaped = r"$N^{\ast}$".join("".join(_ESCAPES.get(letter, letter) for letter in part) for part in text.split("N*"))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)
