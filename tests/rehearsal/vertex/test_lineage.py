"""Artifacts and executions of pipelines' runs and of clients, by the real metadata client."""

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict, NotFound
from google.cloud import aiplatform_v1

from rehearsal.pipelines.task_details import note_tasks

from .conftest import NUMBER, Cloud, pipeline_job, rest

PARENT = f"projects/{NUMBER}/locations/us-central1"
STORE = f"{PARENT}/metadataStores/default"


def artifact(number: int, name: str, title: str, **metadata: Any) -> dict[str, Any]:
    """An artifact of a task, as reports have it."""
    return {
        "name": f"{STORE}/artifacts/{number}-{name}",
        "uri": f"gs://b/{name}",
        "type": {"schemaTitle": title, "schemaVersion": "0.0.1"},
        "metadata": metadata,
    }


@pytest.fixture
def client(cloud: Cloud) -> Any:
    """A client, and two runs with a task each."""
    pipelines = rest(cloud, aiplatform_v1.PipelineServiceClient)
    for number in (1, 2):
        job = aiplatform_v1.PipelineJob(pipeline_job())
        name = pipelines.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id=f"run-{number}").name
        report = {
            "path": ["train", "report"],
            "id": number,
            "state": "SUCCEEDED",
            "attempt": 1,
            "out": {
                "metrics": [artifact(number, "metrics", "system.Metrics", train_test_accuracy=0.9)],
                "page": [artifact(number, "page", "system.HTML", stage="train")],
            },
            "in": {"model": [artifact(number, "model", "system.HTML", stage="train")]},
        }
        cloud.store.update(name, lambda job, told=report: note_tasks(job, [told], cloud.clock.now()))
    return rest(cloud, aiplatform_v1.MetadataServiceClient)


def titles(found: Any) -> list[str]:
    return sorted(item.schema_title for item in found)


def test_a_runs_artifacts_and_what_made_them(client: Any) -> None:
    found = client.query_context_lineage_subgraph(context=f"{STORE}/contexts/run-1")
    assert titles(found.artifacts) == ["system.HTML", "system.HTML", "system.Metrics"]
    assert titles(found.executions) == ["system.ContainerExecution", "system.Run"]
    made = {event.artifact.rpartition("-")[2]: event.type_.name for event in found.events}
    assert made == {"metrics": "OUTPUT", "page": "OUTPUT", "model": "INPUT"}
    (run,) = (one for one in found.executions if one.schema_title == "system.Run")
    assert dict(run.metadata) == {"input:region": "us-central1"} and run.state.name == "RUNNING"
    both = client.query_context_lineage_subgraph(context=f"{STORE}/contexts/line")
    assert len(both.artifacts) == 6
    assert client.get_artifact(name=f"{STORE}/artifacts/1-metrics").metadata["train_test_accuracy"] == 0.9
    assert client.get_execution(name=run.name).schema_title == "system.Run"


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ('in_context("{run}")', 3),
        ('(schema_title="system.Metrics" OR schema_title="google.ClassificationMetrics") AND in_context("{run}")', 1),
        ('in_context("{run}") AND schema_title="system.HTML" AND uri="gs://b/page"', 1),
        ('schema_title="system.HTML"', 4),
        ('in_context("nobody")', 0),
        ("", 6),
    ],
)
def test_what_is_listed(client: Any, filter: str, expected: int) -> None:
    wanted = filter.format(run=f"{STORE}/contexts/run-2")
    assert len(list(client.list_artifacts(request={"parent": STORE, "filter": wanted}))) == expected


@pytest.mark.parametrize("filter", ["in_context(x)", "(state=a", "state=a OR", "state=a state=b"])
def test_what_is_not_understood_is_refused(client: Any, filter: str) -> None:
    with pytest.raises(BadRequest, match="is not understood"):
        client.list_executions(request={"parent": STORE, "filter": filter})


def test_what_clients_create_is_in_the_contexts_that_it_was_put_into(client: Any) -> None:
    made = client.create_artifact(parent=STORE, artifact={"schema_title": "google.X"}, artifact_id="mine")
    with pytest.raises(Conflict):
        client.create_artifact(parent=STORE, artifact={}, artifact_id="mine")
    context = f"{STORE}/contexts/run-1"
    client.add_context_artifacts_and_executions(context=context, artifacts=[made.name])
    assert "google.X" in titles(client.query_context_lineage_subgraph(context=context).artifacts)
    other = client.query_context_lineage_subgraph(context=f"{STORE}/contexts/run-2")
    assert "google.X" not in titles(other.artifacts)
    # Contexts are listed as before.
    assert len(list(client.list_contexts(parent=STORE))) == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get_artifact(name=f"{STORE}/artifacts/none"),
        lambda client: client.get_execution(name=f"{STORE}/executions/none"),
        lambda client: client.list_artifacts(parent=f"{PARENT}/metadataStores/none"),
        lambda client: client.query_context_lineage_subgraph(context=f"{STORE}/contexts/none"),
        lambda client: client.add_context_artifacts_and_executions(
            context=f"{STORE}/contexts/run-1", artifacts=[f"{STORE}/artifacts/none"]
        ),
        lambda client: client.add_context_artifacts_and_executions(context=f"{STORE}/contexts/none"),
    ],
)
def test_what_is_not_there(client: Any, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(NotFound):
        ask(client)


def test_an_artifact_that_says_too_much_is_refused(client: Any) -> None:
    with pytest.raises(BadRequest, match="200,000 are allowed"):
        client.create_artifact(parent=STORE, artifact={"metadata": {"note": "x" * 200_000}})
