"""Mixture-of-experts feed-forward: the experts one after another, without a fused kernel (paper, appendix H.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.layers import Weight, dense, linear, pack


@dataclass(frozen=True)
class Experts:
    """The experts of one layer and the router that chooses `chosen` of them for each token.

    `gate_up` [2I, H] and `down` [H, I] of each expert are packed, see `cast.models.layers.pack`; `router` [E, H]
    is not. `normalise` scales the weights of a token's experts to sum to one.
    """

    router: Tensor
    gate_up: list[Weight]
    down: list[Weight]
    chosen: int
    normalise: bool

    @classmethod
    def of(cls, take: Callable[[str], Tensor | None], block: str, config) -> Experts:
        """The experts of a sparse block, published one by one or stacked as transformers holds them.

        Args:
            take: the tensor of a name, or None.
            block: what the names of the block's tensors begin with.
        """
        gate_up, down = take(f"{block}.experts.gate_up_proj"), take(f"{block}.experts.down_proj")
        if gate_up is None:
            experts = [f"{block}.experts.{index}" for index in range(config.num_experts)]
            # One tensor of them all: CUDA rounds the size of each, which would add up.
            gate_up = torch.cat([take(f"{name}.{part}_proj.weight") for name in experts for part in ("gate", "up")])
            gate_up = gate_up.unflatten(0, (len(experts), -1))
            down = torch.stack([take(f"{name}.down_proj.weight") for name in experts])
        return cls(
            router=take(f"{block}.gate.weight"),
            gate_up=[pack(weight) for weight in gate_up],
            down=[pack(weight) for weight in down],
            chosen=config.num_experts_per_tok,
            normalise=config.norm_topk_prob,
        )

    def to(self, dtype: torch.dtype) -> Experts:
        """A copy in another dtype."""
        gate_up, down = ([pack(dense(weight).to(dtype)) for weight in part] for part in (self.gate_up, self.down))
        return Experts(self.router.to(dtype), gate_up, down, self.chosen, self.normalise)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, H], normed, to [n, H]. Only experts that a token was sent to are run; one synchronisation."""
        share, expert = F.linear(x, self.router).softmax(dim=-1, dtype=torch.float32).topk(self.chosen, dim=-1)
        if self.normalise:
            share = share / share.sum(dim=-1, keepdim=True)
        # Assignments in the order of their experts, so that each expert reads one slice.
        order = expert.flatten().argsort()
        received = torch.bincount(expert.flatten(), minlength=len(self.gate_up)).tolist()
        parts = x[order // self.chosen].split(received)
        done = torch.cat([self._one(index, part) for index, part in enumerate(parts) if len(part)])
        # Back to the order of the tokens: their experts' outputs are added up in a fixed order.
        outputs = torch.empty_like(done)
        outputs[order] = done
        return (outputs.view(*expert.shape, -1) * share.to(x.dtype)[..., None]).sum(dim=-2)

    def _one(self, index: int, x: Tensor) -> Tensor:
        gate, up = linear(x, self.gate_up[index]).chunk(2, dim=-1)
        return linear(F.silu(gate) * up, self.down[index])
