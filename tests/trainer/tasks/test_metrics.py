"""Metrics of a task: reduced over ranks, equal to scikit-learn's, refused where they cannot be."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    jaccard_score,
    recall_score,
    roc_auc_score,
)
from torch.nn import functional
from torchmetrics import MeanMetric, MeanSquaredError, Metric, MetricCollection, PearsonCorrCoef, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.trainer.one_rank import one_rank
from tests.trainer.tasks import splits
from tests.trainer.tasks.splits import CLASSES, SAMPLES, Made, make_split
from trainer.tasks.metrics import MAX_LIST_BYTES, SplitMetrics, check_metrics

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    subprocess.run([sys.executable, "-m", "tests.trainer.tasks.splits", str(folder)], check=True, timeout=240)
    return folder


@pytest.fixture(params=[2, 3])
def found(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """What each case returned at so many ranks."""
    return {case: torch.load(folder / f"{request.param}/{case}.pt") for case in splits.CASES}


@pytest.mark.parametrize("split", ["three batches", "one batch"])
def test_metrics_are_those_of_all_predictions_together(found: dict[str, Any], split: str) -> None:
    logits, labels = make_split(SAMPLES[split])
    said = logits.argmax(dim=1)
    metrics = found[split]["metrics"]
    assert metrics["accuracy"] == accuracy_score(labels, said), "the same bits"
    assert metrics["f1_macro"] == pytest.approx(
        f1_score(labels, said, labels=labels.unique().tolist(), average="macro"), abs=1e-15
    )
    expected = recall_score(labels, said, labels=labels.unique().tolist(), average="macro")
    assert metrics["recall_macro"] == pytest.approx(expected, abs=1e-15)
    # The example's own metric; torchmetrics weighs the classes in float32.
    assert metrics["mean_iou"] == pytest.approx(jaccard_score(labels, said, average="macro"), abs=1e-7)
    score = logits[:, 0].sigmoid()
    # Exact, of gathered predictions; torchmetrics adds up in float32.
    assert metrics["auroc"] == pytest.approx(roc_auc_score(labels == 0, score), abs=1e-6)
    assert metrics["ordered"] == pytest.approx(splits.weigh(logits[:, 0]).item()), "in the order of the split"
    assert (metrics["largest"], metrics["smallest"]) == (logits.max().item(), logits.min().item())
    sums = [
        functional.cross_entropy(one, label, reduction="sum").double().item()
        for one, label in zip(logits.split(64), labels.split(64), strict=True)
    ]
    # Each sample counts twice.
    assert found[split]["loss"] == pytest.approx(sum(sums) / (2 * len(labels)), rel=1e-14)
    assert found[split]["samples"] == len(labels)


def test_a_split_without_samples_has_no_evaluation(found: dict[str, Any]) -> None:
    assert found["none"] is None


def test_values_are_the_same_bits_at_any_number_of_ranks(found: dict[str, Any]) -> None:
    with one_rank():
        for split in ("three batches", "one batch"):
            expected = splits.evaluate_split(SAMPLES[split], Made("all"))
            assert expected is not None
            assert found[split]["metrics"] == expected["metrics"], "lists too are in the order of the split"
            assert found[split]["loss"] == pytest.approx(expected["loss"], rel=1e-15)


def test_lists_have_a_largest_size(found: dict[str, Any]) -> None:
    assert "over all ranks" in found["too large"]
    assert MAX_LIST_BYTES == 64 << 20


# --- what is refused --------------------------------------------------------------------------------------------------

QUIET = {"sync_on_compute": False}


class Own(Metric):
    """Sums by a function of its own."""

    higher_is_better = True
    full_state_update = False

    def __init__(self, reduction: Any, *, is_list: bool = False) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("sum", [] if is_list else torch.zeros(()), dist_reduce_fx=reduction)

    def update(self, values: torch.Tensor) -> None:
        self.sum = self.sum + values

    def compute(self) -> torch.Tensor:
        return self.sum


class Plain(Metric):
    """Counts in an attribute, of which nobody tells the other ranks."""

    higher_is_better = True

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.count = 0

    def update(self, values: torch.Tensor) -> None:
        self.count += len(values)

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.count)


def task_of(metrics: Any, headline: str = "one") -> Any:
    task = Made()
    task.headline = headline  # type: ignore[misc]
    task.metrics = lambda: metrics  # type: ignore[method-assign]
    task.update = lambda found, outputs, batch: [one.update(outputs) for one in found.values()]  # type: ignore[method-assign,assign]
    return task


def accuracy(**options: Any) -> Metric:
    return MulticlassAccuracy(CLASSES, **{**QUIET, **options})


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: {"one": accuracy(sync_on_compute=True)}, "MulticlassAccuracy one would add up over ranks by itself"),
        (lambda: {"one": SumMetric(**QUIET)}, "SumMetric one does not say whether higher is better"),
        (lambda: {"one": PearsonCorrCoef(**QUIET)}, "PearsonCorrCoef one does not say whether higher is better"),
        (lambda: {"one": Own("mean")}, "reduced over ranks by mean"),
        (lambda: {"one": Own(torch.sum)}, "reduced over ranks by sum"),
        (lambda: {"one": Own(None, is_list=True)}, "a list, is reduced over ranks by None"),
        (lambda: {"one": Own("cat")}, "a tensor, is reduced over ranks by cat"),
        (lambda: {"one": Plain()}, "Plain one has no state that is added up over ranks"),
        (lambda: {"one": 1.0}, "one is a float"),
        (lambda: {"loss": accuracy()}, "'loss' is no name of a metric"),
        (lambda: {"test_one": accuracy()}, "'test_one' is no name of a metric"),
        (lambda: {"a b": accuracy()}, "'a b' is no name of a metric"),
        (lambda: MetricCollection({"one": accuracy()}), "returned a MetricCollection"),
        (lambda: [accuracy()], "returned a list"),
        (lambda: {"two": accuracy()}, "headline of the task is 'one', which is none of its metrics"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(make: Callable[[], Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SplitMetrics(task_of(make()), CPU)
    assert given in caught.value.given
    assert caught.value.allowed and caught.value.todo


def test_a_metric_within_another_is_looked_at_too() -> None:
    outer = Own("sum")
    outer.inner = MeanSquaredError(sync_on_compute=True)
    with pytest.raises(ConfigError, match="MeanSquaredError one would add up"):
        SplitMetrics(task_of({"one": outer}), CPU)
    outer.inner = MeanSquaredError(sync_on_compute=False)
    SplitMetrics(task_of({"one": outer}), CPU)
    assert outer.inner.sum_squared_error.dtype == torch.float64


def test_a_metric_is_one_number_and_keeps_its_shape() -> None:
    totals = torch.ones(3, dtype=torch.float64)
    with one_rank():
        task = task_of({"one": MulticlassRecall(CLASSES, average="none", **QUIET)})
        task.update = lambda found, outputs, batch: found["one"].update(outputs, batch["label"])
        metrics = SplitMetrics(task, CPU)
        metrics.update(torch.zeros(2, dtype=torch.int64), {"label": torch.zeros(2, dtype=torch.int64)})
        with pytest.raises(ConfigError, match=r"MulticlassRecall one came to a tensor \[4\]"):
            metrics.reduce(totals.clone())
        metrics = SplitMetrics(task_of({"one": Own("sum")}), CPU)
        metrics.update(torch.zeros(3), {})
        with pytest.raises(ConfigError, match="state sum of Own has grown"):
            metrics.reduce(totals.clone())
        metrics = SplitMetrics(task_of({"one": Own("sum"), "two": Own("sum")}), CPU)
        metrics.update(torch.tensor(torch.nan), {})
        assert metrics.reduce(totals.clone())[1] == {}, "what is no finite number is left out"


def test_the_headline_may_be_the_loss() -> None:
    found = SplitMetrics(task_of({}, headline="loss"), CPU)
    assert (found.headline.metric, found.headline.direction, found.directions) == ("loss", "min", {})


def test_directions_are_those_of_the_metrics() -> None:
    error = MeanSquaredError(**QUIET)
    assert SplitMetrics(task_of({"one": error, "two": accuracy()}), CPU).directions == {"one": "min", "two": "max"}


def config_of(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(small_config(**sections))


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        ({"checkpoint": {"best_metric": "validation_f2"}}, "checkpoint.best_metric is validation_f2"),
        ({"checkpoint": {"best_metric": "test_accuracy"}}, "checkpoint.best_metric is test_accuracy"),
        ({"train": {"early_stopping": {"metric": "f2"}}}, "train.early_stopping.metric is f2"),
    ],
)  # fmt: skip
def test_an_unknown_metric_is_refused_with_the_names_that_there_are(sections: dict[str, Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_metrics(config_of(**sections), Made())  # type: ignore[arg-type]
    assert given in caught.value.given
    expected = "validation_accuracy, validation_f1_macro, validation_recall_macro, validation_loss"
    assert caught.value.allowed == expected


@pytest.mark.parametrize("metric", ["", "accuracy", "validation_loss", "validation_f1_macro", "recall_macro"])
def test_any_metric_of_the_task_may_be_the_best(metric: str) -> None:
    stopping = {"early_stopping": {"metric": metric}} if metric else {}
    check_metrics(config_of(checkpoint={"best_metric": metric}, train=stopping), Made())  # type: ignore[arg-type]


def test_an_own_tasks_metrics_are_checked_though_nothing_is_asked_for() -> None:
    config = config_of(task={"name": "mine:Task"}, code={"path": "mine"})
    with pytest.raises(ConfigError, match="MeanMetric one does not say"):
        check_metrics(config, task_of({"one": MeanMetric(**QUIET)}))
