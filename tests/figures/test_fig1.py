"""Figure 1: which row a node stands in, and the statements when there is nothing to draw."""

import pandas as pd
import pytest
from synthetic_records import identity

from cast.experiments.records import EXAMPLE, write_records
from figures import fig1
from figures.__main__ import main

TREE = [(0, -1), (1, 0), (2, -1), (3, 1), (4, 2), (5, 0)]  # (node, parent)


def example_rows():
    common = identity("worked_example", "smollm2_fp32", "math") | {"prompt_id": "math/0", "round": 3, "budget": 6}
    depth = {-1: 0}
    for node, parent in TREE:
        depth[node] = depth[parent] + 1
    rows = [{"kind": "root", "depth": 0, "token_id": 1, "token": " so", "accepted": True}]
    for position in (1, 2, 3):
        rows += [
            {"kind": "candidate", "depth": position, "token_id": 10 * position + rank, "token": f" c{rank}",
             "rank": rank, "log_probability": -float(rank)}
            for rank in (1, 2, 3)
        ]  # fmt: skip
        rows.append(
            {"kind": "chain", "depth": position, "token_id": 10 * position + 1, "token": " c1", "node": position - 1,
             "parent": position - 2, "accepted": False}
        )  # fmt: skip
        rows.append({"kind": "target", "depth": position, "token_id": 10 * position + 2, "token": "$c2"})
    rows += [
        {"kind": "tree", "depth": depth[node], "token_id": 10 * depth[node] + 1 + node % 3, "token": "\n", "node": node,
         "parent": parent, "log_probability": -1.0 - node, "accepted": node in (2, 4)}
        for node, parent in TREE
    ]  # fmt: skip
    return pd.DataFrame([common | row for row in rows]).reindex(columns=list(EXAMPLE.columns))


def test_the_best_child_continues_its_parents_row():
    tree = pd.DataFrame(TREE, columns=["node", "parent"])
    assert fig1._rows(tree) == [0, 0, 2, 0, 2, 1]


def test_the_example_is_drawn_and_kept_as_data(tmp_path):
    path = tmp_path / "study" / "worked_example" / "smollm2_fp32" / "math.parquet"
    path.parent.mkdir(parents=True)
    write_records(example_rows(), path, EXAMPLE)
    assert main(["fig1", "--records", str(tmp_path / "study"), "--out", str(tmp_path / "fig1")]) == 0
    data = pd.read_csv(tmp_path / "fig1.csv")
    assert data.groupby("kind").size().to_dict() == {"candidate": 9, "chain": 3, "root": 1, "target": 3, "tree": 6}
    assert (tmp_path / "fig1.png").stat().st_size > 10_000


@pytest.mark.parametrize("reason", ["", "out of memory"])
def test_nothing_to_draw_says_why(tmp_path, reason):
    (tmp_path / "study").mkdir()
    if reason:
        path = tmp_path / "study" / "worked_example" / "smollm2_fp32" / "math.parquet"
        failed = example_rows()[:1].assign(
            status="failed", reason=reason, round=None, token_id=None, token=None, accepted=None
        )
        path.parent.mkdir(parents=True)
        write_records(failed, path, EXAMPLE)
    assert main(["fig1", "--records", str(tmp_path / "study"), "--out", str(tmp_path / "fig1")]) == 0
    assert (reason or "no worked_example record") in (tmp_path / "fig1.csv").read_text()
