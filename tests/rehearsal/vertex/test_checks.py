"""What the local Vertex refuses, with the field that is wrong, however it was sent."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from .conftest import JOB, NUMBER, PARENT, PROJECT, SPEC, Cloud, pipeline_job, rest

POOL = JOB["job_spec"]["worker_pool_specs"][0]
POOLS = "job_spec.worker_pool_specs"


def job(*pools: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return JOB | changes | {"job_spec": {"worker_pool_specs": list(pools) or [POOL]}}


def fields(error: exceptions.GoogleAPICallError) -> list[str]:
    """Return the fields of google.rpc.BadRequest, which a client over REST leaves as JSON."""
    return [violation["field"] for detail in error.details for violation in detail["fieldViolations"]]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path_factory.mktemp("rules"))
    with cloud.server:
        yield cloud
        cloud.jobs.go.set()
        cloud.pipelines.go.set()


@pytest.mark.parametrize(
    ("custom_job", "field"),
    [
        (job(POOL | {"replica_count": 4}), f"{POOLS}[0].replica_count"),
        (job(POOL, POOL | {"replica_count": 0}), f"{POOLS}[1].replica_count"),
        (job(POOL | {"container_spec": {}}), f"{POOLS}[0].container_spec.image_uri"),
        (job(labels={"Upper": "x"}), "labels[Upper]"),
        (job(display_name="x" * 129), "display_name"),
    ],
)
def test_custom_jobs_that_are_none(cloud: Cloud, custom_job: dict[str, Any], field: str) -> None:
    client = rest(cloud, gapic.JobServiceClient)
    with pytest.raises(exceptions.BadRequest) as caught:
        client.create_custom_job(parent=PARENT, custom_job=custom_job)
    assert fields(caught.value) == [field], caught.value
    assert f"Field: {field}; Message: " in caught.value.message


def test_custom_jobs_that_are_taken(cloud: Cloud) -> None:
    client = rest(cloud, gapic.JobServiceClient)
    given = job(POOL, {}, POOL | {"replica_count": 3}, labels={"größe": "10", "a": ""})
    made = client.create_custom_job(parent=PARENT.replace(PROJECT, NUMBER), custom_job=given)
    # A project's number and its id are the same.
    assert client.get_custom_job(name=made.name.replace(NUMBER, PROJECT)).name == made.name


def parameters(**values: Any) -> dict[str, Any]:
    return {"runtime_config": {"gcs_output_directory": "gs://bucket/root", "parameter_values": values}}


def executor(**container: Any) -> dict[str, Any]:
    return {"pipeline_spec": SPEC | {"deploymentSpec": {"executors": {"exec-say": {"container": container}}}}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"display_name": ""}, "display_name"),
        ({"runtime_config": {"parameter_values": {"region": "r"}}}, "runtime_config.gcs_output_directory"),
        (parameters(region=3), "runtime_config.parameter_values[region]"),
        (parameters(region="r", nodes=1.5), "runtime_config.parameter_values[nodes]"),
        (parameters(region="r", regoin="r"), "runtime_config.parameter_values[regoin]"),
        ({"pipeline_spec": SPEC | {"rot": {}}}, "pipeline_spec"),
        (executor(image="i", comand=["true"]), "pipeline_spec.deploymentSpec.executors[exec-say]"),
    ],
)
def test_pipeline_jobs_that_are_none(cloud: Cloud, changes: dict[str, Any], field: str) -> None:
    client = rest(cloud, gapic.PipelineServiceClient)
    with pytest.raises(exceptions.BadRequest) as caught:
        client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(**changes), pipeline_job_id="run")
    assert fields(caught.value) == [f"pipeline_job.{field}"], caught.value
    assert cloud.pipelines.started == []


def test_what_is_not_executed_is_named(cloud: Cloud) -> None:
    """The constructs themselves are those of tests/rehearsal/pipelines/test_spec.py."""
    client = rest(cloud, gapic.PipelineServiceClient)
    fast = parameters(region="r")
    fast["runtime_config"]["failure_policy"] = gapic.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST
    for changes, named in ((executor(image="i"), "no command for image i"), (fast, "failure_policy: fail fast")):
        with pytest.raises(exceptions.MethodNotImplemented, match=named):
            client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(**changes))
    assert cloud.pipelines.started == []


def test_a_root_in_no_bucket_fails_the_job(cloud: Cloud) -> None:
    """As at the real service, it is created all the same."""
    runtime = {"gcs_output_directory": "gs://nobodys-bucket/x", "parameter_values": {"region": "r"}}
    client = rest(cloud, gapic.PipelineServiceClient)
    made = client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(runtime_config=runtime))
    assert made.state == gapic.PipelineState.PIPELINE_STATE_FAILED and "the bucket does not exist" in made.error.message
    assert cloud.pipelines.started == []
