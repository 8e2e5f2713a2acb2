"""Metrics and outcomes of a split: by their definitions at one, two and three ranks; what ranks cannot add."""

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional
from torchmetrics import MeanMetric, Metric, SumMetric
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassRecall

from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.scores import jaccard, recall
from tests.trainer.one_rank import one_rank
from tests.trainer.tasks.for_tests import image_task
from tests.trainer.tasks.splits import CLASSES, RANKS, SAMPLES, Made, make_split
from trainer.data.evaluation import EvaluationBatch
from trainer.data.reader import Origin
from trainer.predictions import OutcomeCollector
from trainer.tasks.metrics import SplitMetrics, check_metrics

CPU = torch.device("cpu")


@pytest.mark.parametrize("split", ["three batches", "one batch"])
@pytest.mark.parametrize("ranks", RANKS)
def test_metrics_are_those_of_all_predictions_together(evaluations: Any, ranks: int, split: str) -> None:
    logits, labels = make_split(SAMPLES[split])
    answers, result = logits.argmax(dim=1), evaluations[ranks][f"own, {split}"]
    metrics = result["metrics"]
    assert metrics["accuracy"] == (labels == answers).double().mean().item(), "the same bits"
    # torchmetrics weighs the classes in float32.
    known = sorted({*labels.tolist(), *answers.tolist()})
    for name, score in (("recall_macro", recall), ("mean_iou", jaccard)):
        by_class = [score((labels == place).numpy(), (answers == place).numpy()) for place in known]
        assert metrics[name] == pytest.approx(np.nan_to_num(by_class).mean(), abs=1e-7)
    assert (metrics["largest"], metrics["smallest"]) == (logits.max().item(), logits.min().item())
    assert metrics == evaluations[1][f"own, {split}"]["metrics"], "the same bits at any number of ranks"
    loss = functional.cross_entropy(logits.double(), labels, reduction="sum").item() / (2 * len(labels))
    assert result["loss"] == pytest.approx(loss, rel=1e-6), "each sample counts twice"
    assert result["samples"] == len(labels)
    assert result["details"]["right"] == int((answers == labels).sum()), "`report` has the states of all ranks"


@pytest.mark.parametrize("split", ["three batches", "one batch"])
@pytest.mark.parametrize("ranks", RANKS)
def test_outcomes_are_in_the_order_of_the_split(evaluations: Any, ranks: int, split: str) -> None:
    logits, labels = make_split(SAMPLES[split])
    result, names = evaluations[ranks][f"own, {split}"], Made.classes
    assert result["file"] == evaluations[1][f"own, {split}"]["file"], "the same bytes at any number of ranks"
    assert result["columns"]["loss"].tolist() == logits.logsumexp(dim=1).tolist()
    assert result["columns"]["shard"] == ["test-0.tar"] * len(labels)
    table = parquet.read_table(io.BytesIO(result["file"])).to_pydict()
    assert list(table) == ["key", "path", "label", "answer", "probability"]
    assert table["path"] == [f"{place}.png" for place in range(len(labels))]
    assert table["label"] == [names[label] for label in labels.tolist()]
    assert table["answer"] == [[names[place] for place in row] for row in logits.topk(2, dim=1).indices.tolist()]
    assert table["probability"] == [f'{{"label": {label}}}' if label else "null" for label in labels.tolist()]
    agreement = [label == answers[0] for label, answers in zip(table["label"], table["answer"], strict=True)]
    assert sum(agreement) / len(labels) == result["metrics"]["accuracy"]


def test_outcomes_are_a_value_for_each_sample() -> None:
    task: Any = Made()
    task.outcomes = lambda outputs, batch: {"answer": [1]}
    batch = EvaluationBatch({}, range(2), (Origin("test-0.tar", "0", None),) * 2)
    with pytest.raises(ConfigError, match="outcomes") as caught:
        OutcomeCollector(task, RunConfig()).add(None, batch)
    assert "returned {'answer': 1} for 2 samples" in caught.value.given


def test_tasks_are_imported_without_torchmetrics() -> None:
    """It takes 1.4 s, which every start of a rank would pay."""
    code = "import sys, trainer.tasks.multilabel, trainer.tasks.text; sys.exit('torchmetrics' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- what is refused --------------------------------------------------------------------------------------------------


class Own(Metric):
    """Sums by a function of its own."""

    higher_is_better = True
    full_state_update = False

    def __init__(self, reduction: Any) -> None:
        super().__init__()
        self.add_state("sum", torch.zeros(()), dist_reduce_fx=reduction)

    def update(self, values: torch.Tensor) -> None:
        self.sum = self.sum + values

    def compute(self) -> torch.Tensor:
        return self.sum


def task_of(metrics: Any, headline: str = "one") -> Any:
    task: Any = Made()
    task.headline, task.metrics = headline, lambda: metrics
    task.update = lambda by_name, outputs, batch: [metric.update(outputs) for metric in by_name.values()]
    return task


def accuracy() -> Metric:
    return MulticlassAccuracy(CLASSES)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: {"one": SumMetric()}, "SumMetric one does not say whether higher is better"),
        (lambda: {"one": BinaryAUROC()}, "BinaryAUROC one keeps preds as a list"),
        (lambda: {"loss": accuracy()}, "'loss' is no name"),
        (lambda: {"two": accuracy()}, "headline of the task is 'one', which is not one of its metrics"),
    ],
)
def test_what_ranks_cannot_add_is_refused(make: Callable[[], Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SplitMetrics(task_of(make()), CPU)
    assert given in caught.value.given and caught.value.allowed and caught.value.todo


def test_a_metric_is_one_number_and_keeps_its_shape() -> None:
    with one_rank():
        metrics = SplitMetrics(task_of({"one": MulticlassRecall(CLASSES, average="none")}), CPU)
        metrics.by_name["one"].update(torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
        with pytest.raises(ConfigError, match=r"MulticlassRecall returned a tensor \[4\]"):
            metrics.reduce()
        metrics = SplitMetrics(task_of({"one": Own("sum")}), CPU)
        metrics.update(torch.zeros(3), {})
        with pytest.raises(ConfigError, match="state sum of Own has grown"):
            metrics.reduce()
        metrics = SplitMetrics(task_of({"one": Own("sum")}), CPU)
        metrics.update(torch.tensor(torch.nan), {})
        assert metrics.reduce() == {}, "what is no finite number is left out"


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        ({"checkpoint": {"best_metric": "test_accuracy"}}, "checkpoint.best_metric is test_accuracy"),
        ({"train": {"early_stopping": {"metric": "f2"}}}, "train.early_stopping.metric is f2"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_names_that_there_are(sections: dict[str, Any], given: str) -> None:
    with pytest.raises(ConfigError, match=given) as caught:
        check_metrics(RunConfig.model_validate(small_config(**sections)), image_task(3))
    assert caught.value.allowed.startswith("validation_accuracy, ") and "validation_loss" in caught.value.allowed


def test_an_own_tasks_metrics_are_checked_though_nothing_is_asked_for() -> None:
    config = RunConfig.model_validate(small_config(task={"name": "mine:Task"}, code={"path": "mine"}))
    with pytest.raises(ConfigError, match="MeanMetric one does not say"):
        check_metrics(config, task_of({"one": MeanMetric()}))
