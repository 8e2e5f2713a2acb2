"""What the compiler writes passes the rules: a pipeline of configs/, and the worker pools of its jobs."""

from pathlib import Path

from google.cloud import aiplatform_v1 as gapic
from google.protobuf.json_format import MessageToDict

from contracts.canonical import canonical_hash
from contracts.config.load import load_config
from tests.pipelines.compiled import compile_config
from tests.pipelines.images import REGISTERED

from .conftest import PARENT, Cloud, pipeline_job, rest

CONFIG = Path(__file__).parents[3] / "configs" / "photos-h100-flex.yaml"


def test_a_line_is_taken(cloud: Cloud) -> None:
    line = compile_config(load_config(CONFIG, REGISTERED))
    runtime = {"gcs_output_directory": "gs://bucket/root", "parameter_values": line.parameters}
    job = pipeline_job(pipeline_spec=line.spec, runtime_config=runtime)
    client = rest(cloud, gapic.PipelineServiceClient)
    made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="run")
    assert cloud.pipelines.started == [made.name]
    # What arrived, doubles and all, is what was compiled.
    received = MessageToDict(gapic.PipelineJob.pb(cloud.store.get(made.name)).pipeline_spec)
    assert canonical_hash(received) == canonical_hash(line.spec)
    inputs = [each["inputDefinitions"].get("parameters", {}) for each in line.spec["components"].values()]
    pools = [given["worker_pool_specs"]["defaultValue"] for given in inputs if "worker_pool_specs" in given]
    assert len(pools) == 4
    for pool in pools:
        spec = {"worker_pool_specs": pool, "scheduling": {"strategy": line.parameters["strategy"]}}
        rest(cloud, gapic.JobServiceClient).create_custom_job(
            parent=PARENT, custom_job={"display_name": "job", "job_spec": spec}
        )
    assert len(cloud.jobs.started) == len(pools)
