"""The transcription of the paper's numbers: derived cells are recomputed from others, so a slip shows.

A printed number with d decimals stands for the interval of half a unit in its last place around it; a derived
number agrees when some inputs inside their intervals give it.
"""

import pandas as pd
import pytest

from cast.errors import CastError
from figures import paper

ROWS = {
    "table1": 96, "table2": 8, "table3": 9, "table4": 24, "table5": 56, "table6": 54, "table7": 12,
    "table8": 72, "table9": 12, "table10": 3, "table11": 28, "table12": 60, "table13": 25, "table14": 4,
    "table15": 15, "table16": 113, "table17": 59,
}  # fmt: skip
THREE_DOMAIN_SETTINGS = ["blackwell-qwen3_8b", "blackwell-qwen3_4b", "a6000-qwen3_8b", "a6000-qwen3_4b"]
H100 = ["h100_sxm-qwen3_8b", "h100_sxm-qwen3_4b"]


def between(value: float, decimals: int) -> tuple[float, float]:
    half = 0.5 * 10**-decimals
    return value - half, value + half


def ratio_interval(numerator: float, denominator: float, decimals: int) -> tuple[float, float]:
    low, high = between(numerator, decimals)
    bottom, top = between(denominator, decimals)
    return low / top, high / bottom


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] + 1e-9 and other[0] <= one[1] + 1e-9


def test_every_table_is_there_and_whole():
    assert paper.names() == sorted(ROWS, key=lambda name: int(name[5:]))
    for name, rows in ROWS.items():
        assert len(paper.table(name)) == rows, name


def test_files_say_whose_numbers_they_are():
    for name in paper.names():
        text = (paper.FOLDER / f"{name}.csv").read_text()
        assert text.startswith("# The paper's numbers, never ours."), name


def test_a_table_that_is_not_transcribed_is_one_clear_line():
    with pytest.raises(CastError, match="no paper numbers for 'table18'"):
        paper.table("table18")


def test_a_caller_cannot_change_the_numbers():
    table = paper.table("table5")
    table["latency_ms"] = 0.0
    assert (paper.table("table5")["latency_ms"] > 10).all()


def test_table12_gives_the_speedups_and_round_lengths_of_table1():
    printed = paper.table("table1").query("temperature == 0").set_index(["setting", "method", "domain"])
    table = paper.table("table12")
    plain = table[table["method"] == "autoregressive"].set_index(["setting", "domain"])["ms_per_token"]
    checked = 0
    for cell in table[(table["method"] == "dflash") | (table["width"] == 127)].itertuples():
        expected = printed.loc[cell.setting, cell.method, cell.domain]
        speedup = ratio_interval(plain[cell.setting, cell.domain], cell.ms_per_token, 2)
        assert overlap(speedup, between(expected["speedup"], 2)), cell
        assert cell.r == expected["r"], cell
        checked += 1
    assert checked == 20


def test_averages_of_table1():
    rows = paper.table("table1")
    for key, cells in rows.groupby(["setting", "temperature", "method", "width"]):
        domains, average = cells[cells["domain"] != "average"], cells[cells["domain"] == "average"].iloc[0]
        assert len(domains) == 5
        for column in ("speedup", "r"):
            assert abs(domains[column].mean() - average[column]) <= 0.01 + 1e-9, (key, column)


def test_table12_gives_the_gains_of_table2():
    times = paper.table("table12").pivot(
        index=["setting", "domain"], columns=["method", "width"], values="ms_per_token"
    )
    printed = paper.table("table2").set_index("setting")
    for setting in H100:
        gains = {
            width: 100 * (times.loc[setting]["dflash", 15] / times.loc[setting]["cast", width] - 1).mean()
            for width in (47, 63, 95, 127)
        }
        assert abs(gains[127] - printed.loc[setting, "gain_percent"]) <= 0.3
        assert max(gains, key=gains.get) == printed.loc[setting, "oracle_width"] == 127
    best = (times["dflash", 15] / times["cast", 127] - 1).max()
    assert round(100 * best) == 43


