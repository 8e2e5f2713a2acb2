"""What the compiler writes passes the rules: the pipelines of configs/, and the worker pools of their jobs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic
from google.protobuf.json_format import MessageToDict

from contracts.canonical import canonical_hash
from contracts.config.load import load_config
from tests.pipelines.compiled import compile_config
from tests.pipelines.images import REGISTERED

from .conftest import PARENT, Cloud, pipeline_job, rest

ROOT = Path(__file__).parents[3]


def worker_pools(spec: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for component in spec["components"].values():
        inputs = component.get("inputDefinitions", {}).get("parameters", {})
        if "worker_pool_specs" in inputs:
            yield inputs["worker_pool_specs"]["defaultValue"]


@pytest.mark.parametrize("name", ["digits-vertex", "photos-a100-spot", "photos-h100-flex"])
def test_a_line_is_taken(make_cloud: Callable[..., Cloud], name: str) -> None:
    cloud = make_cloud()
    line = compile_config(load_config(ROOT / "configs" / f"{name}.yaml", REGISTERED))
    runtime = {"gcs_output_directory": "gs://bucket/root", "parameter_values": line.parameters}
    job = pipeline_job(pipeline_spec=line.spec, runtime_config=runtime)
    client = rest(cloud, gapic.PipelineServiceClient)
    made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="run")
    assert cloud.pipelines.started == [made.name]
    # What arrived, doubles and all, is what was compiled.
    received = MessageToDict(gapic.PipelineJob.pb(cloud.store.get(made.name)).pipeline_spec)
    assert canonical_hash(received) == canonical_hash(line.spec)
    pools = list(worker_pools(line.spec))
    assert len(pools) >= 3
    for pool in pools:
        spec = {"worker_pool_specs": pool, "scheduling": {"strategy": line.parameters["strategy"]}}
        rest(cloud, gapic.JobServiceClient).create_custom_job(
            parent=PARENT, custom_job={"display_name": "job", "job_spec": spec}
        )
    assert len(cloud.jobs.started) == len(pools)
