"""The task of several labels: labels of a batch, what is refused, and what is decided by the size of the splits."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contracts.errors import DataError
from tests.conftest import small_config
from tests.trainer.tasks.for_tests import planned_manifest
from tests.trainer.tasks.image_multilabel.made import CPU, labels_task, manifest_of
from trainer.tasks.image_multilabel.scores import PAIR_BYTES
from trainer.tasks.metrics import MAX_LIST_BYTES, SplitMetrics
from trainer.tasks.optional import make_calibration
from trainer.tasks.protocol import Mode
from trainer.weights.save import save_weights

SMALL = {"data": {"image_size": 8}}


def sample(*labels: int, grey: int = 0) -> dict[str, object]:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (grey,) * 3).save(stream, "PNG")
    return {"image": stream.getvalue(), "label": labels}


def test_labels_of_a_batch_are_ones_and_there_may_be_none() -> None:
    task, mode = labels_task(manifest_of(3), sections=SMALL), Mode(training=False)
    samples = [sample(0, 2), sample(), sample(1)]
    batch = task.collate([task.prepare(one, mode) for one in samples], mode)
    assert batch["label"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]] and batch["label"].dtype == torch.float32
    assert batch["images"].dtype == torch.uint8 and batch["images"].shape == (3, 8, 8, 3)
    assert task.example(2)["label"].tolist() == [[0, 0, 0]] * 2
    (logits,) = task.signature.outputs.values()
    assert logits.compare == "values" and logits.shape == ["batch", 3]


def test_mixed_images_come_with_their_shares() -> None:
    sections = {"data": {"image_size": 8, "augment": {"mixup_alpha": 1.0}}}
    task, mode = labels_task(manifest_of(3), sections=sections), Mode(training=True, key=(0, 0, 0))
    prepared = [task.prepare(sample(number, grey=100 * number), mode) for number in range(2)]
    batch = task.to_model(task.collate(prepared, mode), mode)
    shares, means = batch["shares"], batch["images"].mean(dim=(1, 2, 3))
    ends = task.to_model(task.collate(prepared, Mode(training=False)), mode)["images"].mean(dim=(1, 2, 3))
    np.testing.assert_allclose(means, shares * ends + (1 - shares) * ends.flip(0), rtol=1e-5)


def test_the_size_of_the_splits_decides_about_bins() -> None:
    most = MAX_LIST_BYTES // PAIR_BYTES // 10
    for samples, name in ((most, "average_precision"), (most + 1, "average_precision_binned")):
        task = labels_task(manifest_of(10, samples=samples))
        metrics = SplitMetrics(task, CPU)
        assert metrics.headline.metric == task.headline == name
        assert metrics.headline.direction == "max"


def test_an_exported_network_tells_transformers_that_labels_are_several(tmp_path: Path) -> None:
    network = labels_task(manifest_of(3), sections={**SMALL, "model": small_config()["model"]}).build_model()
    save_weights(network, ["a", "b", "c"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["problem_type"], config["id2label"]["2"]) == ("multi_label_classification", "c")


def test_without_a_validation_split_thresholds_are_one_half() -> None:
    calibration = make_calibration(labels_task(manifest_of(3)), CPU)
    assert calibration is not None and calibration.document() == {"thresholds": [0.5] * 3}


def test_shards_with_one_label_are_refused() -> None:
    with pytest.raises(DataError, match="'label' of kind classes, and the source has it as class") as caught:
        labels_task(planned_manifest(3))
    assert "task.name to image_classification" in caught.value.todo
