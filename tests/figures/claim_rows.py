"""Rows that just meet or miss the bar of a claim, and how a claim is asked."""

import pandas as pd
from synthetic_records import identity
from test_other_experiments import CHAIN_MS, S, cells

from cast.experiments.records import write_records

T = "smollm2_bf16"


def stored(folder, experiment, rows, schema, domain="math", setting=S):
    """Rows as identity and changes; every other column of the schema stays empty."""
    frame = pd.DataFrame([identity(experiment, setting, domain) | row for row in rows])
    path = folder.root / experiment / setting / f"{domain}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(frame.reindex(columns=list(schema.columns)), path, schema)


def bars(study, function):
    found = function(study, [S])
    assert found.settings == (S,)
    assert "nan" not in found.ours
    return found.reproduced, found.direction


def slower(row, factor):
    return row | {name: factor * row[name] for name in ("ms_per_token", "decode_ms")}


def uncertain(budget, gains, **changes):
    """Cells whose tree gains that much on each prompt."""
    for row in cells({budget: 0.0}, **changes):
        yield slower(row, 1 / (1 + gains[row["prompt_index"]])) if row["method"] == "cast" else row


# 12.5% by the mean over prompts, with an interval from far below 0.
UNSURE = (-0.5, 3.0, -0.5, 3.0, 0.2, 2.0)


def each(gain):
    return (gain,) * len(CHAIN_MS)


def drafted(method, budget, gains, **changes):
    """The rows of one method alone, which gains that much over the chain on each prompt."""
    rows = (row for row in uncertain(budget, gains) if row["method"] == "cast")
    return [row | {"method": method, "budget": budget} | changes for row in rows]


def of(setting, rows):
    return [row | {"setting": setting} for row in rows]


def over_both(study, function):
    found = function(study, [S, T])
    return found.reproduced, found.direction
