"""Many sequences through a target at once: the forward that writes training data.

`Target.forward` serves one sequence, which is what decoding measures. Data generation wants throughput
instead, so the same weights run here over a batch, left-padded, with every row's features kept on the way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cast.models.layers import linear, rotate
from cast.models.target import Target


class BatchedTarget:
    """A batch of left-padded sequences over the weights of one `Target`.

    Args:
        target: whose weights to use.
        prompts: int64 token ids [T_r] of each row.
        capacity: cache columns, at least the longest prompt plus the tokens to come.
        taps: ascending layer indices whose output hidden states are kept.
    """

    def __init__(self, target: Target, prompts: list[Tensor], capacity: int, taps: tuple[int, ...]):
        self.target, self.taps = target, taps
        rows, width = len(prompts), max(len(prompt) for prompt in prompts)
        options = {"dtype": target.dtype, "device": target.device}
        self.keys = torch.empty(target.layers, rows, target.kv_heads, capacity, target.head_dim, **options)
        self.values = torch.empty_like(self.keys)
        self._rotary = target.rotary_table(capacity)
        self.length = 0
        self.padding = torch.tensor([width - len(prompt) for prompt in prompts], device=target.device)
        self._first = torch.zeros(rows, width, dtype=torch.long, device=target.device)
        for row, prompt in enumerate(prompts):
            self._first[row, width - len(prompt) :] = prompt

    @torch.inference_mode()
    def prefill(self) -> tuple[Tensor, Tensor]:
        """Run the prompts. Returns logits [rows, V] of the last column and features [rows, width, taps *
        H].
        """
        return self._forward(self._first)

    @torch.inference_mode()
    def step(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append one token to every row, int64 [rows]. Returns logits [rows, V] and features [rows, 1, taps
        * H].
        """
        return self._forward(token_ids[:, None])

    def keep(self, rows: Tensor) -> None:
        """Drop every other row of the batch."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.padding = self.padding[rows]

    def _forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        target, n = self.target, token_ids.shape[1]
        columns = torch.arange(self.length, self.length + n, device=target.device)
        positions = (columns[None] - self.padding[:, None]).clamp(min=0)
        phase = self._rotary.cos[positions], self._rotary.sin[positions]
        group = target.heads // target.kv_heads
        mask = self._mask(columns).repeat(1, 1, group, 1)
        hidden, tapped = target.embed(token_ids), []
        split = (target.heads, target.kv_heads, target.kv_heads)
        for index, layer in enumerate(target.decoder_layers):
            qkv = linear(target._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
            query, key, value = qkv.unflatten(-1, (-1, target.head_dim)).split(split, dim=2)
            if layer.query_norm is not None:
                query, key = target._norm(query, layer.query_norm), target._norm(key, layer.key_norm)
            keys, values = self._write(index, rotate(key, phase), value)
            # Heads that share a key head become extra query rows, as in `cast.models.layers.attend`.
            query = rotate(query, phase).unflatten(2, (target.kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            out = out.unflatten(2, (group, n)).permute(0, 3, 1, 2, 4).flatten(2)
            hidden = hidden + linear(out, layer.out, layer.out_bias)
            hidden = hidden + target._mlp(layer, hidden)
            if index in self.taps:
                tapped.append(hidden)
        self.length += n
        logits = target.logits(target._norm(hidden[:, -1], target.final_norm))
        return logits, torch.cat(tapped, dim=-1) if tapped else hidden[..., :0]

    def _write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + key.shape[1]
        self.keys[layer, :, :, self.length : end] = key.transpose(1, 2)
        self.values[layer, :, :, self.length : end] = value.transpose(1, 2)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def _mask(self, columns: Tensor) -> Tensor:
        """Additive [rows, 1, n, length + n]: causal, and blind to each row's padding."""
        every = torch.arange(self.length + len(columns), device=columns.device)
        visible = (every[None, None] <= columns[None, :, None]) & (every[None, None] >= self.padding[:, None, None])
        # Finite, because a padded query row sees nothing and must not turn into NaN.
        hidden = torch.finfo(self.target.dtype).min
        return torch.zeros(visible.shape, dtype=self.target.dtype, device=columns.device).masked_fill(~visible, hidden)[
            :, None
        ]
