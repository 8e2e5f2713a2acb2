"""Logits and labels that are drawn, the task for them, and its evaluations by several ranks (see splits.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.config import RunConfig
from tests.trainer.tasks.for_tests import planned_manifest
from trainer.evaluate import EVALUATION_BATCH, Placed, evaluate
from trainer.tasks.image_multilabel.task import ImageMultilabel
from trainer.tasks.load import load_task
from trainer.tasks.optional import make_calibration, make_report

CLASSES = 5
NOBODY, SAID_OF_NONE, CERTAIN = 2, 3, 4
"""A class without samples that is said, one with samples that is never said at one half, and one with large logits."""
# Three batches, the last one short: of two ranks the second has one of them.
SAMPLES = 2 * EVALUATION_BATCH + 7
CPU = torch.device("cpu")


def make_split(samples: int = SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, classes], some of them alike, and labels [N, classes] float32."""
    random = np.random.default_rng(3)
    labels = random.random((samples, CLASSES)) < [0.3, 0.6, 0.0, 0.2, 0.5]
    logits = np.round(random.normal(size=(samples, CLASSES)) + 1.5 * labels, 1)
    logits[:, SAID_OF_NONE] -= 8
    # Their probabilities are all 1 in float64, or nearly so.
    logits[:, CERTAIN] += 40
    return torch.from_numpy(logits).float(), torch.from_numpy(labels).float()


def manifest_of(num_classes: int = CLASSES, *, samples: int = SAMPLES, **changes: Any) -> ShardManifest:
    """The manifest of shards that nobody has written, of so many samples in each split."""
    counts = [samples // 2] * num_classes
    split = SplitEntry(first=0, samples=samples, source_bytes=0, samples_by_class=counts)
    splits = dict.fromkeys(("train", "validation", "test"), split)
    return planned_manifest(num_classes, **{"multi_label": True, "splits": splits, **changes})


def labels_task(
    manifest: ShardManifest, *, sections: dict[str, Any] | None = None, **arguments: Any
) -> ImageMultilabel:
    """Return the task for shards."""
    task = {"name": "image_multilabel", "arguments": arguments}
    found = load_task(RunConfig.model_validate({"task": task, **(sections or {})}), manifest, "file:///written")
    assert isinstance(found, ImageMultilabel)
    return found


def evaluate_by_ranks(task: ImageMultilabel) -> dict[str, Any] | None:
    """Do what the end of training does, by all ranks: thresholds, then the report with them."""
    logits, labels = make_split()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def batches() -> Iterator[Placed]:
        for start in range(rank * EVALUATION_BATCH, SAMPLES, ranks * EVALUATION_BATCH):
            own = range(start, min(start + EVALUATION_BATCH, SAMPLES))
            yield {"images": logits[own], "label": labels[own]}, own

    def run(collector: Any) -> Any:
        rounds = -(-SAMPLES // (EVALUATION_BATCH * ranks))
        found = evaluate(nn.Identity(), task, batches(), rounds, CPU, report=collector)
        collector.merge()
        return found

    calibration = make_calibration(task, CPU)
    assert calibration is not None
    run(calibration)
    chosen = [calibration.document() if rank == 0 else {}]
    dist.broadcast_object_list(chosen, src=0)
    report = make_report(task, CPU, chosen[0])
    assert report is not None
    found = run(report)
    if rank:
        return None
    places = report.places()
    details = report.details([("shard", str(place)) for place in places])
    return {"metrics": found.metrics, "loss": found.loss, "headline": found.headline.metric, **chosen[0], **details}


CASES = {
    "exact": lambda: evaluate_by_ranks(labels_task(manifest_of())),
    # By what the manifest says of its splits: ten million samples do not fit.
    "binned": lambda: evaluate_by_ranks(labels_task(manifest_of(samples=10_000_000))),
}
