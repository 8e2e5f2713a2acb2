"""The regression example: a number from an image through kills, other numbers of ranks, and the whole line."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.examples.own_task import (
    Line,
    OwnTask,
    check_kills,
    check_other_ranks,
    make_own_task,
    open_graph,
    predict,
    run_line,
)

MOST_ERROR = 5.0


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> OwnTask:
    return make_own_task("regression", "gauges.csv", tmp_path_factory.mktemp("gauges"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_and_other_numbers_of_ranks(task: OwnTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_kills(task, tmp_path / "kills", "absolute_error")
    check_other_ranks(task, tmp_path / "ranks", monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_line(task: OwnTask, tmp_path: Path) -> None:
    """An error far below the baseline's, told for each test sample, and an ONNX model that reads gauges alone."""
    line = run_line(task, tmp_path)
    labels, answers = (np.array([row[name] for row in line.predictions]) for name in ("label", "answer"))
    assert line.report.metrics["absolute_error"] == pytest.approx(np.abs(labels - answers).mean(), abs=0.01)
    assert line.report.metrics["absolute_error"] <= MOST_ERROR
    assert line.report.baseline is not None
    assert line.report.baseline.value == pytest.approx(np.abs(labels - labels.mean()).mean())
    assert line.report.baseline.value > 4 * MOST_ERROR
    check_served(line, task.raw)
    files = [task.raw / row["path"] for row in line.predictions]
    assert predict(line, *files) == pytest.approx(list(answers), abs=0.5)


def check_served(line: Line, gauges: Path) -> None:
    """The ONNX model alone gives the answer of each test sample, whose label is that of the table."""
    with (gauges / "gauges.csv").open() as file:
        readings = {row["image"]: float(row["reading"]) for row in csv.DictReader(file)}
    paths = [row["path"].partition(",")[0] for row in line.predictions]
    assert [row["label"] for row in line.predictions] == pytest.approx([readings[path] for path in paths], abs=1e-4)
    images = np.stack([np.asarray(Image.open(gauges / path)) for path in paths])
    given = images.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
    graph = open_graph(line)
    # Of a size that the export serves.
    parts = [graph.run(["reading"], {"image": given[first : first + 16]})[0] for first in range(0, len(given), 16)]
    assert np.concatenate(parts)[:, 0] == pytest.approx([row["answer"] for row in line.predictions], abs=0.5)
