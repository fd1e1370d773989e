"""The width sweep's cells and the same beside another tenant of the device, on the prompts that both measured."""

from __future__ import annotations

import pandas as pd

from cast.experiments.records import DECODE

from .data import TREE, Study

EXPERIMENT = "shared_device"
SIDES = ("idle", "shared")


def common_cells(study: Study, setting: str, domain: str) -> dict[str, pd.DataFrame]:
    """The cells of one setting and domain on either side, of the prompts and the protocol that both have."""
    from cast.experiments.statistics import cell_summary  # scipy: only where records are resampled

    sides = (("idle", study.decode), ("shared", study.records(EXPERIMENT, DECODE)))
    mine = {
        side: frame[(frame["setting"] == setting) & (frame["domain"] == domain)] if len(frame) else frame
        for side, frame in sides
    }
    alike = ["prompt_id", "max_new_tokens", "block_size", "temperature"]
    measured = {side: frame[frame["status"] == "measured"] if len(frame) else frame for side, frame in mine.items()}
    common = None
    if all(len(frame) for frame in measured.values()):
        common = measured["idle"][alike].drop_duplicates().merge(measured["shared"][alike].drop_duplicates())
    if common is not None and len(common):
        mine = {side: frame.merge(common, on=alike) for side, frame in mine.items()}
    else:
        mine["idle"] = mine["idle"][:0]
    return {side: cell_summary(frame) if len(frame) else pd.DataFrame() for side, frame in mine.items()}


def trees_by_width(cells: pd.DataFrame) -> dict[int, dict]:
    """Width -> the tree's cell, where it has a gain."""
    if not len(cells):
        return {}
    trees = cells[(cells["method"] == TREE) & cells["gain"].notna()]
    return {int(row["budget"]): row for row in trees.to_dict("records")}