def test_table8_gives_table2():
    table = paper.table("table8")
    printed = paper.table("table2").set_index("setting")
    for setting in THREE_DOMAIN_SETTINGS:
        means = table[table["setting"] == setting].groupby("width")["gain_percent"].mean()
        here = (
            table[(table["setting"] == setting) & (table["second_host"] == 0)].groupby("width")["gain_percent"].mean()
        )
        row = printed.loc[setting]
        assert means[row["predicted_width"]] == pytest.approx(row["gain_percent"], abs=0.06)
        assert here.idxmax() == row["oracle_width"]
        assert here.max() == pytest.approx(row["oracle_gain_percent"], abs=0.06)
        assert means[127] == pytest.approx(row["gain_at_127_percent"], abs=0.08)


def test_gaps_of_table2():
    table = paper.table("table2")
    assert ((table["gain_percent"] - table["oracle_gain_percent"]).round(1) == table["gap_points"]).all()
    assert (table["gap_points"] == 0).sum() == 6
    assert table["gap_points"].min() == -1.7


def test_table7_gain_follows_from_its_times_and_equals_table8():
    swept = paper.table("table8").set_index(["setting", "domain", "width"])["gain_percent"]
    predicted = paper.table("table2").set_index("setting")["predicted_width"]
    for row in paper.table("table7").itertuples():
        low, high = ratio_interval(row.dflash_ms_per_token, row.cast_ms_per_token, 2)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(row.gain_percent, 1)), row
        assert row.gain_percent == swept[row.setting, row.domain, row.predicted_width]
        assert row.predicted_width == predicted[row.setting]


def test_table9_gain_follows_from_its_times_and_equals_table8():
    swept = paper.table("table8").set_index(["setting", "domain", "width"])["gain_percent"]
    table = paper.table("table9")
    for row in table.itertuples():
        low, high = ratio_interval(row.dflash_ms_per_token, row.tree_ms_per_token, 2)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(row.gain_percent, 1)), row
        assert row.gain_percent == swept[row.setting, row.domain, 15]
    lifts = (table["tree_r"] - table["dflash_r"]).round(2)
    assert (lifts.min(), lifts.max()) == (0.69, 1.17)
    assert (table["gain_percent"].min(), table["gain_percent"].max()) == (5.9, 29.2)


def test_width_beyond_shape_adds_what_the_text_says():
    table7 = paper.table("table7").set_index(["setting", "domain"])["gain_percent"]
    table9 = paper.table("table9").set_index(["setting", "domain"])["gain_percent"]
    extra = (table7 - table9).loc[["blackwell-qwen3_8b", "blackwell-qwen3_4b"]].round(1)
    assert len(extra) == 6
    assert (extra.min(), extra.max()) == (4.7, 12.1)
    assert extra.mean() == pytest.approx(9.05)


def test_table5_gives_the_growth_of_the_text():
    latency = paper.table("table5").pivot(index="setting", columns="packed_tokens", values="latency_ms")
    growth = (100 * (latency[64] / latency[16] - 1)).round(1)
    assert growth["blackwell-qwen3_8b"] == 12.3
    assert growth.drop("blackwell-qwen3_8b").between(1.2, 3.7).all()
    step = latency[128] / latency[96] - 1
    assert step.idxmax() == "blackwell-qwen3_8b"
    assert step.drop("blackwell-qwen3_8b").between(-0.032, 0.019).all()


def test_table6_slopes_are_endpoint_slopes():
    for (setting, prefix), rows in paper.table("table6").groupby(["setting", "prefix_tokens"]):
        latency = rows[rows["quantity"] == "latency_ms"].set_index("packed_tokens")["value"]
        slope = rows.loc[rows["quantity"] == "slope_ms_per_token", "value"].iloc[0]
        rise = latency[128] - latency[16]
        possible = ((rise - 0.1) / 112, (rise + 0.1) / 112)
        assert overlap(possible, between(slope, 3)), (setting, prefix)


