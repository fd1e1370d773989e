"""Rounds replayed from a score log: what any tree would have committed, at every budget at once (appendix G).

Everything follows from two facts about a root. The rank of each continuation token among the drafter's candidates
says which path of the universe the target takes; the place of that path's nodes in the best-first order says at
which budget each of them enters the tree. So one enumeration of the order answers all budgets, and a fixed shape
is arithmetic on ranks. Pure numpy; no model, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cast.experiments.replay_log import PromptLog

_ROOTS_AT_ONCE = 256  # so that an enumeration stays in the processor's caches


@dataclass(frozen=True)
class Roots:
    """The roots of a whole log, prompt after prompt.

    Attributes:
        log_probs: float32 [R, L, K], the candidates of each root and depth, best first.
        ranks: int [R, L], place of the output's own token among them, from 0; K where it is not there.
        ends: per prompt the index behind its last root.
    """

    log_probs: np.ndarray
    ranks: np.ndarray
    ends: tuple[int, ...]

    @classmethod
    def of(cls, logs: Sequence[PromptLog]) -> Roots:
        length = logs[0].tokens.shape[1]
        wanted = [np.lib.stride_tricks.sliding_window_view(log.output[1:], length)[: len(log.tokens)] for log in logs]
        # Batched passes differ from the live ones by rounding; above 0 no log-probability lies.
        return cls(
            log_probs=np.minimum(np.concatenate([log.log_probs for log in logs]), 0),
            ranks=np.concatenate([_ranks(log.tokens, own) for log, own in zip(logs, wanted, strict=True)]),
            ends=tuple(np.cumsum([len(log.tokens) for log in logs]).tolist()),
        )

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def length(self) -> int:
        """L, the drafted positions."""
        return self.ranks.shape[1]

    @property
    def candidates(self) -> int:
        """K, the tokens that are known at each depth."""
        return self.log_probs.shape[2]

    @property
    def prompts(self) -> list[slice]:
        """The roots of each prompt."""
        return [slice(start, end) for start, end in zip((0, *self.ends), self.ends, strict=False)]

    @cached_property
    def chain(self) -> np.ndarray:
        """Nodes of the top-1 chain that the target accepts, int [R]."""
        return leading(self.ranks == 0)

    @cached_property
    def chain_rounds(self) -> np.ndarray:
        """The roots at which chain decoding starts its rounds, int [rounds], ascending."""
        return self.starts(self.chain[:, None])[0]

    def path(self, top_k: int) -> np.ndarray:
        """Accepted length of a tree that holds all of the universe of ``top_k`` tokens a depth: int [R]."""
        return leading(self.ranks < min(top_k, self.candidates))

    def chosen(self, roots: np.ndarray) -> Roots:
        """Those roots alone, as one sequence without prompts."""
        return Roots(self.log_probs[roots], self.ranks[roots], (len(roots),))

    def walk(self, accepted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decode every prompt by a method's own rounds: each starts where the one before ended.

        Args:
            accepted: int [R, M], the nodes that each of M methods gets accepted at each root.

        Returns:
            (committed, rounds), int [P, M]: tokens committed and rounds of each prompt, as the live loop counts
            them: without the prefill's token, and the last round not cut at the output's end.
        """
        committed = np.zeros((len(self.ends), accepted.shape[1]), np.int64)
        rounds = np.zeros_like(committed)
        for place, roots in enumerate(self.prompts):
            for at, active in _steps(accepted[roots]):
                committed[place, active] += accepted[roots][at, active] + 1
                rounds[place, active] += 1
        return committed, rounds

    def starts(self, accepted: np.ndarray) -> list[np.ndarray]:
        """For each of M methods the roots at which its own rounds start, ascending."""
        found: list[list[int]] = [[] for _ in range(accepted.shape[1])]
        for roots in self.prompts:
            for at, active in _steps(accepted[roots]):
                for method, root in zip(active.tolist(), at.tolist(), strict=True):
                    found[method].append(roots.start + root)
        return [np.array(sorted(method), dtype=np.int64) for method in found]

    def totals(self, accepted: np.ndarray, roots: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(committed, rounds), int [P, M], when every method drafts at the same roots; all of them for None."""
        counted = np.zeros(len(self), bool)
        counted[slice(None) if roots is None else roots] = True
        committed = [(accepted[p][counted[p]] + 1).sum(axis=0) for p in self.prompts]
        rounds = [np.full(accepted.shape[1], counted[p].sum()) for p in self.prompts]
        return np.array(committed), np.array(rounds)


@dataclass(frozen=True)
class Order:
    """The first nodes of each root's best-first order, and where the target's path enters it.

    Attributes:
        log_mass: float32 [R, nodes], log plug-in masses, descending; -inf where the universe has no more nodes.
        path_depth: int8 [R, nodes], depth of the node on the target's path, 0 for a node off it.
    """

    log_mass: np.ndarray
    path_depth: np.ndarray

    @cached_property
    def mass(self) -> np.ndarray:
        """Plug-in masses, float32 [R, nodes]; 0 where the universe has no more nodes."""
        return np.exp(self.log_mass)

    @cached_property
    def accepted(self) -> np.ndarray:
        """Accepted length of the best tree of every budget N = 0 to ``nodes``: int16 [R, nodes + 1]."""
        on_path = np.cumsum(self.path_depth > 0, axis=1, dtype=np.int16)
        return np.pad(on_path, ((0, 0), (1, 0)))


def best_first_order(roots: Roots, nodes: int, top_k: int | None = None) -> Order:
    """Enumerate the ``nodes`` best candidates of every root in best-first order (Theorem 1).

    The order is `cast.trees.best_first_tree`'s, ties included, so the first N are the tree of budget N.

    Args:
        top_k: tokens of each depth; all that the log knows when None, which is the full rank set of every budget
            up to that number.
    """
    kept = roots.candidates if top_k is None else min(top_k, roots.candidates)
    log_mass = np.full((len(roots), nodes), -np.inf, np.float32)
    path_depth = np.zeros((len(roots), nodes), np.int8)
    for start in range(0, len(roots), _ROOTS_AT_ONCE):
        part = slice(start, start + _ROOTS_AT_ONCE)
        _enumerate(roots.log_probs[part, :, :kept], roots.ranks[part], log_mass[part], path_depth[part])
    return Order(log_mass, path_depth)


def fixed_shape(roots: Roots, widths: Sequence[int], budget: int) -> np.ndarray:
    """Accepted length of one fixed tree at every root, int [R].

    Every node of depth d - 1 has ``widths[d - 1]`` children, the most likely tokens of depth d; the last width
    goes on. Depth by depth, and within a depth in the order of rank tuples, nodes are added up to ``budget``.
    """
    inside = np.zeros(roots.ranks.shape, bool)
    place = np.zeros(len(roots), np.int64)  # of the path's node among all of its depth
    nodes, left = 1, budget
    for depth in range(roots.length):
        width = widths[min(depth, len(widths) - 1)]
        nodes = min(nodes * width, left)
        rank = roots.ranks[:, depth]
        place = place * width + rank
        inside[:, depth] = (rank < min(width, roots.candidates)) & (place < nodes)
        left -= nodes
    return leading(inside)


def leading(holds: np.ndarray) -> np.ndarray:
    """How many values from the first on hold without a gap: bool [R, L] to int [R]."""
    return np.logical_and.accumulate(holds, axis=1).sum(axis=1)


def _ranks(tokens: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Place of each wanted token [R, L] among candidates [R, L, K]; K where it is none of them."""
    found = tokens == wanted[:, :, None]
    return np.where(found.any(axis=2), found.argmax(axis=2), tokens.shape[2])


def _steps(accepted: np.ndarray):
    """The rounds of M methods over one prompt's roots, side by side: (roots, methods) of each next round."""
    place = np.zeros(accepted.shape[1], np.int64)
    methods = np.arange(accepted.shape[1])
    while True:
        active = methods[place < len(accepted)]
        if not len(active):
            return
        at = place[active]
        yield at, active
        place[active] = at + accepted[at, active] + 1


def _enumerate(scores: np.ndarray, ranks: np.ndarray, log_mass: np.ndarray, path_depth: np.ndarray) -> None:
    """Fill ``log_mass`` and ``path_depth`` [R, nodes] of these roots, depth by depth as `best_first_tree` does.

    Nodes of all roots lie in flat arrays, sorted by root. Inside a root and a depth they stay in the order of
    their rank tuples, and the sort is stable, which is the tie rule: the shorter first, then the smaller ranks.
    """
    count, length, _ = scores.shape
    budget = log_mass.shape[1]
    of = np.empty(0, np.int64)  # root of each kept node
    kept, depths = np.empty(0, np.float32), np.empty(0, np.int8)
    frontier_of, frontier = np.arange(count), np.zeros(count, np.float32)
    on_path = np.ones(count, bool)
    # Log mass of a root's budget-th best node so far, once it has that many; nothing is refused before.
    threshold, full = np.zeros(count, np.float32), np.zeros(count, bool)
    for position in range(length if budget else 0):
        children = frontier[:, None] + scores[frontier_of, position]
        open_ = ~full[frontier_of][:, None]
        parent, rank = np.nonzero((children > threshold[frontier_of][:, None]) | open_)
        if not len(parent):
            break
        new_of, new = frontier_of[parent], children[parent, rank]
        on_path = on_path[parent] & (rank == ranks[new_of, position])
        of = np.concatenate((of, new_of))
        kept = np.concatenate((kept, new))
        depths = np.concatenate((depths, np.where(on_path, np.int8(position + 1), np.int8(0))))
        best = np.lexsort((-kept, of))
        of = of[best]
        within = np.arange(len(of)) - np.searchsorted(of, np.arange(count))[of] < budget
        of, kept, depths = of[within], kept[best][within], depths[best][within]
        ends = np.searchsorted(of, np.arange(count), side="right")
        full = np.diff(ends, prepend=0) == budget
        threshold[full] = kept[ends[full] - 1]
        promising = (new > threshold[new_of]) | ~full[new_of]
        frontier_of, frontier, on_path = new_of[promising], new[promising], on_path[promising]
    place = np.arange(len(of)) - np.searchsorted(of, np.arange(count))[of]
    log_mass[of, place] = kept
    path_depth[of, place] = depths
