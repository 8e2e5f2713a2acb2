"""Drawn logits and labels, the tool's tasks for them, and their evaluations; cases of splits.py and weighted.py too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.config import RunConfig
from tests.trainer.tasks import splits, weighted
from tests.trainer.tasks.for_tests import planned_manifest
from tests.trainer.tasks.splits import evaluate_batches, evaluate_tensors
from trainer.evaluate import EVALUATION_BATCH
from trainer.tasks.image import ImageClassification
from trainer.tasks.multilabel import ImageMultilabel
from trainer.tasks.task import Task, TaskContext

# Three batches, the last one short: of two ranks the second has one of them. One batch: other ranks have no sample.
SAMPLES, ONE_BATCH = 2 * EVALUATION_BATCH + 7, 16
CLASSES, LABELS = 4, 5
NOBODY, CERTAIN = 2, 4
"""A class without samples that is an answer, and one with very large logits."""


def class_split(samples: int = SAMPLES, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, classes], some rows alike, and labels [N]: with more than two nobody is of one class."""
    random = np.random.default_rng(3)
    labels = random.choice([place for place in range(classes) if place != NOBODY], samples)
    logits = np.round(random.normal(size=(samples, classes)), 1)
    logits[np.arange(samples), labels] += 1
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


def label_split(samples: int = SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, LABELS] and labels [N, LABELS] float32."""
    random = np.random.default_rng(3)
    labels = random.random((samples, LABELS)) < [0.3, 0.6, 0.0, 0.2, 0.5]
    logits = random.normal(size=(samples, LABELS)) + 1.5 * labels
    logits[:, CERTAIN] += 40
    return torch.from_numpy(logits).float(), torch.from_numpy(labels).float()


def class_task(num_classes: int = CLASSES, counts: list[int] | None = None, **sections: Any) -> ImageClassification:
    arguments = sections.pop("arguments", {})
    config = RunConfig.model_validate(sections)
    manifest = planned_manifest(num_classes, samples_by_class=counts)
    return ImageClassification(TaskContext(config, manifest, "file:///written"), **arguments)


def labels_manifest(num_classes: int = LABELS, counts: list[int] | None = None, samples: int = 40) -> ShardManifest:
    counts = counts or [samples // 2] * num_classes
    split = SplitEntry(first=0, samples=samples, source_bytes=0, samples_by_class=counts)
    splits = dict.fromkeys(("train", "validation", "test"), split)
    return planned_manifest(num_classes, multi_label=True, splits=splits)


def labels_task(
    num_classes: int = LABELS,
    *,
    arguments: dict[str, Any] | None = None,
    counts: list[int] | None = None,
    **sections: Any,
) -> ImageMultilabel:
    config = RunConfig.model_validate({"task": {"name": "image_multilabel"}, **sections})
    context = TaskContext(config, labels_manifest(num_classes, counts), "file:///written")
    return ImageMultilabel(context, **(arguments or {}))


def evaluate_split(task: Task, logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Any] | None:
    """Do what the end of training does, by all ranks: calibration, metrics, report and baseline."""
    split = {"images": logits, "label": labels}
    validation = evaluate_batches(task, split)
    assert validation is not None
    task.calibration = task.calibrate(validation.reduced)
    result = evaluate_tensors(task, split)
    if result is None or "columns" not in result:
        return None
    baseline = task.baseline(result["columns"])
    assert baseline is not None
    return {
        "metrics": result["metrics"],
        "file": result["file"],
        "details": result["details"],
        "calibration": dict(task.calibration),
        "baseline": (baseline.description, baseline.value),
    }


CASES: dict[str, Callable[[], dict[str, Any] | None]] = {
    **splits.CASES,
    "classes": lambda: evaluate_split(class_task(counts=[1, 5, 3, 3]), *class_split()),
    "two classes": lambda: evaluate_split(class_task(2), *class_split(classes=2)),
    "one batch": lambda: evaluate_split(class_task(), *class_split(ONE_BATCH)),
    "labels": lambda: evaluate_split(labels_task(), *label_split()),
    # Last: they ask for deterministic algorithms.
    **weighted.CASES,
}
