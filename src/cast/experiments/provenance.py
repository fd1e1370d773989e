"""Where a record comes from: configuration, code, machine, time, and who else was using the device."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from cast.experiments.device import describe, other_users, readings

_VERSIONS = (
    "cast",
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "scipy",
    "pandas",
    "hydra-core",
    "snakemake",
)


@functools.cache
def git_state() -> tuple[str, bool]:
    """Commit of the source this package runs from, and whether files differ; ("", False) outside git.

    An untracked file counts where it can be code that measures: in ``src`` and ``scripts``.
    """
    folder = Path(__file__).resolve().parent
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "", False
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "--", ":/src", ":/scripts")
    return commit, bool(changed or new)


def _git(folder: Path, *arguments: str) -> str:
    try:
        finished = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return finished.stdout.strip() if finished.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries a number can depend on; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def code_version() -> str:
    """Digest of what measures besides the configuration: this package's source and the decoder's libraries.

    Not the git commit: a commit that touches a caption would throw an hour of measurements away.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    known = versions()
    for name in ("torch", "transformers"):
        digest.update(f"{name}={known.get(name, '')}".encode())
    return digest.hexdigest()[:16]


@dataclass
class Provenance:
    """Opened before a measurement and closed after it; `close` gives the dict that lies beside the record.

    Args:
        config: the resolved configuration as plain values.
        config_digest: of the part a measurement depends on.
        kind: ``cpu`` or ``cuda``.
        threads: CPU threads of torch.
        seed: the job's seed.
    """

    config: Mapping[str, Any]
    config_digest: str
    kind: str
    threads: int
    seed: int
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self._clock = monotonic()  # the wall clock may be set back during a job
        self._before = other_users(self.kind)
        self._readings = readings(self.kind)
        self._git = git_state()  # of the code that runs, whatever is committed meanwhile

    def close(self, *, records: int, sessions: list[str], earlier_s: float = 0.0, **extra: Any) -> dict[str, Any]:
        """The provenance; ``earlier_s`` are seconds of earlier sessions, ``extra`` goes in as it is."""
        commit, dirty = self._git
        return {
            "config": dict(self.config),
            "config_digest": self.config_digest,
            "git_commit": commit,
            "git_dirty": dirty,
            "versions": versions(),
            "device": describe(self.kind, self.threads),
            "host": socket.gethostname(),
            "seed": self.seed,
            "started": self.started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_s": round(monotonic() - self._clock + earlier_s, 3),
            "other_users_before": self._before,
            "other_users_after": other_users(self.kind),
            "readings_before": self._readings,
            "readings_after": readings(self.kind),
            "sessions": sessions,
            "records": records,
            **extra,
        }