@pytest.mark.parametrize("name", ["table16", "table17"])
def test_averages_of_tables_16_and_17(name):
    table = paper.table(name)
    for (method, width, quantity), cells in table.groupby(["method", "width", "quantity"]):
        if quantity == "ms_per_token":
            continue
        domains, average = cells[cells["domain"] != "average"], cells[cells["domain"] == "average"]
        assert abs(domains["value"].mean() - average["value"].iloc[0]) <= 0.01 + 1e-9, (
            method,
            width,
            quantity,
        )


@pytest.mark.parametrize(("name", "chain"), [("table16", 10), ("table17", 16)])
def test_tables_16_and_17_give_the_gains_of_table2(name, chain):
    speedup = paper.table(name).query("quantity == 'speedup' and domain != 'average'")
    speedup = speedup.pivot(index="domain", columns=["method", "width"], values="value")
    gain = 100 * (speedup["cast", 127] / speedup["dflash", chain] - 1).mean()
    printed = paper.table("table2").set_index("setting").loc[paper.table(name)["setting"].iloc[0], "gain_percent"]
    assert abs(gain - printed) <= 0.4


def test_table3_repeats_the_sampled_gains_of_table10():
    sampled = paper.table("table3").query("temperature == 1").set_index("domain")
    printed = paper.table("table10").set_index("domain")
    columns = ["gain_percent", "low_percent", "high_percent"]
    pd.testing.assert_frame_equal(sampled[columns], printed[columns])
    for row in paper.table("table3").itertuples():
        assert row.low_percent < row.gain_percent < row.high_percent
    assert paper.table("table3").query("temperature == 0")["low_percent"].min() > 14


def test_table10_gain_follows_from_its_times():
    # The printed gain averages the seeds' gains, the times average the seeds' times.
    for row in paper.table("table10").itertuples():
        gain = 100 * (row.dflash_ms_per_token / row.cast_ms_per_token - 1)
        assert abs(gain - row.gain_percent) <= 0.3, row


def test_table4_repeats_the_speedups_of_table16():
    printed = paper.table("table16").query("quantity == 'speedup'")
    printed = printed.set_index(["method", "width", "domain"])["value"]
    for row in paper.table("table4").itertuples():
        assert printed[row.method, row.width, row.domain] == row.speedup, row


def test_table11_gives_what_its_text_says():
    latency = paper.table("table11").pivot(
        index=["setting", "prefix_tokens"], columns="packed_tokens", values="latency_ms"
    )
    entry = (latency[2] - latency[1]).round(1)
    assert entry["blackwell-qwen36_27b"].tolist() == [21.0, 21.2]
    assert entry["blackwell-qwen36_35b_a3b"].tolist() == [22.4, 22.9]
    flat = latency.loc["blackwell-qwen36_27b", 1000][[2, 16, 64, 128]]
    assert flat.max() / flat.min() < 1.05


def test_table13_gives_the_eagle3_rows_of_table1():
    table = paper.table("table13")
    plain = table[table["method"] == "autoregressive"].set_index("domain")["ms_per_token"]
    printed = paper.table("table1").query("setting == 'h100_sxm-qwen3_8b' and temperature == 0 and method == 'eagle3'")
    printed = printed.set_index(["width", "domain"])
    for row in table[table["head"] == "tengyunw"].itertuples():
        expected = printed.loc[row.width, row.domain]
        assert overlap(ratio_interval(plain[row.domain], row.ms_per_token, 2), between(expected["speedup"], 2)), row
        assert row.r == expected["r"], row


def test_table14_gain_follows_from_its_speedups():
    for row in paper.table("table14").itertuples():
        low, high = ratio_interval(row.cast_speedup, row.dflash_speedup, 2)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(row.gain_percent, 0)), row
        assert row.oracle_gain_percent >= row.gain_percent


