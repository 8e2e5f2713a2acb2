"""What a task may say of its artifacts: as the consoles render it, and under the name that it was given."""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.

import math
from typing import Any

import pytest
from kfp import dsl

from rehearsal.pipelines.artifact_metadata import find_fault
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
        ("system.Dataset", {"deep": {"loss": [math.inf]}}, "deep holds a number that is not finite"),
    ],
)
def test_metadata_that_no_console_renders(kind: str, metadata: dict[str, Any], said: str) -> None:
    assert said in find_fault(kind, metadata)


def test_metadata_that_kfp_writes_is_fine() -> None:
    made = dsl.ClassificationMetrics()
    made.log_confusion_matrix(["cat", "dog"], [[2, 0], [1, 3]])
    made.log_roc_curve([0, 0.5], [0, 1], [0.9, 0.1])
    assert find_fault(CLASSIFICATION, made.metadata) == ""
    metrics = dsl.Metrics()
    metrics.log_metric("accuracy", 0.5)
    assert find_fault(METRICS, metrics.metadata) == ""


@dsl.container_component  # type: ignore[untyped-decorator]
def tell(said: str, metrics: dsl.Output[dsl.Metrics]) -> dsl.ContainerSpec:
    write = 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"'
    return dsl.ContainerSpec(
        image="debian", command=["sh", "-c", write, "sh"], args=["{{$.outputs.output_file}}", said]
    )


@dsl.pipeline(name="tells")  # type: ignore[untyped-decorator]
def tells(metadata: str, name: str) -> None:
    tell(said=f'{{"artifacts": {{"metrics": {{"artifacts": [{{"name": "{name}", "metadata": {metadata}}}]}}}}}}')


@pytest.mark.parametrize(
    ("metadata", "name", "said"),
    [
        ('{"accuracy": NaN}', "", "metadata of artifact metrics: accuracy holds a number that is not finite"),
        ("{}", "mine", "artifact metrics was given the name 'mine' by its task"),
    ],
)
def test_a_task_that_says_otherwise_fails(pipelines: Pipelines, metadata: str, name: str, said: str) -> None:
    job = pipelines.run(tells, metadata=metadata, name=name)
    assert said in detail(job, "tell").error.message
