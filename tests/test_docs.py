"""The pages: their links, their commands and their code; the strict build where mkdocs is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def texts(kind: str, path: Path) -> list[str]:
    """Fenced blocks of one language, "" for those without."""
    return re.findall(rf"^```{kind}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_pictures_are_there(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in PAGES[1:])


def test_the_readme_is_short_and_shows_three_figures():
    text = PAGES[0].read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    assert len(re.findall(r"!\[[^\]]+\]\(docs/pictures/fig\d\.png\)", text)) == 3


def test_commands_name_what_exists():
    """Every make target, script, study and value file that a page tells to use."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        told = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text, re.MULTILINE))
        assert {name for pair in told for name in pair if name} <= targets, path.name
        for script in re.findall(r"(?:python )?(scripts/\w+\.(?:py|sh))", text):
            assert (ROOT / script).is_file(), script
        for study in re.findall(r"(?:STUDY|study)=([a-z-]+)\b", text):
            assert (ROOT / f"conf/study/{study}.yaml").is_file(), study


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_compiles_and_yaml_reads(path):
    for code in texts("python", path):
        compile(code, path.name, "exec")
    for text in texts("yaml", path):
        yaml.safe_load(text)


def test_the_width_example_runs(capsys):
    (example,) = (code for code in texts("python", ROOT / "docs/library.md") if "predict_width" in code)
    exec(compile(example, "docs/library.md", "exec"), {})
    assert capsys.readouterr().out.strip() in {"15", "31", "63", "127"}


def test_the_strict_build(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "predict_width" in (tmp_path / "site/api/width/index.html").read_text(encoding="utf-8")
