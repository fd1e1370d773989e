"""Log a study's figures and tables to W&B, and build the report around them: one section for each.

    python scripts/wandb_report.py study=embedded                    runs on disk, the report as JSON
    python scripts/wandb_report.py study=embedded tracking=online    a report on the server; needs a login

Needs the package wandb-workspaces (pip install -e '.[reports]').
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cast.errors import CastError
from cast.experiments.files import write_json
from jobs import tracking
from jobs.entry import run

CAPTIONS = Path("figures/captions")


def wandb_report(config: DictConfig) -> None:
    name = f"{config.study.name}-{config.scale.name}" if config.scale else config.study.name
    results = Path("results") / name
    figures, tables = (sorted(results.glob(pattern)) for pattern in ("figures/*.png", "tables/*.csv"))
    if not figures and not tables:
        raise CastError(f"{results} holds no figures and no tables; run the study first (make reproduce STUDY={name})")
    report = _report(config, name, results, [path.stem for path in figures], [path.stem for path in tables])
    tracking.track_study(config, name, results, figures, tables)
    if config.tracking.mode.value == "online":
        try:
            report.save()
            print(f"report: {report.url}")
            return
        except Exception as error:  # no login, no network: the report is kept as a file
            print(f"warning: W&B: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    output = Path(config.out or results / "wandb/report.json")
    write_json(output, json.loads(report._to_model().model_dump_json(by_alias=True)))
    print(f"report: {output}")


def _report(config: DictConfig, name: str, results: Path, figures: list[str], tables: list[str]) -> Any:
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError:
        raise CastError("wandb-workspaces is not installed; pip install -e '.[reports]'") from None

    rendered = f"Group = '{name}' and JobType = 'render'"
    blocks: list[Any] = [wr.P(config.study.about), wr.TableOfContents()]
    for artefact in [*figures, *tables]:
        panel = (
            wr.MediaBrowser(media_keys=[artefact])
            if artefact in figures
            else wr.WeavePanelSummaryTable(table_name=artefact)
        )
        blocks += [
            wr.H2(artefact),
            wr.P(_caption(artefact)),
            wr.PanelGrid(runsets=[wr.Runset(name=artefact, filters=rendered)], panels=[panel]),
        ]
    cells = sorted({path.parts[-3:-1] for path in results.glob("*/*/*.parquet")})
    runsets = [
        wr.Runset(name=f"{experiment} {setting}", filters=f"Group = '{setting}' and JobType = '{experiment}'")
        for experiment, setting in cells
    ]
    records = wr.PanelGrid(runsets=runsets, panels=[wr.WeavePanelSummaryTable(table_name="rows")])
    blocks += [wr.H2("Records"), records]
    # Without a login the server cannot name the entity; the file is for one who can.
    entity = config.tracking.entity or ("" if config.tracking.mode.value == "online" else "entity")
    return wr.Report(entity=entity, project=config.tracking.project, title=f"CAST: {name}", blocks=blocks)


def _caption(artefact: str) -> str:
    path = CAPTIONS / f"{artefact}.rst"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""


if __name__ == "__main__":
    run(wandb_report, config_name="whole_study")
