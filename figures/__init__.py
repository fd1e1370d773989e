"""Figures and tables: pure functions of records, one module for each artefact of the paper.

Run as ``python -m figures fig3 --records results/embedded --out results/embedded/figures/fig3``; ``python -m figures
--help`` lists them. A figure's module has ``render(study, out)``, a table's ``build(study)``.
"""

import sys
from pathlib import Path


def artefacts(kind: str = "") -> list[str]:
    """The modules of this package that render, by kind, number and name: fig1, fig_words, table1, table_words.

    kind: "fig" or "table"; "" for both and for the scorecard.
    """
    if not kind:
        return [*artefacts("fig"), *artefacts("table"), "scorecard"]
    found = [path.stem.removeprefix(kind) for path in Path(__file__).parent.glob(f"{kind}[0-9_]*.py")]
    return [
        kind + rest for rest in sorted(found, key=lambda rest: (int(rest) if rest.isdigit() else sys.maxsize, rest))
    ]