def test_table15_seven_nodes_of_the_long_block_are_the_fastest_at_eight_packed_tokens():
    table = paper.table("table15")
    for domain, rows in table[table["packed_tokens"] == 8].groupby("domain"):
        best = rows.loc[rows["ms_per_token"].idxmin()]
        assert (best["method"], best["width"], best["block_size"]) == ("cast", 7, 16), domain
    chain = paper.table("table12").query("setting == 'h100_sxm-qwen3_8b' and method == 'dflash'").set_index("domain")
    for row in table.query("method == 'dflash' and block_size == 16").itertuples():
        assert row.r == chain.loc[row.domain, "r"]


def printed_in_text(claim: str, **keys) -> list[float]:
    rows = paper.prose()
    for column, value in {"id": claim, **keys}.items():
        rows = rows[rows[column] == value]
    return rows["value"].tolist()


def test_numbers_of_the_text_have_a_place_a_unit_and_no_twin():
    rows = paper.prose()
    assert rows["experiment"].str.fullmatch(r"E(0[1-9]|[1-3]\d|4[0-8])").all()
    assert rows[["where", "quantity", "unit", "value"]].notna().all().all()
    assert not rows.duplicated(["id", "setting", "domain", "quantity", "unit"]).any()


def test_the_text_repeats_the_tables():
    gains = paper.table("table2")["gain_percent"]
    assert printed_in_text("average_gain") == [round(gains.min()), round(gains.max())]
    assert printed_in_text("gap_to_oracle") == [-paper.table("table2")["gap_points"].min()]
    table9 = paper.table("table9")
    assert printed_in_text("shape_gain") == [table9["gain_percent"].min(), table9["gain_percent"].max()]
    lift = (table9["tree_r"] - table9["dflash_r"]).round(2)
    assert printed_in_text("shape_r") == [lift.min(), lift.max()]
    table4 = paper.table("table4").pivot(index="domain", columns=["method", "width"], values="speedup")
    lead = (100 * (table4["cast", 127] / table4["eagle3", 60] - 1)).drop("average")
    assert printed_in_text("cast_over_eagle3") == [round(lead.min()), round(lead.max())]
    assert (
        printed_in_text("long_prefix") == paper.table("table14").query("domain == 'govreport'")["gain_percent"].tolist()
    )
    for domain in ("gsm8k", "humaneval"):
        chain, tree = (printed_in_text(name, domain=domain)[0] for name in ("dart_replay_chain", "dart_replay_63"))
        low, high = ratio_interval(tree, chain, 2)
        (lift,) = printed_in_text("dart_lift_63", domain=domain)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(lift, 1))


def test_the_text_repeats_the_probes():
    table5 = paper.table("table5").pivot(index="setting", columns="packed_tokens", values="latency_ms")
    for setting in H100:
        low, high = ratio_interval(table5.loc[setting, 128], table5.loc[setting, 16], 1)
        (growth,) = printed_in_text("sxm_growth", setting=setting)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(growth, 1)), setting
    (cliff,) = printed_in_text("cliff")
    assert table5.loc["blackwell-qwen3_8b", 16:].diff().idxmax() == cliff
    slopes = paper.table("table6").query("quantity == 'slope_ms_per_token' and setting != 'h100_sxm-llama31_8b'")
    assert printed_in_text("prefix_slope") == [slopes["value"].max()]
    latency = paper.table("table11").pivot(
        index=["setting", "prefix_tokens"], columns="packed_tokens", values="latency_ms"
    )
    flat = latency.loc["blackwell-qwen36_27b", 1000]
    (spread,) = printed_in_text("hybrid_flat")
    assert 100 * (flat[[2, 16, 64, 128]].max() / flat[[2, 16, 64, 128]].min() - 1) < spread
    (resumes,) = printed_in_text("hybrid_growth_resumes")
    assert 100 * (flat[resumes] / flat[128] - 1) > spread
    entry = [(latency[2] / latency[1] - 1).loc[one].mean() * 100 for one in latency.index.unique("setting")]
    assert [round(one) for one in entry] == [
        one["value"] for one in paper.prose().query("id == 'hybrid_entry' and unit == 'percent'").to_dict("records")
    ]


