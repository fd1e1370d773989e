"""What the paper leaves open and what was chosen instead, of the measurements that a study made.

The choices are those of conf/assumptions.yaml; which of them a study rests on follows from the measurements (E01-E48)
that the provenance of its records names.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from . import tables
from .data import Study, read_json

CHOICES = Path(__file__).parents[1] / "conf" / "assumptions.yaml"
HEADER = ["Choice", "Measurements", "The paper leaves open", "Here", "Why"]


def build(study: Study) -> tables.Table:
    made = measurements(study)
    choices = [choice for choice in read_choices() if made & set(choice["experiments"])]
    records = [
        {"source": "ours", "id": choice["id"], "experiments": ", ".join(choice["experiments"])}
        | {name: " ".join(choice[name].split()) for name in ("unstated", "choice", "reason")}
        for choice in choices
    ]
    rows = [[record[name] for name in ("id", "experiments", "unstated", "choice", "reason")] for record in records]
    return tables.Table(
        title="What the paper leaves open and what was chosen, of the measurements made here.",
        header=HEADER,
        rows=[tables.Row(row) for row in rows],
        data=pd.DataFrame(records, columns=["source", "id", "experiments", "unstated", "choice", "reason"]),
        notes=[f"{len(records)} of {len(read_choices())} choices; all of them are in conf/assumptions.yaml."],
    )


def measurements(study: Study) -> set[str]:
    """The paper's measurements that the study's records yield, E01 to E48."""
    paths = [*study.root.glob("*/*/*.json"), *study.root.glob("width/*.json")]
    told = [(read_json(path).get("config") or {}).get("experiment") or {} for path in sorted(paths)]
    return {name for experiment in told for name in experiment.get("yields") or []}


def read_choices() -> list[dict]:
    return yaml.safe_load(CHOICES.read_text(encoding="utf-8"))
