"""Networks of texts that `model.architecture: texts_network:NAME` names."""

from typing import Any

import torch
from torch import nn


class _MeanOfTokens(nn.Module):
    def __init__(self, num_classes: int, vocabulary: int, padding: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.unsqueeze(2).to(self.tokens.weight.dtype)
        logits: torch.Tensor = self.head((self.tokens(tokens) * weights).sum(1) / weights.sum(1))
        return logits


def mean_of_tokens(num_classes: int, vocabulary: int, padding: int, max_length: int, width: int = 16) -> nn.Module:
    return _MeanOfTokens(num_classes, vocabulary, padding, width)


def of_transformers(num_classes: int, vocabulary: int, padding: int, max_length: int, places: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=vocabulary,
        pad_token_id=padding,
        num_labels=num_classes,
        max_position_embeddings=places,
        intermediate_size=16,
        **sizes,
    )
    return BertForSequenceClassification(config)
