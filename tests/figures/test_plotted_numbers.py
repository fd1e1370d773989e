"""The numbers in the CSVs, against values worked out by hand."""

import pandas as pd
import pytest
from synthetic_records import decode_row, latency_rows
from test_serving_artefacts import stored, tax_rows

from cast.experiments.records import WIDTH_TAX
from figures import data, fig2, fig3, fig5, fig6, table2, table5, table7, table8, table9, table12

S = "smollm2_bf16"
# ms/token of two prompts, each taken three times, for each method and width, and the committed length R of both.
TIMES = {
    ("autoregressive", 0): ([60.0, 40.0], 1.0),
    ("dflash", 15): ([30.0, 20.0], 1.9),
    ("cast", 15): ([24.0, 16.0], 2.5),
    ("cast", 31): ([20.0, 20.0], 3.0),
    ("cast", 127): ([40.0, 60.0], 3.8),
}
# Latency 40 + n / 2, but 10 ms more at n = 128: endpoints and least squares differ.
MEDIANS = {1: 40.5, 16: 48.0, 64: 72.0, 128: 114.0}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    from synthetic_records import StudyFolder

    folder = StudyFolder(tmp_path_factory.mktemp("numbers") / "study")
    folder.width(S, 31)
    folder.probe(S, latency_rows(S, MEDIANS))
    for domain, factor in (("math", 1.0), ("code", 2.0)):
        rows = [
            decode_row(S, domain, method, budget, prompt, factor * ms, r)
            for (method, budget), (times, r) in TIMES.items()
            for prompt, ms in enumerate(3 * times)
        ]
        # A traced repeat is slower and must not count.
        rows.append(decode_row(S, domain, "cast", 31, 0, 500.0, 3.0, repeat=1, traced=True, draft_ms_per_round=1.0))
        folder.sweep(S, domain, rows, wall_s=150.0)
    return data.load(folder.root)


def ours(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["source"] == "ours"]


def test_table12(study):
    rows = ours(table12.build(study).data).set_index(["domain", "method", "width"])
    assert rows.loc[("math", "autoregressive", 0), "ms_per_token"] == pytest.approx(50)
    assert rows.loc[("math", "dflash", 15), "ms_per_token"] == pytest.approx(25)
    assert rows.loc[("code", "cast", 31), "ms_per_token"] == pytest.approx(40)
    assert rows.loc[("math", "cast", 31), "speedup"] == pytest.approx(2.5)
    best = ("math", "cast", 31)
    assert rows.loc[best, "gain_percent"] == pytest.approx(25)
    assert rows.loc[best, "gain_low_percent"] < 25 < rows.loc[best, "gain_high_percent"]
    # 95 committed tokens in round(95 / 1.9) = 50 rounds.
    assert rows.loc[("math", "dflash", 15), "r_pooled"] == pytest.approx(1.9)
    assert "not part of this width_sweep" in rows.loc[("math", "cast", 63), "note"]


def test_table8_and_figures(study):
    rows = ours(table8.build(study).data).set_index(["domain", "width"])
    assert rows.loc[("math", 15), "gain_percent"] == pytest.approx(25)
    assert rows.loc[("math", 31), "gain_percent"] == pytest.approx(25)
    assert rows.loc[("code", 127), "gain_percent"] == pytest.approx(-50)
    assert rows.loc[("math", 31), "predicted"]
    points = ours(fig3.plotted(study)).set_index(["domain", "width"])
    assert points.loc[("code", 15), "speedup_over_dflash"] == pytest.approx(1.25)
    assert points.loc[("code", 15), "low"] == pytest.approx(1.25)  # every resample has the same ratio
    assert points.loc[("math", 127), "low"] < 0.5 < points.loc[("math", 127), "high"]
    bars = ours(fig5.plotted(study)).set_index("domain")
    assert (bars.loc["math", "gain_percent"], bars.loc["math", "width"]) == (pytest.approx(25), 15)


