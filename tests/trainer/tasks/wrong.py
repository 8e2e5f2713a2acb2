"""A small task of one's own, and ones that each do a thing wrong: what `task.name` of a test names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.errors import ConfigError
from trainer.tasks.protocol import Batch, Loss, Mode, Outputs, Prepared, Sample, TaskContext

WIDTH = 4


class Small:
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

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        return batch

    def loss(self, outputs: Outputs, batch: Batch, mode: Mode) -> Loss:
        return nn.functional.cross_entropy(outputs, batch["label"], reduction="sum"), len(outputs)

    def metrics(self) -> Mapping[str, Any]:
        return {}

    def update(self, metrics: Mapping[str, Any], outputs: Outputs, batch: Batch) -> None:
        """Count nothing."""


class LacksTwo(Small):
    collate = None  # type: ignore[assignment]
    loss = "no function"  # type: ignore[assignment]


class LacksHeadline(Small):
    @property
    def headline(self) -> str:  # type: ignore[override]
        raise AttributeError("headline")


class OtherSignature(Small):
    signature: Any = ("x", "float32")


class FailingSignature(Small):
    @property
    def signature(self) -> Signature:  # type: ignore[override]
        return Signature(inputs={"x": TensorSpec(dtype="float32", shape=["samples", WIDTH])}, outputs={})


class ListsFields(Small):
    fields: Any = ("image", "label")


class OddKind(Small):
    fields: Mapping[str, str] = {"image": "picture"}


class NumberHeadline(Small):
    headline: Any = 1


class FailingExample(Small):
    def example(self, size: int) -> Batch:
        raise OSError("no such file")


class OtherExample(Small):
    def example(self, size: int) -> Batch:
        return {"images": torch.zeros(size, WIDTH)}


class IntExample(Small):
    def example(self, size: int) -> Batch:
        return {"x": torch.zeros(size, WIDTH, dtype=torch.int64)}


class OddOptionals(Small):
    """Has attributes that are called as optional members are."""

    warnings = document = report = pictures = first_slot = check_device = "something of its own"


class Refuses(Small):
    def __init__(self, context: TaskContext) -> None:
        raise ConfigError("no such scale", allowed="another", todo="choose it")


class WantsText(Small):
    fields: Mapping[str, str] = {"caption": "text"}


class WantsNumber(Small):
    fields: Mapping[str, str] = {"image": "image", "label": "number"}


class FailsOnSample(Small):
    """Fails on every sample of class 1."""

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        if sample["label"] == 1:
            raise KeyError("no such colour")
        return super().prepare(sample, mode)


class FailsOnBatch(Small):
    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        raise ValueError("no two are alike")


class FailsOnDevice(Small):
    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        raise ValueError("no such device")


class FailsOnUpdate(Small):
    def update(self, metrics: Mapping[str, Any], outputs: Outputs, batch: Batch) -> None:
        metrics["mean_iou"].update(outputs)


class LosesHeadline(Small):
    headline = "mean_iou"


class ReturnsList(Small):
    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Any:
        return [torch.zeros(1)]


class ReturnsNoTensors(Small):
    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Any:
        return {"x": [1.0, 2.0], "names": {"one": "a"}}


class KeepsNames(Small):
    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        return batch | {"names": (torch.zeros(1), "one")}


def build(context: TaskContext) -> Small:
    return Small(context)
