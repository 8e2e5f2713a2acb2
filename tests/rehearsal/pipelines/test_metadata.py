"""What a task may say of its artifacts: as the consoles render it, and under the name that it was given."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kfp import dsl

from rehearsal.pipelines.task import check_metadata
from rehearsal.pipelines.values import TaskFailed
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.world import Pipelines, detail

METRICS, CLASSIFICATION = dsl.Metrics.schema_title, dsl.ClassificationMetrics.schema_title


@pytest.mark.parametrize(
    ("kind", "metadata", "said"),
    [
        (METRICS, {"accuracy": "high"}, "accuracy = 'high' is no number"),
        (METRICS, {"accuracy": None}, "accuracy = None is no number"),
        (METRICS, {"good": True}, "good = True is no number"),
        (METRICS, {"accuracy": math.nan}, "accuracy holds a number that is not finite"),
        (CLASSIFICATION, {"confusionMatrix": {"annotationSpecs": [], "rows": [{"row": [1]}]}}, "with a row per name"),
        (CLASSIFICATION, {"confusionMatrix": [[1, 0], [0, 1]]}, "with a row per name"),
        (CLASSIFICATION, {"confidenceMetrics": [{"recall": 1}]}, "no list of points"),
        (CLASSIFICATION, {"confidenceMetrics": [{"recall": -math.inf}]}, "not finite"),
        (METRICS, dict.fromkeys(map(str, range(20_000)), 1), "bytes, and 200,000 are allowed"),
        ("system.Dataset", {"deep": {"loss": [math.inf]}}, "deep holds a number that is not finite"),
    ],
)
def test_metadata_that_no_console_renders(kind: str, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskFailed, match=f"metadata of artifact made: .*{said}"):
        check_metadata("made", kind, metadata)


def test_metadata_that_kfp_writes_is_fine() -> None:
    made = dsl.ClassificationMetrics()
    made.log_confusion_matrix(["cat", "dog"], [[2, 0], [1, 3]])
    made.log_roc_curve([0, 0.5], [0, 1], [0.9, 0.1])
    check_metadata("made", CLASSIFICATION, made.metadata)
    metrics = dsl.Metrics()
    metrics.log_metric("accuracy", 0.5)
    check_metadata("metrics", METRICS, metrics.metadata)


@pytest.mark.parametrize(
    ("metadata", "name", "said"),
    [
        ('{"accuracy": NaN}', "", "metadata of artifact metrics: accuracy holds a number that is not finite"),
        ("{}", "mine", "artifact metrics was given the name 'mine' by its task"),
    ],
)
def test_a_task_that_says_otherwise_fails(pipelines: Pipelines, metadata: str, name: str, said: str) -> None:
    job = pipelines.run(graphs.told, metadata=metadata, name=name)
    assert said in detail(job, "tell").error.message