def test_table8_marks_oracle_and_prediction(study):
    row = next(row for row in table8.build(study).rows if row.cells[:2] == [S, "math"])
    by_width = dict(zip(table8.build(study).header[2:], row.cells[2:], strict=True))
    # Of equal gains the narrower width is the oracle.
    assert (by_width["N=15"].bold, by_width["N=15"].underline) == (True, False)
    assert (by_width["N=31"].bold, by_width["N=31"].underline) == (False, True)
    assert by_width["N=63"].missing == "not part of this width_sweep"


def test_table7(study):
    rows = ours(table7.build(study).data).set_index("domain")
    row = rows.loc["code"]
    assert [row[f"{method}_ms_per_token"] for method in ("autoregressive", "dflash", "cast")] == pytest.approx(
        [100, 50, 40]
    )
    assert row["gain_percent"] == pytest.approx(25)
    assert row["gain_low_percent"] < 25 < row["gain_high_percent"]
    assert row["cast_r_prompt_mean"] == pytest.approx(95 / 32)
    assert row["gain_low_repeat_percent"] == pytest.approx(25)  # no prompt loops
    assert row["predicted_width"] == 31


def test_table9(study):
    row = ours(table9.build(study).data).set_index("domain").loc["math"]
    assert row["dflash_r_pooled"] == pytest.approx(1.9)
    assert row["cast_r_pooled"] == pytest.approx(2.5)
    assert row["gain_percent"] == pytest.approx(25)
    assert row["width"] == 15


def test_table2(study):
    row = ours(table2.build(study).data).iloc[0]
    assert (row["predicted_width"], row["oracle_width"], row["largest_width"]) == (31, 15, 127)
    assert row["gain_percent"] == pytest.approx(25)
    assert row["gap_points"] == pytest.approx(0)
    assert row["gap_low"] < 0
    assert row["largest_gain_percent"] == pytest.approx(-50)
    assert row["probe_and_scores_wall_s"] == 80
    assert row["sweep_wall_s"] == 300


def test_table5_and_figure2(study):
    rows = ours(table5.build(study).data)
    latency = rows[rows["quantity"] == "latency_ms"].set_index("packed_tokens")
    assert latency.loc[64, "value"] == pytest.approx(72)
    assert (latency.loc[64, "q25"], latency.loc[64, "q75"]) == pytest.approx((0.99 * 72, 1.01 * 72))
    slope = rows.set_index("quantity")["value"]
    assert slope["slope_endpoints_ms_per_token"] == pytest.approx(66 / 112)
    # Over n = 16, 64, 128 the deviations from the means 208/3 and 78 give 3744 / 6314.67.
    assert slope["slope_least_squares_ms_per_token"] == pytest.approx(0.59290541)
    assert slope["draft_ms"] == pytest.approx(9)
    curve = ours(fig2.plotted(study)).set_index("packed_tokens")
    assert curve.loc[128, "relative"] == pytest.approx(114 / 48)
    assert curve.loc[16, "relative"] == 1
    theirs = fig2.plotted(study).query("source == 'paper' and setting == 'blackwell-qwen3_8b'")
    assert theirs.set_index("packed_tokens").loc[128, "relative"] == pytest.approx(30.3 / 21.9)


def test_figure6_relates_ranges_to_the_median_at_one_packed_token(folder):
    stored(folder, "width_tax", tax_rows(), WIDTH_TAX, domain="random")
    cells = ours(fig6.plotted(data.load(folder.root))).set_index(["component", "batch", "packed_tokens"])
    cell = cells.loc["verify_dense", 8, 64]
    # Calls of 0.9, 1 and 1.1 times 573.2 ms, against 18.8 ms at W = 1.
    expected = [100 * (factor * 573.2 / 18.8 - 1) for factor in (1.0, 0.92, 1.08)]
    assert [cell[name] for name in fig6.OVER_ONE] == pytest.approx(expected)


def test_the_paper_never_fills_our_cells(study):
    for module in (table2, table5, table7, table8, table9, table12):
        table = module.build(study)
        assert set(ours(table.data)["setting"]) == {S}
        assert S not in set(table.data.loc[table.data["source"] == "paper", "setting"])
        assert [row.paper for row in table.rows] == sorted(row.paper for row in table.rows)
