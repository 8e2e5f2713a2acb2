"""A small task of a user's own whose samples have a length: the class of a text, of its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

CLASSES = 3


class Network(nn.Module):
    """Tokens and mask [B, length] to scores [B, classes]: the mean over tokens."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, 8), nn.Embedding(positions, 8)
        self.mix, self.score = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = torch.relu(self.mix(self.words(tokens) + self.places(places)))
        weight = mask[:, :, None].to(states.dtype)
        found: torch.Tensor = self.score((states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1))
        return found


class Words(Task):
    """Texts to classes.

    Args:
        context: Of the task.
        positions: That the network has a vector for.
        longest: Of a text, in bytes; a multiple of 8.
    """

    fields: Mapping[str, str] = {"text": "text", "label": "class"}
    headline = "accuracy"
    unit = "tokens"

    def __init__(self, context: Any, *, positions: int = 64, longest: int = 64) -> None:
        self.positions, self.longest = positions, longest
        text = TensorSpec(dtype="int64", shape=["batch", "length"])
        self.signature = Signature(
            inputs={"tokens": text, "mask": text},
            outputs={"scores": OutputSpec(dtype="float32", shape=["batch", CLASSES], compare="classes")},
            dimensions={"length": Dimension(min=8, opt=16, max=longest, multiple=8)},
        )

    def build_model(self) -> nn.Module:
        return Network(self.positions)

    def prepare(self, sample: dict[str, Any], mode: Any) -> tuple[torch.Tensor, int]:
        return torch.tensor(list(sample["text"].encode())[: self.longest]), sample["label"]

    def collate(self, samples: Sequence[tuple[torch.Tensor, int]], mode: Any) -> dict[str, Any]:
        length = -(-max(len(text) for text, _ in samples) // 8) * 8
        tokens, mask = torch.zeros(2, len(samples), length, dtype=torch.int64)
        for row, (text, _) in enumerate(samples):
            tokens[row, : len(text)], mask[row, : len(text)] = text, 1
        return {"tokens": tokens, "mask": mask, "label": torch.tensor([label for _, label in samples])}

    def count_units(self, batch: dict[str, Any]) -> int:
        return int(batch["mask"].sum())

    def example(self, size: int) -> dict[str, Any]:
        tokens = torch.zeros(size, 16, dtype=torch.int64)
        return {"tokens": tokens, "mask": tokens + 1, "label": tokens[:, 0]}

    def to_model(self, batch: dict[str, Any], mode: Any) -> dict[str, Any]:
        return batch

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any], mode: Any) -> tuple[torch.Tensor, int]:
        return functional.cross_entropy(outputs.float(), batch["label"], reduction="sum"), len(batch["label"])

    def metrics(self) -> dict[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        return {"accuracy": MulticlassAccuracy(CLASSES, average="micro", sync_on_compute=False, validate_args=False)}

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: dict[str, Any]) -> None:
        metrics["accuracy"].update(outputs, batch["label"])
