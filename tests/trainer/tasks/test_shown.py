"""What is written and shown of a task that knows no classes: headline, metrics; no part of another task."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from components.describe import describe_classes
from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, Headline
from contracts.errors import ConfigError, UserError
from contracts.own_code import append_code
from inspection.metrics import stage_metrics
from inspection.page import render_report
from inspection.run.view import RunView
from tests.conftest import OWN_CODE, small_config
from tests.trainer.one_rank import logs, newest, one_rank, train
from trainer.parallel.process_group import Rank
from trainer.task import _describe

# By the path below code.path, and by files of the source.
COLOUR = r"AssertionError: a colour \(pictured\.py, line \d+\)"
SAMPLES = r"samples: (\w+/\d+\.png, ){2}\w+/\d+\.png and 1 more"
TRAIN = {"epochs": 3, "early_stopping": {"metric": "squares", "patience": 3}}


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with one_rank() as rank:
        yield rank


def config_of(**arguments: Any) -> dict[str, Any]:
    task = {"name": "pictured:Redness", "arguments": arguments}
    return small_config(task=task, train=TRAIN, checkpoint={"best_metric": "validation_squares"})


@pytest.fixture(scope="module")
def trained(rank: Rank, small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    append_code(OWN_CODE)
    folder = tmp_path_factory.mktemp("redness")
    train(rank, folder, small_shards, config_of())
    return folder


def read(folder: Path) -> tuple[CheckpointManifest, EvaluationReport]:
    uri = storage.normalise(folder / "out")
    manifest = CheckpointManifest.load(uri)
    assert manifest.evaluation is not None
    return manifest, EvaluationReport.load(manifest.evaluation.uri(uri))


def test_documents_have_the_tasks_own_metrics(trained: Path) -> None:
    manifest, report = read(trained)
    assert manifest.task["name"] == report.task == "pictured:Redness"
    assert manifest.headline == report.headline == Headline(metric="distance", direction="min")
    assert manifest.directions == {"distance": "min", "squares": "min"}
    names = ("distance", "squares", "loss")
    expected = {f"{split}_{name}" for split in ("validation", "test") for name in names} | {"test_samples"}
    assert set(manifest.metrics) == expected
    assert set(report.metrics) == {"distance", "squares"} and report.details == {}
    # The mean of squares is the loss, and the distance is another number.
    assert report.loss == pytest.approx(report.metrics["squares"], rel=1e-6) != report.metrics["distance"]
    squares = [newest(trained).best_metrics["validation_squares"], manifest.metrics["validation_squares"]]
    assert squares[0] == squares[1], "the best is by checkpoint.best_metric"
    assert newest(trained).early_stopping is not None
    assert newest(trained).early_stopping.best == min(squares)  # type: ignore[union-attr]
    assert _describe(manifest).endswith(f"test distance {report.metrics['distance']:.4f}")
    said = ("distance", "squares", "loss")  # The headline, the metric of the best epoch, the loss.
    epoch = ", ".join(f"{name} {manifest.metrics[f'validation_{name}']:.4f}" for name in said)
    assert f"validation {epoch}" in logs(trained)
    assert "best squares" in logs(trained)


def test_tensorboard_has_metrics(trained: Path) -> None:
    (result,) = Path(trained).glob("**/result/events*")
    found = EventAccumulator(str(result)).Reload()
    assert {"test/distance", "test/squares", "test/loss", "best/validation_squares"} <= set(found.Tags()["scalars"])
    assert not any("precision" in tag or "confusion" in tag for tags in found.Tags().values() if tags for tag in tags)


def view_of(trained: Path) -> RunView:
    manifest, report = read(trained)
    return RunView(
        id="r", name="n", line="file:///l", folder="file:///l/runs/r", place="local", state="succeeded", seen_at=1.0,
        config={"task": {"name": report.task}}, stages=[], checkpoint=manifest, evaluation=report,
    )  # fmt: skip


def test_its_page_shows_headline_and_metrics_and_no_part_of_another_task(trained: Path) -> None:
    manifest, report = read(trained)
    page = render_report(view_of(trained))
    assert "Test distance" in page and "lower is better" in page
    tile = page.partition('data-figure="overview.metric"')
    assert repr(report.metrics["distance"]) in tile[0][-100:] + tile[2][:100]
    for name in ("results.distance", "results.squares", "results.loss", "metrics.validation_squares"):
        assert name in page, name
    for word in ("Confusion", "ROC", "Accuracy", "accuracy", "recall", "Worst classified"):
        assert word not in page, word
    assert stage_metrics(manifest)["train_test_distance"] == report.metrics["distance"]
    assert "confusionMatrix" not in describe_classes(report) and "no classification" in describe_classes(report)["note"]


def test_an_unknown_metric_ends_training_before_it_begins(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    config = config_of() | {"checkpoint": {"best_metric": "accuracy"}}
    with pytest.raises(ConfigError, match="no metric of that name") as caught:
        train(rank, tmp_path, small_shards, config)
    assert caught.value.allowed == "validation_distance, validation_squares, validation_loss"
    assert caught.value.exit_code == 2


def test_own_code_that_fails_in_an_evaluation_is_named(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"update failed: .*no update") as caught:
        train(rank, tmp_path, small_shards, config_of(broken="update"))
    assert "pictured.py" in caught.value.given


@pytest.mark.parametrize(
    ("broken", "given", "todo"),
    [
        ("to_model", rf"to_model returned pixels as float64 \[\d+, 3, 16, 16\]; {SAMPLES}", "correct to_model"),
        ("forward", rf"failed on a batch: {COLOUR}; {SAMPLES}", "correct the network"),
        ("evaluation", f"failed on a batch: {COLOUR}", "correct the network"),
    ],
)
def test_what_fails_on_the_first_batch_is_named(
    rank: Rank, small_shards: str, tmp_path: Path, broken: str, given: str, todo: str
) -> None:
    """Where nothing of it shows on the example batch, which is tried before."""
    with pytest.raises(UserError, match=given) as caught:
        train(rank, tmp_path, small_shards, config_of(broken=broken))
    assert caught.value.exit_code == 2 and todo in caught.value.todo
