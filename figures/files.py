"""Files that are either complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete_or_absent(folder: Path) -> Iterator[Path]:
    """A scratch folder inside ``folder``; the files left in it move into ``folder`` when the block ends well.

    They are renamed one after the other only once all are written, so a killed or failed rendering leaves
    the old files as they were.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as scratch:
        yield Path(scratch)
        for path in sorted(Path(scratch).iterdir()):
            os.replace(path, folder / path.name)


def write_texts(out: Path, texts: dict[str, str]) -> list[Path]:
    """Write <out>.<suffix> for each entry {suffix: text}, all or none. Returns the paths."""
    with complete_or_absent(out.parent) as scratch:
        for suffix, text in texts.items():
            (scratch / f"{out.name}.{suffix}").write_text(text, encoding="utf-8", newline="\n")
    return [out.with_name(f"{out.name}.{suffix}") for suffix in texts]
