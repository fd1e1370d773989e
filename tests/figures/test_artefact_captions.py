"""Captions for the report: static reStructuredText that docutils reads without a complaint."""

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
