"""A small own task: tests replace its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Batch, Loss, Mode, Outputs, Prepared, Sample, Task, TaskContext

WIDTH = 4


class Small(Task):
    """Takes the lengths of files to a number for each class."""

    fields: Mapping[str, str] = {"image": "image", "label": "class"}
    headline = "loss"
    signature: Any = Signature(
        inputs={"x": TensorSpec(dtype="float32", shape=["batch", WIDTH])},
        outputs={"y": OutputSpec(dtype="float32", shape=["batch", 3])},
    )

    def __init__(self, context: TaskContext, *, scale: float = 1.0) -> None:
        self.scale = scale

    def build_model(self) -> nn.Module:
        return nn.Linear(WIDTH, 3)

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        return len(sample["image"]) * self.scale, sample["label"]

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Any:
        sizes = torch.tensor([size for size, _ in samples])
        return {"x": sizes[:, None].repeat(1, WIDTH), "label": torch.tensor([label for _, label in samples])}

    def example(self, size: int) -> Batch:
        return {"x": torch.zeros(size, WIDTH), "label": torch.zeros(size, dtype=torch.int64)}

    def loss(self, outputs: Outputs, batch: Batch, mode: Mode) -> Loss:
        return nn.functional.cross_entropy(outputs, batch["label"], reduction="sum"), len(outputs)

    def metrics(self) -> Mapping[str, Any]:
        return {}

    def update(self, metrics: Mapping[str, Any], outputs: Outputs, batch: Batch) -> None:
        """Count nothing."""


class LacksTwo(Task):
    """Has neither collate nor loss."""

    prepare, build_model, example = Small.prepare, Small.build_model, Small.example  # type: ignore[assignment]
    metrics, update = Small.metrics, Small.update  # type: ignore[assignment]

    def __init__(self, context: TaskContext) -> None: ...
