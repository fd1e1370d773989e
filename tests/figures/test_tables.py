"""One table, three forms."""

import pandas as pd

from figures import tables

TABLE = tables.Table(
    title="Gain & loss",
    header=["Setting", "N*", "Gain"],
    rows=[
        tables.Row(["a_b", tables.Cell("63", underline=True), tables.Cell("-1.5%", bold=True)]),
        tables.Row(["c", "–", tables.missing("out of memory | 50%")]),
        tables.Row(["H100 SXM", "127", "+29.5%‡"], paper=True),
    ],
    data=pd.DataFrame({"source": ["ours"], "gain_percent": [-1.5123456789]}),
    notes=["Note with 95% & more."],
)


def test_markdown():
    lines = tables.markdown(TABLE).splitlines()
    assert lines[4] == "| a_b | <u>63</u> | **-1.5%** |"
    assert lines[5] == r"| c | – | not measured: out of memory \| 50% |"
    assert lines[6] == "| *paper: H100 SXM* | 127 | +29.5%‡ |"
    assert lines[-1] == "- Note with 95% & more."


def test_latex():
    text = tables.latex(TABLE)
    assert r"\caption{Gain \& loss}" in text
    assert r"a\_b & \underline{63} & \textbf{$-$1.5\%} \\" in text
    assert r"c & -- & n.m.\textsuperscript{a} \\" in text
    assert r"a: not measured: out of memory | 50\%." in text
    assert r"\textcolor{gray}{H100 SXM} & \textcolor{gray}{127} & \textcolor{gray}{+29.5\%$\ddagger$} \\" in text
    assert r"Setting & $N^{\ast}$ & Gain \\" in text
    assert text.count("{") == text.count("}")
    assert text.index(r"\midrule") < text.index("The paper's numbers") < text.index(r"\bottomrule")


def test_csv_has_full_precision(tmp_path):
    tables.write(TABLE, tmp_path / "t")
    assert "-1.5123456789" in (tmp_path / "t.csv").read_text()


def test_a_table_without_rows_says_so():
    empty = tables.Table("Nothing", ["Setting", "Gain"], [], pd.DataFrame())
    assert "not measured: no record in this study has" in tables.markdown(empty)
    assert "not measured: no record in this study has" in tables.latex(empty)


def test_gain_without_an_interval():
    assert tables.gain({"gain": 0.1984, "gain_low": 0.1, "gain_high": 0.25}) == "+19.8% [10.0, 25.0]"
    nothing = float("nan")
    assert tables.gain({"gain": -0.02, "gain_low": nothing, "gain_high": nothing}) == "-2.0%"


def test_html_is_a_page_with_its_reasons_below():
    text = tables.html(TABLE)
    assert "<title>Gain &amp; loss</title>" in text
    assert '<td class="number"><u>63</u></td><td class="number"><b>-1.5%</b></td>' in text
    assert '<td class="number missing">n.m.<sup>a</sup></td>' in text
    assert "<li>a: not measured: out of memory | 50%.</li>" in text
    assert text.index("The paper&#x27;s numbers (its own settings)") < text.index('<tr class="paper">')
    assert "<!--" not in text
    assert "not measured: no record in this study has" in tables.html(
        tables.Table("Nothing", ["a"], [], pd.DataFrame())
    )
