"""A score log on disk: what every root of a known output would have been offered, and what the target wanted there.

One row of a `SCORE_LOG` record describes a prompt; the arrays of all prompts lie in one ``.npz`` beside it, prompts
in the order of the rows. Reading needs no model and no torch.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from cast.errors import CastError
from cast.experiments.files import atomic_write
from cast.experiments.records import SCORE_LOG, read_records

_BY_TOKEN = ("output", "target_tokens", "target_gaps")
_BY_ROOT = ("tokens", "log_probs")
ARRAYS = (*_BY_TOKEN, *_BY_ROOT)
"""The arrays of a `PromptLog`, by name."""


@dataclass(frozen=True)
class PromptLog:
    """The log of one prompt. Root i is output token i; it drafts the tokens from i + 1 on.

    Attributes:
        prompt_id: of the prompt.
        new_tokens: emitted tokens, the prefill's first; rounds start at roots 0 to new_tokens - 2.
        output: int32 [T], the emitted tokens and the target's own continuation, so that every round can be
            replayed to its end: T >= new_tokens + L - 1.
        target_tokens: int32 [T], the target's arg-max at each place of ``output``, teacher-forced.
        target_gaps: float32 [T], its top-two logit gap there.
        tokens: int32 [roots, L, K], the drafter's most likely tokens at each root and depth, best first.
        log_probs: float32 [roots, L, K], their log-probabilities under the full softmax.
    """

    prompt_id: str
    new_tokens: int
    output: np.ndarray
    target_tokens: np.ndarray
    target_gaps: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray

    @property
    def departures(self) -> int:
        """Emitted tokens that are not the teacher-forced arg-max: near-ties that rounding decides."""
        emitted = slice(0, self.new_tokens)
        return int((self.output[emitted] != self.target_tokens[emitted]).sum())


def arrays_path(record: str | os.PathLike[str]) -> Path:
    """Where the arrays of a score log lie."""
    return Path(record).with_suffix(".npz")


def write_arrays(record: str | os.PathLike[str], logs: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Write the arrays of all prompts, in order, beside the record they belong to."""
    together = {name: np.concatenate([log[name] for log in logs]) for name in ARRAYS}
    with atomic_write(arrays_path(record)) as temporary:
        np.savez_compressed(temporary, **together)


def read_log(record: str | os.PathLike[str]) -> tuple[pd.DataFrame, list[PromptLog]]:
    """The rows of a score log and its prompts; no prompts where the job failed.

    Raises:
        CastError: a file is missing or damaged, or rows and arrays are not of one job.
    """
    rows = read_records(record, SCORE_LOG)
    if (rows["status"] != "measured").any():
        return rows, []
    path = arrays_path(record)
    try:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in ARRAYS}
    except FileNotFoundError:
        raise CastError(f"{path}: the arrays of {record} are missing; run its score_log job again") from None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise CastError(f"{path}: not a readable score log ({told}); run its score_log job again") from error
    ends = {"token": rows["output_tokens"].cumsum().tolist(), "root": rows["roots"].cumsum().tolist()}
    for names, end in ((_BY_TOKEN, ends["token"][-1]), (_BY_ROOT, ends["root"][-1])):
        if any(len(arrays[name]) != end for name in names):
            raise CastError(f"{path} does not belong to {record}; run its score_log job again")
    logs, token, root = [], 0, 0
    for row, next_token, next_root in zip(rows.itertuples(), ends["token"], ends["root"], strict=True):
        parts = {name: arrays[name][token:next_token] for name in _BY_TOKEN}
        parts |= {name: arrays[name][root:next_root] for name in _BY_ROOT}
        logs.append(PromptLog(prompt_id=row.prompt_id, new_tokens=int(row.new_tokens), **parts))
        token, root = next_token, next_root
    return rows, logs