def test_the_text_repeats_the_widths():
    table2 = paper.table("table2").set_index("setting")
    assert printed_in_text("faster_settings") == [(table2["gain_percent"] > 0).sum()]
    assert printed_in_text("matches_oracle") == [(table2["predicted_width"] == table2["oracle_width"]).sum()]
    widths = table2["predicted_width"]
    assert printed_in_text("predicted_packed_tokens") == [widths.min() + 1, widths.max() + 1]
    row = table2.loc["blackwell-qwen3_8b"]
    assert printed_in_text("too_wide") == [row["gain_at_127_percent"], row["gain_percent"]]
    assert printed_in_text("threshold_crossing")[1] == row["predicted_width"]
    swept = paper.table("table8").query("setting == 'blackwell-qwen3_8b'").groupby("width")["gain_percent"].mean()
    assert swept.nlargest(2).index.sort_values().tolist() == printed_in_text("plateau")
    assert (
        printed_in_text("second_host", setting="a6000-qwen3_4b")[0]
        == table2.loc["a6000-qwen3_4b", "gain_at_127_percent"]
    )


def test_the_text_repeats_the_other_families():
    llama = paper.table("table16").query("quantity == 'speedup' and method == 'cast' and domain != 'average'")
    late = llama[llama["width"] >= 63].groupby("domain")["value"].agg(["min", "max"])
    spreads = [ratio_interval(row["max"], row["min"], 2) for _, row in late.iterrows()]
    (flat,) = printed_in_text("llama_flat")
    assert overlap((100 * (max(spreads)[0] - 1), 100 * (max(one[1] for one in spreads) - 1)), between(flat, 1))
    coder = (
        paper.table("table17")
        .query("quantity == 'speedup'")
        .set_index(["method", "width", "domain"])["value"]
        .sort_index()
    )
    rest = (100 * coder["cast"] / coder["dflash", 16]).sort_index()
    (back,) = printed_in_text("coder_given_back")
    assert rest[95, "mbpp"] - rest[127, "mbpp"] == pytest.approx(back, abs=0.3)  # two speedups of two decimals
    (step,) = printed_in_text("coder_last_step")
    domains = ["gsm8k", "humaneval", "mbpp"]
    assert (rest[127][domains] - rest[95][domains]).mean() == pytest.approx(step, abs=0.3)


def test_the_text_repeats_itself_about_dart_and_serving():
    for domain in ("gsm8k", "humaneval"):
        narrow, wide = (printed_in_text(f"dart_replay_{budget}", domain=domain)[0] for budget in (1, 63))
        low, high = ratio_interval(wide, narrow, 2)
        (growth,) = printed_in_text("dart_growth", domain=domain)
        assert overlap((100 * (low - 1), 100 * (high - 1)), between(growth, 0)), domain
    for batch in (16, 32):
        rows = paper.prose()
        rows = rows[rows["quantity"].str.contains(f"over uniform, batch {batch}, ")].set_index("id")["value"]
        low, high = rows["ragged_over_uniform_runs"]
        assert low < rows["ragged_over_uniform"] < high, batch


def test_names_of_settings():
    settings = pd.concat([paper.table(name)["setting"] for name in paper.names()]).unique()
    assert all(paper.setting_label(setting) for setting in settings)
    assert paper.setting_label("h100_sxm-llama31_8b") == "H100 SXM, LLaMA-3.1-8B"


def test_only_the_papers_models_on_its_devices_are_its_own():
    h100 = "NVIDIA H100 80GB HBM3"
    assert paper.is_own("h100_sxm-qwen3_8b", "qwen3_8b", h100)
    assert not paper.is_own("h100_sxm-qwen3_8b", "tiny_qwen3", h100)
    assert not paper.is_own("h100_sxm-qwen3_8b", "qwen3_8b", "NVIDIA H200")
    assert not paper.is_own("smollm2_bf16", "smollm2_135m", h100)
