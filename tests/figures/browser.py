"""Headless Chromium over its command line: what a page becomes, and what it writes to the console."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)
WIDTHS = {"desktop": 1280, "phone": 390}

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")


@dataclass(frozen=True)
class Page:
    """A page after its scripts: its document as text, and its console lines."""

    document: str
    console: list[str]

    def value(self, name: str) -> str:
        """What a script of the test left in the attribute data-<name> of the root element."""
        found = re.search(rf'<html[^>]* data-{name}="([^"]*)"', self.document)
        assert found, f"the page set no data-{name}"
        return found[1]


def opened(path: Path, profile: Path, width: int, script: str = "") -> Page:
    """Open a copy of a page, offline and at a window width, and run ``script`` in it once it has loaded."""
    copy = profile.parent / f"{profile.name}.html"
    told = "const told = document.documentElement.dataset;"
    ending = f"<script>addEventListener('load', async () => {{ {told} {script} }})</script>"
    before, body, after = path.read_text(encoding="utf-8").rpartition("</body>")
    copy.write_text(before + ending + body + after, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--disable-gpu", "--disable-extensions", "--no-first-run", "--hide-scrollbars",
        f"--user-data-dir={profile}", f"--window-size={width},900", "--virtual-time-budget=3000",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom", copy.as_uri(),
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.insert(1, "--no-sandbox")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return Page(ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line])
