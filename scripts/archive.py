"""Bundle a study for an archive such as Zenodo: records, provenance, figures, tables, report, and what made them.

    python scripts/archive.py study=embedded

Writes outputs/archive/<study>.zip with a list of SHA-256 sums; equal content gives an equal file.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from cast.errors import CastError
from cast.experiments.files import atomic_write
from jobs.entry import run

# Of the tree: what is needed to read the records and to measure them again.
_TREE = ("conf", "figures/paper", "CITATION.cff", "LICENSE", "README.md", "requirements.lock", "pyproject.toml")
_LEFT_OUT = ("logs", "benchmarks", "wandb")
_TIME = (1980, 1, 1, 0, 0, 0)


def archive(config: DictConfig) -> None:
    name = f"{config.study.name}-{config.scale.name}" if config.scale else config.study.name
    results = Path("results") / name
    files = [*_files(results, without=_LEFT_OUT), *(file for part in _TREE for file in _files(Path(part)))]
    if not any(file.suffix == ".parquet" for file in files):
        raise CastError(f"{results} holds no records; run the study first (make reproduce STUDY={name})")
    unfinished = [file for file in files if file.suffix == ".partial" and file.with_suffix("") not in files]
    if unfinished:
        raise CastError(f"{unfinished[0]} is unfinished; run the study to its end first (make resume STUDY={name})")
    files = [file for file in files if file.suffix != ".partial"]  # beside a failed record, for a retry
    output = Path(config.out or f"outputs/archive/{name}.zip")
    with atomic_write(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle:
        sums = []
        for file in files:
            content = file.read_bytes()
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {file}\n")
            bundle.writestr(zipfile.ZipInfo(f"{name}/{file}", _TIME), content, zipfile.ZIP_DEFLATED)
        bundle.writestr(zipfile.ZipInfo(f"{name}/SHA256SUMS", _TIME), "".join(sums))
    print(f"{output}: {len(files)} files, {output.stat().st_size / 2**20:.1f} MiB")


def _files(place: Path, without: tuple[str, ...] = ()) -> Iterator[Path]:
    if place.is_file():
        yield place
    for file in sorted(place.rglob("*")):
        relative = file.relative_to(place)
        if file.is_file() and relative.parts[0] not in without and "__pycache__" not in relative.parts:
            yield file


if __name__ == "__main__":
    run(archive, config_name="whole_study")
