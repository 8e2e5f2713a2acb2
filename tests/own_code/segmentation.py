"""A small task of a user's own: a class for each pixel of an image."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

SIZE = 16
CLASSES = 6


class Segmentation(Task):
    """Images [B, 3, 16, 16] to scores [B, 6, 16, 16]."""

    fields: Mapping[str, str] = {"image": "image", "mask": "image"}
    headline = "pixel_accuracy"
    signature = Signature(
        inputs={"image": TensorSpec(dtype="float32", shape=["batch", 3, SIZE, SIZE])},
        outputs={"scores": OutputSpec(dtype="float32", shape=["batch", CLASSES, SIZE, SIZE], compare="classes")},
    )

    def __init__(self, context: Any, *, width: int = 8) -> None:
        self.width = width

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, self.width, 3, padding=1), nn.ReLU(), nn.Conv2d(self.width, CLASSES, 3, padding=1)
        )

    def prepare(self, sample: dict[str, Any], mode: Any) -> dict[str, Any]:
        image, mask = (np.asarray(Image.open(io.BytesIO(sample[name]))) for name in ("image", "mask"))
        return {"image": image, "target": {"mask": mask}}

    def collate(self, samples: Sequence[dict[str, Any]], mode: Any) -> dict[str, Any]:
        images = np.stack([sample["image"] for sample in samples])
        masks = np.stack([sample["target"]["mask"] for sample in samples])
        return {"image": torch.from_numpy(images), "target": {"mask": torch.from_numpy(masks).long()}}

    def example(self, size: int) -> dict[str, Any]:
        mask = torch.zeros(size, SIZE, SIZE, dtype=torch.int64)
        return {"image": torch.zeros(size, 3, SIZE, SIZE), "target": {"mask": mask}}

    def to_model(self, batch: dict[str, Any], mode: Any) -> dict[str, Any]:
        return {**batch, "image": batch["image"].permute(0, 3, 1, 2).float() / 255}

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any], mode: Any) -> tuple[torch.Tensor, int]:
        mask = batch["target"]["mask"]
        return functional.cross_entropy(outputs.float(), mask, reduction="sum"), mask.numel()

    def metrics(self) -> dict[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        return {
            "pixel_accuracy": MulticlassAccuracy(CLASSES, average="micro", sync_on_compute=False, validate_args=False)
        }

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: dict[str, Any]) -> None:
        metrics["pixel_accuracy"].update(outputs.argmax(dim=1), batch["target"]["mask"])
