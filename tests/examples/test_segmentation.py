"""The segmentation example: a task of one's own through the whole line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.examples.own_task import (
    Line,
    OwnTask,
    make_own_task,
    open_graph,
    predict,
    run_line,
)
from tests.scores import jaccard

LEAST_MEAN_IOU = 0.85


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> OwnTask:
    return make_own_task("segmentation", "shapes.csv", tmp_path_factory.mktemp("shapes"))


@pytest.mark.line
@pytest.mark.timeout(900)
def test_the_whole_line(task: OwnTask, tmp_path: Path) -> None:
    """Mean IoU, an ONNX model whose gates pass on its own signature, and an engine."""
    line = run_line(task, tmp_path)
    assert line.report.metrics["mean_iou"] >= LEAST_MEAN_IOU
    check_served(line, task.raw)


def check_served(line: Line, shapes: Path) -> None:
    """The ONNX model alone reaches, on all drawn samples, about what training measured on its test split."""
    images, masks = (
        np.stack([np.asarray(Image.open(path)) for path in sorted((shapes / kind).glob("*.png"))[:100]])
        for kind in ("images", "masks")
    )
    given = images.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
    (logits,) = open_graph(line).run(["logits"], {"image": given})
    answers = logits.argmax(axis=1)
    found = np.mean([jaccard(masks == place, answers == place) for place in range(4)])
    assert found == pytest.approx(line.report.metrics["mean_iou"], abs=0.05)
    # The answer to each test sample is the share of each class in its picture.
    rows = line.predictions[:20]
    answers = predict(line, *[shapes / row["path"].partition(",")[0] for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        assert json.loads(row["answer"]) == pytest.approx(answer, abs=0.01), row["path"]
        assert list(answer) == ["background", "disc", "square", "triangle"]
