"""The scorecard in headless Chromium: offline, no console error, filters, desktop and phone; and the front page."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from browser import WIDTHS, in_a_browser, opened
from docutils.core import publish_parts

from figures import scorecard_page

ROOT = Path(__file__).parents[2]
NAMES = ["reproduced", "direction reproduced", "not reproduced", "not measured", "the paper disagrees with itself"]
SCOPE = "tiny models: proves the machinery, says nothing about speed"

# A person's clicks: a verdict off, then a section, then back.
CLICKS = """
const form = document.querySelector('form.filters');
const rows = [...document.querySelectorAll('tbody tr')];
const shown = () => rows.filter(row => row.offsetHeight > 0).map(row => row.id).join(' ');
told.first = shown();
form.querySelector('[name=verdict][value="3"]').click();
told.measured = shown();
form.elements.section.value = 'Appendix D';
form.elements.section.dispatchEvent(new Event('input', {bubbles: true}));
told.section = shown();
told.count = document.getElementById('shown').textContent;
told.address = location.hash;
form.reset();
form.elements.text.value = 'CURVES';
form.elements.text.dispatchEvent(new Event('input', {bubbles: true}));
told.text = shown();
told.overflow = document.documentElement.scrollWidth - innerWidth;
"""

# Of headings and verdicts: the words, or their parts between hyphens, that stand on two lines.
BROKEN = """
const broken = [];
for (const cell of document.querySelectorAll('th, td[data-name=verdict]')) {
  const text = cell.firstChild;
  for (const word of cell.offsetHeight ? text.data.matchAll(/[^\\s-]+/g) : []) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) broken.push(word[0]);
  }
}
told.broken = broken.join(' ');
told.overflow = document.documentElement.scrollWidth - innerWidth;
"""


def row(identifier: str, verdict: int, sections: list[str], text: str) -> dict:
    told = dict.fromkeys(("reproduced", "direction", "applies_to", "caveat", "compute", "paper", "deviation"), "told")
    return told | {
        "id": identifier, "text": text, "verdict": NAMES[verdict], "sections": sections, "where": ", ".join(sections),
        "experiments": ["width_sweep"], "scope": SCOPE, "shown_ours": "12.3% [1, 2] " * 9,
        "shown_verdict": NAMES[verdict],
    }  # fmt: skip


@pytest.fixture(scope="module")
def scorecard(tmp_path_factory) -> Path:
    rows = [
        row("one", 0, ["Abstract", "Appendix D"], "Faster in <all> settings & domains."),
        row("two", 3, ["Appendix D"], "Not measured."),
        row("three", 4, ["Section 3"], "Wider on flatter curves."),
    ]
    path = tmp_path_factory.mktemp("page") / "scorecard.html"
    path.write_text(scorecard_page.page(rows, ["Judged on nothing."], NAMES, ["A sentence."], "half-widths"))
    return path


@in_a_browser
@pytest.mark.parametrize("device", WIDTHS)
def test_the_scorecard_filters(scorecard, tmp_path, device):
    page = opened(scorecard, tmp_path / device, WIDTHS[device], CLICKS)
    assert not page.console
    assert page.value("first") == "one two three"
    assert page.value("measured") == "one three"
    assert page.value("section") == "one"
    assert page.value("count") == "1 of 3"
    assert page.value("address") == "#section=Appendix+D&amp;verdict=0%2C1%2C2%2C4"
    assert page.value("text") == "three"
    assert int(page.value("overflow")) <= 0  # nothing to scroll sideways


@in_a_browser
@pytest.mark.parametrize("width", [*WIDTHS.values(), 980], ids=[*WIDTHS, "narrowest table"])
def test_no_verdict_is_broken_within_a_word(scorecard, tmp_path, width):
    page = opened(scorecard, tmp_path / "p", width, BROKEN)
    assert page.value("broken") == ""
    assert int(page.value("overflow")) <= 0


@in_a_browser
def test_an_address_opens_a_filtered_view(scorecard, tmp_path):
    # A script that reads the address again stands for opening it.
    clicks = "location.hash = 'section=Section+3'; read(); told.shown = document.getElementById('shown').textContent;"
    assert opened(scorecard, tmp_path / "p", 800, clicks).value("shown") == "1 of 3"


def test_the_front_page_reads():
    text = (ROOT / "workflow/report/workflow.rst").read_text(encoding="utf-8")
    settings = {"halt_level": 2, "report_level": 5}
    for config, told in (({}, "embedded"), ({"study": "paper", "scale": "tiny"}, "prove the machinery")):
        shown = (
            jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text).render(snakemake={"config": config})
        )
        assert told in publish_parts(shown, writer="html", settings_overrides=settings)["html_body"]
