"""The batched round: one drafter pass, an allocation, one verification pass, a ragged commit (appendix F).

At the entry of a round every active request stands where a single generation does: its emitted stream is
x + b, and both stores cover x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cast.decode.generate import check_prompt, check_stops, make_selector
from cast.decode.loop import within_limits
from cast.decode.timer import Trace, garbage_collection_off, now_ms
from cast.errors import CastError
from cast.models import DFlashDrafter, Pair, Target
from cast.models.layers import on_device
from cast.serving.allocators import Allocator
from cast.serving.forest import Forest
from cast.serving.passes import Verified, Verifier, draft
from cast.serving.store import SlotStore
from cast.verify import GreedySelector, Selector, Walk, walk


@dataclass(frozen=True)
class Request:
    """One prompt to continue; arguments as for `cast.generate`.

    Attributes:
        prompt: int [T], token ids.
        stop_token_ids: None takes the model's own, () none.
        arrival: when it asks to be served, on the server's clock (seconds, by default).
    """

    prompt: Tensor | Sequence[int]
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    sampler: str = "walk"
    stop_token_ids: Collection[int] | None = None
    arrival: float = 0.0


@dataclass(eq=False)  # one of a kind: a request may be asked twice
class Active:
    """A request that holds a slot: what the batch knows of it.

    Attributes:
        prompt: int64 [T], on the device.
        selector: the target's rule for its next token.
        tokens: emitted so far, the prefill's first.
        committed: R of each round, neither counting the prefill's token nor truncated.
        root: the pending root.
        features: [c, taps * H], of the positions committed since its last draft.
    """

    request: Request
    prompt: Tensor
    selector: Selector
    stops: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    stopped: bool = False
    root: int = 0
    features: Tensor | None = None

    @property
    def done(self) -> bool:
        return self.stopped or len(self.tokens) >= self.request.max_new_tokens

    def emit(self, tokens: Sequence[int]) -> list[int]:
        """Append, and return, what the request's limits leave of these tokens."""
        room = self.request.max_new_tokens - len(self.tokens)
        fresh, self.stopped = within_limits(tokens, room, self.stops)
        self.tokens += fresh
        return fresh

    def history(self) -> list[int]:
        return self.prompt.tolist() + self.tokens


@dataclass(frozen=True)
class Round:
    """One round of the batch.

    Attributes:
        active: requests B that took part.
        nodes, widest: verified candidates of all requests, and of the largest tree.
        padded_rows: verified rows that belonged to nobody.
        committed: R of each request, summed; not truncated.
        emitted: new tokens after truncation.
        ms: wall time of the whole round.
        draft_ms, verify_ms: of its two passes; NaN unless traced.
    """

    active: int
    nodes: int
    widest: int
    padded_rows: int
    committed: int
    emitted: int
    ms: float
    draft_ms: float = math.nan
    verify_ms: float = math.nan


