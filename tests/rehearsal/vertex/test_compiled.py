"""What the compiler writes passes the rules: the golden pipelines, and the worker pools of the jobs inside them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic
from google.protobuf.json_format import MessageToDict

from contracts.canonical import canonical_hash

from .conftest import PARENT, Cloud, pipeline_job, rest

GOLDEN = Path(__file__).parents[2] / "golden"


def worker_pools(spec: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for component in spec["components"].values():
        for task in component.get("dag", {}).get("tasks", {}).values():
            values = task.get("inputs", {}).get("parameters", {})
            if "worker_pool_specs" in values:
                yield values["worker_pool_specs"]["runtimeValue"]["constant"]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("line-*.json")), ids=lambda path: path.stem)
def test_a_golden_line_is_taken(make_cloud: Callable[..., Cloud], path: Path) -> None:
    cloud = make_cloud()
    line = json.loads(path.read_text())
    runtime = {"gcs_output_directory": "gs://bucket/root", "parameter_values": line["parameters"]}
    job = pipeline_job(pipeline_spec=line["spec"], runtime_config=runtime)
    client = rest(cloud, gapic.PipelineServiceClient)
    made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="run")
    assert cloud.pipelines.started == [made.name]
    # What arrived, doubles and all, is what was compiled.
    received = MessageToDict(gapic.PipelineJob.pb(cloud.store.get(made.name)).pipeline_spec)
    assert canonical_hash(received) == canonical_hash(line["spec"])
    pools = list(worker_pools(line["spec"]))
    assert len(pools) >= 3
    for pool in pools:
        spec = {"worker_pool_specs": pool, "scheduling": {"strategy": line["parameters"]["strategy"]}}
        rest(cloud, gapic.JobServiceClient).create_custom_job(
            parent=PARENT, custom_job={"display_name": "job", "job_spec": spec}
        )
    assert len(cloud.jobs.started) == len(pools)
