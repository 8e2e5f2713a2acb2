"""Trainings of own tasks: documents, metrics, predictions and pages; units; the longest samples; errors named."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, Headline, Settings, find_damage
from contracts.config import RunConfig
from contracts.errors import UserError
from contracts.own_code import append_code
from inspection.metrics import classification_metadata, stage_metrics
from inspection.report.page import render_report
from inspection.view import RunView
from tests.conftest import OWN_CODE, small_config
from tests.trainer.launch.machines import make_assignment
from tests.trainer.one_rank import logs, make_training, newest, one_rank, train
from tests.trainer.test_task import events
from tests.trainer.texts import text_of, words_config, write_shards
from trainer.finish import finish
from trainer.parallel.process_group import Rank
from trainer.profiling.worker import Worker
from trainer.task import _describe

# By the path below code.path, and by files of the source.
COLOUR = r"AssertionError: a colour \(pictured\.py, line \d+\)"
SAMPLES = r"samples: (\w+/\d+\.png, ){2}\w+/\d+\.png and 1 more"
TEXTS = 48
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
    assert report.baseline is not None and report.baseline.value > 0
    baseline = f"(baseline {report.baseline.value:.4f}: the mean redness)"
    described = _describe(manifest, storage.normalise(trained / "out"))
    assert described.endswith(f"test distance {report.metrics['distance']:.4f} {baseline}")
    said = ("distance", "squares", "loss")  # The headline, the metric of the best epoch, the loss.
    epoch = ", ".join(f"{name} {manifest.metrics[f'validation_{name}']:.4f}" for name in said)
    assert f"validation {epoch}" in logs(trained)
    assert "best squares" in logs(trained)


def test_predictions_agree_with_the_evaluation(trained: Path) -> None:
    manifest, report = read(trained)
    assert manifest.predictions is not None and manifest.evaluation is not None
    assert find_damage(storage.normalise(trained / "out"), [manifest.predictions]) is None
    path = trained / "out" / manifest.predictions.name
    assert path == (trained / "out" / manifest.evaluation.name).with_name("test-predictions.parquet")
    table = parquet.read_table(path).to_pydict()
    assert list(table) == ["key", "path", "label", "answer"] and len(set(table["key"])) == report.samples
    assert all(re.fullmatch(r"(red|green|blue)/\d+\.png", path) for path in table["path"])
    distance = np.abs(np.array(table["label"]) - np.array(table["answer"])).mean()
    assert distance == pytest.approx(report.metrics["distance"], rel=1e-5)


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
    for name in ("metrics.test.distance", "metrics.test.squares", "metrics.test.loss", "metrics.validation.squares"):
        assert name in page, name
    for word in ("confusion", "Accuracy", "accuracy", "recall", "Worst samples"):
        assert word not in page, word
    assert stage_metrics(manifest)["train_test_distance"] == report.metrics["distance"]
    shown = classification_metadata(report)
    assert "confusionMatrix" not in shown and "does not classify" in shown["note"]


@pytest.mark.parametrize(
    ("broken", "given", "todo"),
    [
        ("to_model", rf"to_model returned another input: pixels is float64 \[.*; {SAMPLES}", "correct to_model"),
        ("forward", rf"failed on a batch: {COLOUR}; {SAMPLES}", "correct the network"),
        ("update", r"update failed: .*no update.*pictured\.py", "correct update"),
    ],
)
def test_what_fails_on_the_first_batch_is_named(
    rank: Rank, small_shards: str, tmp_path: Path, broken: str, given: str, todo: str
) -> None:
    """Where nothing of it shows on the example batch, which is tried before."""
    with pytest.raises(UserError, match=given) as caught:
        train(rank, tmp_path, small_shards, config_of(broken=broken))
    assert caught.value.exit_code == 2 and todo in caught.value.todo


# --- units and lengths ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("texts"), train=TEXTS)


def words_training(arguments: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    own = words_config(arguments=arguments or {})
    values = small_config(**{"train": {"global_batch_size": 8, "epochs": 2}, **sections})
    return {**values, **own, "model": {}, "data": {"num_workers": values["data"].get("num_workers", 0)}}


def test_training_tells_tokens_beside_samples(rank: Rank, text_shards: str, tmp_path: Path) -> None:
    """Of one epoch a report: what it counted is every token once, whatever slots are padded to."""
    training = make_training(rank, tmp_path, text_shards, words_training())
    training.run()
    finish(training)
    (board,) = (path.parent for path in tmp_path.rglob("*tfevents*") if "train" in path.read_bytes().decode("latin-1"))
    scalars = EventAccumulator(str(board)).Reload()
    rates = {tag: scalars.Scalars(f"train/{tag}_per_s") for tag in ("samples", "tokens")}
    assert len(rates["tokens"]) == len(rates["samples"]) == 2
    tokens = sum(len(text_of(number)) for number in range(TEXTS))
    for samples, found in zip(rates["samples"], rates["tokens"], strict=True):
        assert found.value / samples.value == pytest.approx(tokens / TEXTS, rel=1e-4)
    assert any(" tokens/s" in event["message"] for event in events(tmp_path, "a") if event["event"] == "progress")


def test_the_profile_tries_memory_on_the_longest_samples_and_counts_units(
    rank: Rank, text_shards: str, tmp_path: Path
) -> None:
    """Texts have 64 letters at most, and samples may have 32,768: of a slot of these 64 take half a GB."""
    values = words_training({"longest": 1 << 15, "positions": 1 << 15})
    values |= {"parallel": {"slot_size": "auto"}, "data": {"num_workers": "auto"}, "profile": {"window_s": 0.05}}
    del values["sharding"]
    append_code(OWN_CODE)
    assignment = make_assignment(tmp_path, config=values, shards=text_shards, ranks=1)
    worker = Worker(assignment, RunConfig.model_validate(values), rank)
    device = worker.prepare()
    assert not device.compiles and not device.has_layout
    small, large = (worker.bench.compute(size) for size in (2, 8))
    assert small.memory_bytes and large.memory_bytes
    assert large.memory_bytes - small.memory_bytes > 6 * (2 << 20)
    rate = worker.bench.window(Settings(slot_size=4, slots_per_rank=2, num_workers=1))
    assert 10 < rate.units_per_sample["tokens"] < 60
