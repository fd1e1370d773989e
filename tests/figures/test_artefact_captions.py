"""Captions for the report: static reStructuredText that docutils reads without a complaint."""

import re
from pathlib import Path

import pytest
from docutils.core import publish_string
from test_rendering import EVERYTHING, OTHERS

FOLDER = Path(__file__).parents[2] / "figures" / "captions"


def test_every_artefact_has_a_caption():
    assert {path.stem for path in FOLDER.glob("*.rst")} == {*EVERYTHING, *OTHERS}


@pytest.mark.parametrize("name", [*EVERYTHING, *OTHERS])
def test_caption(name):
    text = (FOLDER / f"{name}.rst").read_text(encoding="utf-8")
    assert "{{" not in text
    assert "{%" not in text
    assert len(text.strip().splitlines()) == 1
    # halt_level 2: a warning is an error.
    publish_string(text, writer="html5", settings_overrides={"halt_level": 2, "report_level": 5})


def test_captions_name_no_interval_that_the_statistics_do_not_explain():
    """A caption once outlived its interval: Wilson's, of hit rates that are bootstrapped now."""
    kinds = re.compile("Wilson|Student|BCa|Clopper|bootstrap")
    explained = set(kinds.findall((FOLDER.parents[1] / "docs" / "statistics.md").read_text(encoding="utf-8")))
    named = {kind for path in FOLDER.glob("*.rst") for kind in kinds.findall(path.read_text(encoding="utf-8"))}
    assert {"Student", "bootstrap"} <= named <= explained
