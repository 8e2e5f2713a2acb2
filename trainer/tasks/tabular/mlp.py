"""A multilayer perceptron: embeddings of categories beside normalised numbers, through a few wide layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

# Width of an embedding by the size of its vocabulary, a rule of fastai's tabular learner
# (https://docs.fast.ai/tabular.model.html, emb_sz_rule), with a lower end.
_LEAST_EMBEDDING, _MOST_EMBEDDING = 4, 64


class Mlp(nn.Module):
    """Layers of one width with ReLU and dropout.

    Args:
        num_numbers: N.
        vocabulary_sizes: Of each of K categories.
        num_outputs: Width of the last layer.
        width: Of the layers between.
        depth: Number of them.
        dropout: Share of their outputs that training leaves out.
    """

    def __init__(
        self,
        *,
        num_numbers: int,
        vocabulary_sizes: Sequence[int],
        num_outputs: int,
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        # One more: the first row is that of missing and unseen values.
        self.embeddings = nn.ModuleList(nn.Embedding(size + 1, embedding_width(size)) for size in vocabulary_sizes)
        inside = num_numbers + sum(embedding_width(size) for size in vocabulary_sizes)
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(inside, width), nn.ReLU(), nn.Dropout(dropout)]
            inside = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inside, num_outputs)

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> torch.Tensor:
        """Map numbers [B, N] float32 and categories [B, K] int64, one of them where the table has no other, to outputs.

        Returns:
            [B, num_outputs]
        """
        parts = [] if second is None and len(self.embeddings) else [first]
        categories = first if second is None else second
        parts += [embed(categories[:, place]) for place, embed in enumerate(self.embeddings)]
        found: torch.Tensor = self.head(self.layers(torch.cat(parts, dim=1)))
        return found


def embedding_width(size: int) -> int:
    """Return the width of the embedding of a vocabulary of so many values."""
    return max(_LEAST_EMBEDDING, min(_MOST_EMBEDDING, round(1.6 * math.pow(size, 0.56))))
