"""What the local Vertex refuses, with the field that is wrong, however it was sent."""

import copy
import re
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from .conftest import IMAGE, JOB, NUMBER, PARENT, PROJECT, SPEC, Cloud, pipeline_job, rest

POOL = JOB["job_spec"]["worker_pool_specs"][0]


def job(*pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    top = {key: spec.pop(key) for key in ("labels", "encryption_spec", "display_name") if key in spec}
    return JOB | top | {"job_spec": {"worker_pool_specs": list(pools) or [POOL], **spec}}


def fields(error: exceptions.GoogleAPICallError) -> list[str]:
    """Return the fields of google.rpc.BadRequest, which a client over REST leaves as JSON."""
    return [violation["field"] for detail in error.details for violation in detail["fieldViolations"]]


@pytest.fixture(scope="module")
def cloud_of_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    cloud = Cloud(tmp_path_factory.mktemp("rules"))
    with cloud.server:
        yield cloud
        cloud.jobs.go.set()
        cloud.pipelines.go.set()


POOLS = "job_spec.worker_pool_specs"


@pytest.mark.parametrize(
    ("custom_job", "field"),
    [
        (job(POOL | {"replica_count": 4}), f"{POOLS}[0].replica_count"),
        (job(POOL, POOL | {"replica_count": 0}), f"{POOLS}[1].replica_count"),
        (job(POOL | {"machine_spec": {}}), f"{POOLS}[0].machine_spec.machine_type"),
        (job(POOL | {"container_spec": {}}), f"{POOLS}[0].container_spec.image_uri"),
        (
            job(base_output_directory={"output_uri_prefix": "/tmp/x"}),
            "job_spec.base_output_directory.output_uri_prefix",
        ),
        (job(labels={"Upper": "x"}), "labels[Upper]"),
        (job(labels={"key": "x" * 64}), "labels[key]"),
        (job(display_name="x" * 129), "display_name"),
    ],
)
def test_custom_jobs_that_are_none(cloud_of_module: Cloud, custom_job: dict[str, Any], field: str) -> None:
    client = rest(cloud_of_module, gapic.JobServiceClient)
    with pytest.raises(exceptions.BadRequest) as caught:
        client.create_custom_job(parent=PARENT, custom_job=custom_job)
    assert fields(caught.value) == [field], caught.value
    assert f"Field: {field}; Message: " in caught.value.message


@pytest.mark.parametrize(
    "custom_job",
    [
        job(POOL, {}, POOL | {"replica_count": 3}),
        job(psc_interface_config={"network_attachment": "a"}, labels={"größe": "10", "a": ""}),
    ],
)
def test_custom_jobs_that_are_taken(cloud_of_module: Cloud, custom_job: dict[str, Any]) -> None:
    client = rest(cloud_of_module, gapic.JobServiceClient)
    assert client.create_custom_job(parent=PARENT, custom_job=custom_job).name


def spec(**changes: Any) -> dict[str, Any]:
    return SPEC | changes


def parameters(**values: Any) -> dict[str, Any]:
    return {"gcs_output_directory": "gs://bucket/root", "parameter_values": values}


def command(*words: str, image: str = IMAGE) -> dict[str, Any]:
    return {"deploymentSpec": {"executors": {"exec-say": {"container": {"image": image, "command": list(words)}}}}}


def task(**changes: Any) -> dict[str, Any]:
    root = copy.deepcopy(SPEC["root"])
    root["dag"]["tasks"]["say"] |= changes
    return {"root": root}


_EXECUTOR = {"container": {"image": "i", "comand": ["true"]}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"display_name": ""}, "pipeline_job.display_name"),
        ({"display_name": "x" * 129}, "pipeline_job.display_name"),
        ({"runtime_config": {"parameter_values": {"region": "r"}}}, "pipeline_job.runtime_config.gcs_output_directory"),
        ({"runtime_config": parameters()}, "pipeline_job.runtime_config.parameter_values[region]"),
        ({"runtime_config": parameters(region=3)}, "pipeline_job.runtime_config.parameter_values[region]"),
        (
            {"runtime_config": parameters(region="r", nodes=1.5)},
            "pipeline_job.runtime_config.parameter_values[nodes]",
        ),
        (
            {"runtime_config": parameters(region="r", regoin="r")},
            "pipeline_job.runtime_config.parameter_values[regoin]",
        ),
        ({"pipeline_spec": spec(rot={})}, "pipeline_job.pipeline_spec"),
        ({"pipeline_spec": spec(pipelineInfo={"name": "A line"})}, "pipeline_job.pipeline_spec.pipelineInfo.name"),
        (
            {"pipeline_spec": spec(deploymentSpec={"executors": {"exec-say": _EXECUTOR}})},
            "pipeline_job.pipeline_spec.deploymentSpec.executors[exec-say]",
        ),
        (
            {"pipeline_spec": spec(components={"comp-say": {"executorLabel": "exec-none"}})},
            "pipeline_job.pipeline_spec.components[comp-say].executorLabel",
        ),
        (
            {"pipeline_spec": spec(components={})},
            "pipeline_job.pipeline_spec.components[root].dag.tasks[say].componentRef.name",
        ),
    ],
)
def test_pipeline_jobs_that_are_none(cloud_of_module: Cloud, changes: dict[str, Any], field: str) -> None:
    client = rest(cloud_of_module, gapic.PipelineServiceClient)
    with pytest.raises(exceptions.BadRequest) as caught:
        client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(**changes), pipeline_job_id="run")
    assert fields(caught.value) == [field], caught.value
    assert cloud_of_module.pipelines.started == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        # The second document of a compiled file, and what only Kubernetes has.
        ({"platforms": {"kubernetes": {"deploymentSpec": {}}}}, "a document for Kubernetes"),
        (command("ls", "{{$.workspace_path}}"), "the placeholder {{$.workspace_path}}"),
        (command("sh", "-c", "python3 -m kfp.dsl.executor_main"), "executor exec-say: a Python component"),
        (task(retryPolicy={"maxRetryCount": 1}), "root.dag.tasks.say.retryPolicy"),
        (command(), f"the own command of image {IMAGE}"),
    ],
)
def test_pipeline_jobs_that_are_not_executed(cloud_of_module: Cloud, changes: dict[str, Any], named: str) -> None:
    client = rest(cloud_of_module, gapic.PipelineServiceClient)
    with pytest.raises(exceptions.MethodNotImplemented, match=re.escape(named)):
        client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(pipeline_spec=spec(**changes)))
    assert cloud_of_module.pipelines.started == []


def test_failing_fast_is_refused(cloud_of_module: Cloud) -> None:
    runtime = parameters(region="r") | {"failure_policy": gapic.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST}
    client = rest(cloud_of_module, gapic.PipelineServiceClient)
    with pytest.raises(exceptions.MethodNotImplemented, match="failure_policy: fail fast"):
        client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(runtime_config=runtime))


def test_a_pipeline_jobs_id_has_a_form(cloud_of_module: Cloud) -> None:
    client = rest(cloud_of_module, gapic.PipelineServiceClient)
    for wrong in ("Run", "1-run", "run_1", "r" * 129):
        with pytest.raises(exceptions.BadRequest) as caught:
            client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(), pipeline_job_id=wrong)
        assert fields(caught.value) == ["pipeline_job_id"]


def test_projects_by_number_are_the_same(cloud_of_module: Cloud) -> None:
    client = rest(cloud_of_module, gapic.JobServiceClient)
    made = client.create_custom_job(parent=PARENT.replace(PROJECT, NUMBER), custom_job=JOB)
    assert client.get_custom_job(name=made.name.replace(NUMBER, PROJECT)).name == made.name
