"""Tasks for tests: of shards that are there, and of shards that are only planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from contracts.artifacts import ShardManifest, Shards, SplitEntry
from contracts.config import SPLITS, DataSection, ModelSection, RunConfig, TaskSection, TrainSection
from trainer.model.build import build_model
from trainer.tasks.image import ImageClassification
from trainer.tasks.loading import load_task

MEAN, STD = 0.5, 0.25
"""Of each channel of the pixels of planned shards."""


def planned_manifest(
    num_classes: int,
    *,
    samples_by_class: Sequence[int] | None = None,
    mean: float | None = MEAN,
    std: float | None = STD,
    **changes: Any,
) -> ShardManifest:
    """Return the manifest of shards that nobody has written.

    Args:
        num_classes: Their classes are `class 0`, `class 1`, ...
        samples_by_class: Of each split; unset: one each.
        mean: Of each channel of their pixels; None: unknown.
        std: Of each channel.
        changes: Other fields of the manifest.
    """
    counts = list(samples_by_class or [1] * num_classes)
    split = SplitEntry(first=0, samples=sum(counts), source_bytes=0, samples_by_class=counts)
    fields: dict[str, Any] = {
        "fingerprint": "planned",
        "made_from": {},
        "format": "webdataset",
        "seed": 0,
        "classes": [f"class {number}" for number in range(num_classes)],
        "splits": dict.fromkeys(SPLITS, split),
        "shards": Shards.of([]),
        "rejected": [],
        "mean": None if mean is None else [mean] * 3,
        "std": None if std is None else [std] * 3,
    }
    return ShardManifest(**{**fields, **changes})


def task_of(config: RunConfig, manifest: ShardManifest | int) -> ImageClassification:
    """Return the task of a configuration, for shards or for so many classes."""
    task = load_task(config, planned_manifest(manifest) if isinstance(manifest, int) else manifest)
    assert isinstance(task, ImageClassification)
    return task


def image_task(
    manifest: ShardManifest | int,
    data: DataSection | None = None,
    *,
    model: ModelSection | None = None,
    train: TrainSection | None = None,
    **task_arguments: Any,
) -> ImageClassification:
    """Return the task of image classification.

    Args:
        manifest: Of the shards, or a number of classes.
        data: Section of the configuration; unset: its defaults.
        model: Likewise.
        train: Likewise.
        task_arguments: Of the task's class.
    """
    config = RunConfig(
        task=TaskSection(arguments=task_arguments),
        data=data or DataSection(),
        model=model or ModelSection(),
        train=train or TrainSection(),
    )
    return task_of(config, manifest)


def image_network(section: ModelSection, num_classes: int = 3, image_size: int = 16, **more: Any) -> nn.Module:
    """Return the network of a section `model` for so many classes; `more` as `build_model` takes it."""
    config = RunConfig(model=section, data=DataSection(image_size=image_size))
    return build_model(task_of(config, num_classes), config, **more)
