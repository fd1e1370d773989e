"""No label covers another and none is cut, also where a study has as many settings and domains as the paper's."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.text import Text
from synthetic_records import decode_row, failed, latency_rows
from test_fig1 import example_rows
from test_other_experiments import write_replay
from test_serving_artefacts import goodput_rows, stored, tax_rows

from cast.experiments import records
from figures import data, fig1, fig2, fig3, fig4, fig5, fig6, fig7, methods, style

SETTINGS = [
    "h100_sxm-qwen3_8b", "h100_sxm-qwen3_coder_30b_a3b", "blackwell-qwen3_8b", "blackwell-qwen3_4b", "a6000-qwen3_8b",
    "a100-qwen3_8b", "h100_nvl-qwen3_8b", "h100_sxm-llama31_8b", "h100_sxm-qwen3_4b",
]  # fmt: skip
DOMAINS = ["gsm8k", "humaneval", "mtbench", "math500", "mbpp"]
CELLS = [("autoregressive", 0), ("dflash", 15), ("cast", 15), ("cast", 127)]


def test_every_method_has_a_name_and_a_colour_of_its_own():
    from cast.decode import METHODS  # torch

    assert sorted(methods.METHODS) == sorted(METHODS) == sorted(records.METHODS)
    for looks in zip(*methods.METHODS.values(), strict=True):
        assert len(set(looks)) == len(methods.METHODS)


@pytest.fixture(scope="module")
def large_study():
    """Nine settings: most were swept, some in fewer domains, one failed, two never ran (no files, for speed)."""
    decode, latency, cells = [], [], []
    for place, setting in enumerate(SETTINGS[:7]):
        latency += latency_rows(setting, {1: 20.0, 16: 22.0, 64: 25.0 + place, 128: 30.0 + 2 * place})
        for domain in DOMAINS[: 5 if place < 2 else 3]:
            rows = [decode_row(setting, domain, *cell, 0, 30.0, 2.0) for cell in CELLS]
            decode += [failed(row, "out of memory at 128 packed tokens") for row in rows] if place == 3 else rows
            cells += [
                {"setting": setting, "domain": domain, "method": method, "budget": budget, "prompts": 40 * (place != 3)}
                | {"gain": 0.3 - budget / 200 - place / 50, "gain_low": -0.5, "gain_high": 0.4}
                for method, budget in CELLS
            ]
    widths = {setting: {"width": 127} for setting in SETTINGS[:7]}
    frames = (pd.DataFrame(rows) for rows in (decode, latency))
    return data.Study(Path(), *frames, widths, cells=pd.DataFrame(cells), settings=SETTINGS, domains=DOMAINS)


def drawn(module, study, out, monkeypatch):
    """The figure as it is saved."""
    kept = []
    monkeypatch.setattr(style, "save", lambda figure, *_: kept.append(figure) or [])
    module.render(study, out)
    kept[0].canvas.draw()
    return kept[0]


def labels(figure):
    """(text, its box in pixels) of every upright label that is drawn."""
    # Ticks beyond the limits of their axis are not drawn.
    hidden = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            inside = min(limits), max(limits)
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not axes.axison or not inside[0] <= tick.get_loc() <= inside[1]:
                    hidden |= {tick.label1, tick.label2}
    shown = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip())
    renderer = figure.canvas.get_renderer()
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in shown
        if text not in hidden and text.get_rotation() in (0, 90)
    ]


def check_labels(figure, least):
    """At least so many labels, none over another and none cut."""
    found = labels(figure)
    assert len(found) > least
    covered = [
        (one, other)
        for place, (one, box) in enumerate(found)
        for other, second in found[:place]
        # A pixel of air around letters is part of their boxes.
        if min(box.x1, second.x1) - max(box.x0, second.x0) > 1 and min(box.y1, second.y1) - max(box.y0, second.y0) > 1
    ]
    assert not covered
    page = figure.bbox
    cut = [text for text, box in found if box.x0 < -1 or box.y0 < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1]
    assert not cut


@pytest.mark.parametrize("module", [fig2, fig3, fig5], ids=lambda module: module.__name__)
def test_labels_stay_apart_and_inside(module, large_study, tmp_path, monkeypatch):
    check_labels(drawn(module, large_study, tmp_path / "figure", monkeypatch), least=20)


def write_example(folder):
    path = folder.root / "worked_example" / "smollm2_fp32" / "math.parquet"
    path.parent.mkdir(parents=True)
    records.write_records(example_rows(), path, records.EXAMPLE)


def write_width_tax(folder):
    for setting in ("smollm2_fp32", "smollm2_bf16"):
        stored(folder, "width_tax", tax_rows(), records.WIDTH_TAX, setting, "random")


def write_goodput(folder):
    for setting in ("smollm2_fp32", "smollm2_bf16"):
        stored(folder, "serving_goodput", goodput_rows(), records.SERVING, setting)


@pytest.mark.parametrize(
    ("module", "write"),
    [(fig1, write_example), (fig4, write_replay), (fig6, write_width_tax), (fig7, write_goodput)],
    ids=["fig1", "fig4", "fig6", "fig7"],
)
def test_labels_of_other_experiments_stay_apart_and_inside(module, write, folder, tmp_path, monkeypatch):
    write(folder)
    check_labels(drawn(module, data.load(folder.root), tmp_path / "figure", monkeypatch), least=10)


def test_series_keep_looks_of_their_own():
    looks = [tuple(style.look(place).values()) for place in range(64)]
    assert len(set(looks)) == 64
    domains = [tuple(style.domain_style(domain).values()) for domain in data.DOMAIN_ORDER]
    assert len(set(domains)) == len(domains)
