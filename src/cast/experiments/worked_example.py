"""The worked example (E48, Figure 1): one round in which the tree commits more than the chain, in full.

An illustration, not a statistic: the round is the first, over prompts in order, in which the tree commits at
least `lead` tokens more than the chain of the same drafter pass; where no round does, the first of those
with the largest lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cast.decode import decode
from cast.decode.proposers import CastTree
from cast.errors import CastError
from cast.experiments.prompts import Prompt
from cast.experiments.width_sweep import encode_for
from cast.models import Pair
from cast.trees import CandidateTree
from cast.verify import GreedySelector


@dataclass(frozen=True)
class WorkedExampleSpec:
    """Where to look.

    Attributes:
        budget: nodes of the tree; the chain's own number makes both verify as many tokens.
        top_k: tokens of each position that the tree may use.
        lead: tokens that the tree must commit beyond the chain for the search to end.
    """

    budget: int
    top_k: int = 8
    lead: int = 2
    max_new_tokens: int = 64


@dataclass(frozen=True)
class _Round:
    """A drafter pass, what the tree made of it, and what the target then wanted."""

    prompt_id: str
    number: int
    root: int
    log_probs: torch.Tensor  # [L, K]
    tokens: torch.Tensor  # [L, K]
    tree: CandidateTree
    wanted: list[int]  # the target's own continuation of the root

    @property
    def chain_accepted(self) -> int:
        return _common_length(self.tokens[:, 0].tolist(), self.wanted)

    @property
    def tree_path(self) -> list[int]:
        """Nodes that the target accepts, root to leaf."""
        path, children = [], self.tree.children()
        row = 0
        for token in self.wanted:
            row = children[row].get(token)
            if row is None:
                break
            path.append(row - 1)
        return path

    @property
    def lead(self) -> int:
        return len(self.tree_path) - self.chain_accepted


class _LoggingTree(CastTree):
    """The cast method, keeping every round's tree and the candidates it came from."""

    def __init__(self, pair: Pair, budget: int, top_k: int):
        super().__init__(pair, budget, top_k, None)
        self.log: list[tuple[int, torch.Tensor, torch.Tensor, CandidateTree]] = []

    def marginals(self, features, root, trace):
        logits = super().marginals(features, root, trace)
        log_probs = logits.float().log_softmax(dim=-1)
        values, tokens = log_probs.topk(min(self.top_k, log_probs.shape[-1]), dim=-1)
        self._pending = int(root), values.cpu(), tokens.cpu()
        return logits

    def propose(self, features, root, trace=None) -> CandidateTree:
        tree = super().propose(features, root, trace)
        self.log.append((*self._pending, tree))
        return tree


def run(pair: Pair, prompts: Sequence[Prompt], spec: WorkedExampleSpec) -> list[dict[str, Any]]:
    """The rows of the example: its candidates, the chain, the tree's nodes, and the target's own tokens.

    Raises:
        CastError: no prompt has a round that can be shown.
    """
    best: _Round | None = None
    for prompt in prompts:
        for candidate in _rounds(pair, prompt, spec):
            if best is None or candidate.lead > best.lead:
                best = candidate
            if candidate.lead >= spec.lead:
                return _rows(pair, candidate)
    if best is None:
        raise CastError("no prompt has a round to show; give more prompts or a larger max_new_tokens")
    return _rows(pair, best)


def _rounds(pair: Pair, prompt: Prompt, spec: WorkedExampleSpec):
    """Rounds whose continuation is known to the end of the block; the prefill's token is the first root."""
    proposer = _LoggingTree(pair, spec.budget, spec.top_k)
    output = decode(
        pair.target,
        proposer,
        GreedySelector(),
        encode_for(pair, prompt, spec.max_new_tokens).to(pair.device),
        max_new_tokens=spec.max_new_tokens,
        stop_token_ids=frozenset(pair.target.stop_token_ids),
    )
    place = 0
    for number, (committed, (root, log_probs, tokens, tree)) in enumerate(
        zip(output.committed, proposer.log, strict=True)
    ):
        wanted = output.tokens[place + 1 :]
        if len(wanted) < len(tokens):
            return
        yield _Round(prompt.id, number, root, log_probs, tokens, tree, wanted[: len(tokens)])
        place += committed


def _rows(pair: Pair, example: _Round) -> list[dict[str, Any]]:
    common = {"prompt_id": example.prompt_id, "round": example.number, "budget": len(example.tree)}
    path = set(example.tree_path)
    rows = [_row(pair, "root", 0, example.root, accepted=True)]
    for position, (values, tokens) in enumerate(zip(example.log_probs, example.tokens, strict=True), start=1):
        for rank, (value, token) in enumerate(zip(values.tolist(), tokens.tolist(), strict=True), start=1):
            rows.append(_row(pair, "candidate", position, token, rank=rank, log_probability=value))
        accepted = position <= example.chain_accepted
        rows.append(
            _row(pair, "chain", position, tokens[0].item(), node=position - 1, parent=position - 2, accepted=accepted)
        )
        rows.append(_row(pair, "target", position, example.wanted[position - 1]))
    tree = example.tree
    for node in range(len(tree)):
        rows.append(
            _row(
                pair, "tree", int(tree.depth[node]), int(tree.tokens[node]), node=node, parent=int(tree.parent[node]),
                log_probability=float(tree.log_mass[node]), accepted=node in path,
            )
        )  # fmt: skip
    return [common | row for row in rows]


def _row(pair: Pair, kind: str, depth: int, token: int, **known: Any) -> dict[str, Any]:
    text = pair.tokenizer.decode([token]) if pair.tokenizer is not None else str(token)
    return {"kind": kind, "depth": depth, "token_id": token, "token": text, **known}


def _common_length(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
