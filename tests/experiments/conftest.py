"""What the protocol tests share: golden pairs and prompts, and rows as a job keeps them."""

import dataclasses
import json

import pandas as pd
import pytest

from cast.experiments.prompts import Prompt
from cast.experiments.records import read_records, write_records

IDENTITY = {
    "experiment": "test",
    "setting": "tiny",
    "device": "cpu",
    "target": "tiny",
    "drafter": "tiny",
    "domain": "golden",
    "dtype": "float32",
    "engine": "eager",
    "threads": 1,
    "host": "here",
    "session": "1",
    "status": "measured",
    "reason": "",
}


@pytest.fixture
def golden_prompts(golden):
    """The golden prompts, whose texts hold the token ids, as for a target without tokenizer."""

    def read(name):
        ids = json.loads((golden / name / "prompts.json").read_text())
        return [Prompt(id=f"golden/{i}", text=" ".join(map(str, row)), domain="golden") for i, row in enumerate(ids)]

    return read


@pytest.fixture
def stopping_at():
    """The pair without its tokenizer and with other stop tokens."""

    def change(pair, *tokens):
        target = pair.target.to(pair.dtype)
        target.stop_token_ids = tokens
        return dataclasses.replace(pair, target=target, tokenizer=None)

    return change


@pytest.fixture
def as_records(tmp_path):
    """Rows as a job would keep them: identity added, written and read under the schema."""

    def keep(rows, schema):
        frame = pd.DataFrame([IDENTITY | row for row in rows]).reindex(columns=list(schema.columns))
        write_records(frame, tmp_path / "rows.parquet", schema)
        return read_records(tmp_path / "rows.parquet", schema)

    return keep
