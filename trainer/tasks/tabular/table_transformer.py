"""A transformer over the columns of a row, each a token: FT-Transformer (Gorishniy et al., arXiv 2106.11959)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional


class TableTransformer(nn.Module):
    """Tokens of the columns and one more, whose last state gives the outputs.

    Args:
        num_numbers: N.
        vocabulary_sizes: Of each of K categories.
        num_outputs: Width of the last layer.
        width: Of a token.
        depth: Number of blocks.
        heads: Of the attention; they divide the width.
        dropout: Share of what training leaves out, of attention and inside of blocks.
    """

    offsets: torch.Tensor

    def __init__(
        self,
        *,
        num_numbers: int,
        vocabulary_sizes: Sequence[int],
        num_outputs: int,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is no multiple of heads {heads}")
        self._has_numbers = num_numbers > 0
        if num_numbers:
            self.weight, self.bias = (nn.Parameter(_uniform(num_numbers, width)) for _ in range(2))
        self._has_categories = bool(vocabulary_sizes)
        if vocabulary_sizes:
            # One table for all columns; of each column the first row is that of missing and unseen values.
            *starts, rows = accumulate((size + 1 for size in vocabulary_sizes), initial=0)
            self.register_buffer("offsets", torch.tensor(starts))
            self.embedding = nn.Embedding(rows, width)
            nn.init.uniform_(self.embedding.weight, -(width**-0.5), width**-0.5)
            self.category_bias = nn.Parameter(_uniform(len(vocabulary_sizes), width))
        self.summary = nn.Parameter(_uniform(1, width))
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> torch.Tensor:
        """Map numbers [B, N] float32 and categories [B, K] int64, one of them where the table has no other, to outputs.

        Returns:
            [B, num_outputs]
        """
        # Not len(): in an exported graph it would be a constant.
        tokens = [self.summary.expand(first.shape[0], 1, -1)]
        if self._has_numbers:
            tokens.append(first[:, :, None] * self.weight + self.bias)
        if self._has_categories:
            categories = first if second is None else second
            tokens.append(self.embedding(categories + self.offsets) + self.category_bias)
        states = torch.cat(tokens, dim=1)
        for block in self.blocks:
            states = block(states)
        found: torch.Tensor = self.head(functional.relu(self.norm(states[:, 0])))
        return found


class _Block(nn.Module):
    """Attention between the tokens of a row, then two layers for each; both behind a norm and added to their input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads, self._dropout = heads, dropout
        self.attention_norm, self.layers_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map states [B, T, width] to others."""
        # [B, T, 3 * width] to three of [B, heads, T, width / heads].
        joined = self.query_key_value(self.attention_norm(states)).unflatten(-1, (3, self._heads, -1))
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind()
        dropout = self._dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        states = states + self.projection(attended.transpose(1, 2).flatten(2))
        found: torch.Tensor = states + self.layers(self.layers_norm(states))
        return found


def _uniform(rows: int, width: int) -> torch.Tensor:
    return torch.empty(rows, width).uniform_(-(width**-0.5), width**-0.5)
