"""What was run: every job of the study, on what, how many prompts, how long, from which commit; from its provenance.

Not a table of the paper: it answers appendix D's questions (isolation, prompt sets, software) for the runs behind ours.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from . import tables
from .data import Study, read_json

HEADER = [
    "Experiment", "Setting", "Domain", "Prompts", "Rows", "Failed", "Wall time (s)", "Started (UTC)", "Device",
    "Commit", "Beside it",
]  # fmt: skip
DIGITS_OF_COMMIT = 10


def build(study: Study) -> tables.Table:
    records = [_record(path) for path in sorted(study.root.glob("*/*/*.parquet"))]
    data = pd.DataFrame(records)
    notes = [
        "Wall time holds loading and warming up. Beside it: other users of the device before and after the run.",
        "Model, prompts, configuration, versions and checksums of each run lie in the JSON beside its records.",
    ]
    if len(data):
        total = data["wall_s"].sum()
        failed = int(data["failed"].sum())
        notes.insert(0, f"{len(data)} runs, {total / 60:.0f} minutes of wall time, {failed} failed rows.")
    return tables.Table(
        title="What was run: device, prompts, wall time and commit of every job.",
        header=HEADER,
        rows=[_shown(record) for record in records],
        data=data if len(data) else pd.DataFrame(columns=["source", "experiment", "setting", "domain"]),
        notes=notes,
    )


def _record(path: Path) -> dict:
    rows = pd.read_parquet(path)
    beside = path.with_suffix(".json")
    told = read_json(beside) if beside.is_file() else {}
    device = told.get("device") or {}
    others = [*(told.get("other_users_before") or []), *(told.get("other_users_after") or [])]
    return {
        "source": "ours",
        "experiment": path.parent.parent.name,
        "setting": path.parent.name,
        "domain": path.stem,
        "prompts": rows["prompt_id"].nunique() if "prompt_id" in rows else 0,
        "rows": len(rows),
        "failed": int((rows["status"] == "failed").sum()),
        "wall_s": told.get("wall_s", float("nan")),
        "started": str(told.get("started", ""))[:16].replace("T", " "),
        "device": device.get("name", "") if isinstance(device, dict) else str(device),
        "driver": device.get("driver", "") if isinstance(device, dict) else "",
        "commit": str(told.get("git_commit", ""))[:DIGITS_OF_COMMIT] + ("*" if told.get("git_dirty") else ""),
        "seed": told.get("seed"),
        "other_users": len(others),
        "versions": "; ".join(f"{name} {version}" for name, version in (told.get("versions") or {}).items()),
    }


def _shown(record: dict) -> tables.Row:
    prompts = str(record["prompts"]) if record["prompts"] else tables.NONE
    texts = [record[name] or tables.NONE for name in ("started", "device", "commit")]
    numbers = [prompts, str(record["rows"]), str(record["failed"]), tables.number(record["wall_s"], 0)]
    others = str(record["other_users"]) if record["other_users"] else "nobody"
    return tables.Row([record["experiment"], record["setting"], record["domain"], *numbers, *texts, others])
