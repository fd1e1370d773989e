"""A table once, written three times: CSV (full precision), Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from .data import NO_RECORDS
from .files import write_texts

NONE = "–"


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


def gain(summary: Mapping[str, float], suffix: str = "") -> str:
    """The gain of a cell or setting with its 95% interval, where it has one: "+19.8% [18.1, 21.4]".

    suffix: of the columns, e.g. "_low_repeat".
    """
    value, low, high = (summary[f"{name}{suffix}"] for name in ("gain", "gain_low", "gain_high"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return percent(value)
    return f"{percent(value)} [{100 * low:.1f}, {100 * high:.1f}]"


def gap(summary: Mapping[str, float]) -> str:
    """A gap in percentage points with its 95% interval, where it has one: "-1.7 [-2.9, -0.4]"."""
    points, low, high = (summary[f"gap_{name}"] for name in ("points", "low", "high"))
    shown = f"{points:+.1f}"
    return f"{shown} [{low:.1f}, {high:.1f}]" if math.isfinite(low) and math.isfinite(high) else shown


def write(table: Table, out: Path) -> list[Path]:
    """Write <out>.csv, <out>.md and <out>.tex, all or none."""
    csv = table.data.to_csv(index=False, lineterminator="\n")
    return write_texts(Path(out), {"csv": csv, "md": markdown(table), "tex": latex(table)})


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown; rows of the paper are italic and start with "paper:"."""
    lines = [f"**{table.title}**", "", _pipe(table.header), _pipe(["---"] * len(table.header))]
    lines += [_pipe(_markdown_row(row)) for row in table.rows]
    if not table.rows:
        lines.append(_pipe([f"not measured: {NO_RECORDS}"] + [""] * (len(table.header) - 1)))
    lines += [""] + [f"- {note}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """The table for booktabs (needs packages booktabs and xcolor); long reasons become notes below it."""
    reasons: list[str] = []
    body = []
    shown_paper = False
    for index, row in enumerate(table.rows):
        if row.paper and not shown_paper:
            shown_paper = True
            body.append(r"\midrule")
            body.append(_spanning(r"\textit{The paper's numbers (its own settings)}", table))
        cells = [_latex_cell(cell, row.paper, reasons) for cell in row.cells]
        body.append(" & ".join(cells) + r" \\")
        if index in table.rules_after and index + 1 < len(table.rows) and row.paper == table.rows[index + 1].paper:
            body.append(r"\addlinespace")
    if not table.rows:
        body.append(_spanning(f"not measured: {NO_RECORDS}", table))
    notes = [*(f"{_letter(i)}: not measured: {reason}." for i, reason in enumerate(reasons)), *table.notes]
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
            *(rf"\par\smallskip\footnotesize {_escape(note)}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _markdown_row(row: Row) -> list[str]:
    texts = []
    for index, cell in enumerate(row.cells):
        cell = cell if isinstance(cell, Cell) else Cell(cell)
        text = cell.text
        if cell.underline:
            text = f"<u>{text}</u>"
        if cell.bold:
            text = f"**{text}**"
        if row.paper and index == 0:
            text = f"*paper: {text}*"
        texts.append(text)
    return texts


def _latex_cell(cell: Cell | str, paper: bool, reasons: list[str]) -> str:
    cell = cell if isinstance(cell, Cell) else Cell(cell)
    if cell.missing:
        if cell.missing not in reasons:
            reasons.append(cell.missing)
        return rf"n.m.\textsuperscript{{{_letter(reasons.index(cell.missing))}}}"
    text = _escape(cell.text)
    if cell.underline:
        text = rf"\underline{{{text}}}"
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    return rf"\textcolor{{gray}}{{{text}}}" if paper else text


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