class Batch:
    """Up to `slots` requests that decode together.

    Args:
        pair: a target with a DFlash drafter.
        allocator: how a round's requests share the verifier.
        verifier: how their packs are verified.
        slots: most requests at once.
        slot_tokens: cache entries of each.
        traced: time the passes of each round, at the price of extra synchronisation.

    Raises:
        CastError: no block drafter, or no room for a slot.
    """

    def __init__(
        self,
        pair: Pair,
        allocator: Allocator,
        verifier: Verifier,
        *,
        slots: int,
        slot_tokens: int,
        traced: bool = False,
    ):
        self.pair, self.drafter = pair, check_drafter(pair)
        if slots < 1 or slot_tokens < 1:
            raise CastError(f"a batch needs at least one slot of one token, not {slots} of {slot_tokens}")
        self.target, self.allocator, self.verifier = pair.target, allocator, verifier
        self.slots, self.slot_tokens, self.traced = slots, slot_tokens, traced
        self.active: list[Active] = []  # request i holds slot i
        self._store, self._features = new_stores(pair, slots, slot_tokens)

    @staticmethod
    def tokens_needed(pair: Pair, allocator: Allocator, prompt: int, max_new_tokens: int, slots: int) -> int:
        """Cache entries that a request of such lengths needs in a batch of so many slots."""
        return prompt + max_new_tokens + max(check_drafter(pair).block_size, allocator.most_nodes(slots) + 1)

    @torch.inference_mode()
    def admit(self, request: Request) -> Active:
        """Give a request a slot and run its prompt; its first token is emitted by this.

        Raises:
            CastError: the request is impossible, see `prepare`, or there is no slot for it.
        """
        active = prepare(self.target, request)
        slot, length = len(self.active), len(active.prompt)
        need = self.tokens_needed(self.pair, self.allocator, length, request.max_new_tokens, self.slots)
        if slot == self.slots or need > self.slot_tokens:
            raise CastError(
                f"no slot for a request of {need} cache tokens: {slot} of {self.slots} are taken, each of "
                f"{self.slot_tokens}"
            )
        cache = self._store.cache(slot)
        positions = torch.arange(length, device=active.prompt.device)
        taps = self.drafter.target_layer_ids
        output = self.target.forward(active.prompt, positions, cache, causal=True, taps=taps, last_logits_only=True)
        active.root = active.selector.walk(None, output.logits, active.history).next_root
        active.features = torch.cat(output.taps, dim=-1)
        self._store.lengths[slot], self._features.lengths[slot] = length, 0
        active.emit([active.root])
        self.active.append(active)
        return active

    @torch.inference_mode()
    def round(self, inspect: Callable[[Forest, Verified], None] | None = None) -> tuple[Round, list[list[int]]]:
        """Decode every active request by one round.

        Args:
            inspect: shown what was verified before anything is committed.

        Returns:
            The round, and the newly emitted tokens of each active request.
        """
        with garbage_collection_off():
            started = now_ms(self.target.device)
            trace = Trace(self.target.device) if self.traced else None
            roots = [active.root for active in self.active]
            features = [active.features for active in self.active]
            logits = draft(self.drafter, self.target, self._features, features, roots)
            if trace:
                trace.lap("draft")
            forest = self.allocator.allocate(logits)
            if trace:
                trace.lap("other")
            taps = self.drafter.target_layer_ids
            verified = self.verifier.verify(self.target, self._store, roots, forest, taps)
            if trace:
                trace.lap("verify")
            if inspect is not None:
                inspect(forest, verified)
            walks = self._walks(forest, verified)
            self._store.commit([step.rows for step in walks])
            kept = [start + row for start, step in zip(verified.starts, walks, strict=True) for row in step.rows]
            index = on_device(kept, logits.device)
            fresh = torch.cat([tap[index] for tap in verified.taps], dim=-1).split([step.committed for step in walks])
            emitted = []
            for active, step, rows in zip(self.active, walks, fresh, strict=True):
                active.committed.append(step.committed)
                active.root, active.features = step.next_root, rows
                emitted.append(active.emit([*step.accepted, step.next_root]))
            ms = now_ms(self.target.device) - started
        stages: Mapping[str, float] = trace.stage_ms if trace else {}
        report = Round(
            active=len(self.active),
            nodes=len(forest),
            widest=forest.widest,
            padded_rows=verified.padded_rows,
            committed=sum(step.committed for step in walks),
            emitted=sum(map(len, emitted)),
            ms=ms,
            draft_ms=stages.get("draft", math.nan),
            verify_ms=stages.get("verify", math.nan),
        )
        return report, emitted

    def retire(self) -> list[Active]:
        """Take the finished requests out and give their slots back."""
        finished = [active for active in self.active if active.done]
        for leaving in finished:
            slot, last = self.active.index(leaving), len(self.active) - 1
            for store in (self._store, self._features):
                store.move_slot(last, slot)
            self.active[slot] = self.active[last]
            self.active.pop()
            leaving.features = None
        return finished

    def _walks(self, forest: Forest, verified: Verified) -> list[Walk]:
        greedy, walks = [isinstance(active.selector, GreedySelector) for active in self.active], []
        if any(greedy):  # on a GPU one copy to the host serves them all
            select = GreedySelector().over(verified.logits, list)
        for request, (active, start) in enumerate(zip(self.active, verified.starts, strict=True)):
            tree = forest.tree(request)
            if greedy[request]:
                walks.append(walk(tree, lambda row, path, siblings, start=start: select(start + row, path, siblings)))
            else:
                rows = verified.logits[start : start + len(tree) + 1]
                walks.append(active.selector.walk(tree, rows, active.history))
        return walks


def new_stores(pair: Pair, slots: int, capacity: int) -> tuple[SlotStore, SlotStore]:
    """Empty memory for the target's cache and for the drafter's feature cache."""
    target, head = pair.target, pair.drafter.config
    shared = {"slots": slots, "capacity": capacity, "dtype": pair.dtype, "device": pair.device}
    return (
        SlotStore(
            layers=target.layers,
            kv_heads=target.kv_heads,
            head_dim=target.head_dim,
            rotary=target.rotary_table(capacity),
            **shared,
        ),
        SlotStore(
            layers=head.layers,
            kv_heads=head.kv_heads,
            head_dim=head.head_dim,
            rotary=pair.drafter.rotary_table(capacity),
            **shared,
        ),
    )


def check_drafter(pair: Pair) -> DFlashDrafter:
    """The pair's drafter.

    Raises:
        CastError: it has none that drafts by blocks from the target's features, or its target is not run eagerly.
    """
    if not isinstance(pair.target, Target):
        raise CastError("serving runs the target eagerly; load the pair with engine eager")
    if not isinstance(pair.drafter, DFlashDrafter):
        raise CastError("serving needs a DFlash drafter: load_pair(target, drafter) or pair.with_drafter(drafter)")
    return pair.drafter


def prepare(target: Target, request: Request) -> Active:
    """Check a request and ready it for a slot.

    Raises:
        CastError: an argument out of range, an empty prompt, or a sequence longer than the model allows.
    """
    prompt = check_prompt(target, request.prompt, request.max_new_tokens)
    selector = make_selector(request.temperature, request.sampler, request.seed, None)
    return Active(request, prompt, selector, check_stops(target, request.stop_token_ids))
