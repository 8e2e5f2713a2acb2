"""Everything that the unmodified client libraries do, in one process: importing them costs seconds.

Runs with nothing but the server's variables; prints one JSON object. Not a test by itself: test_sdk.py starts it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import aiplatform, storage
from google.cloud import logging as cloud_logging
from google.cloud.aiplatform_v1.types import Model as GapicModel

REGION = "us-central1"
IMAGE = "us-docker.pkg.dev/p/r/triton@sha256:" + "1" * 64


def submit(spec_path: str, found: dict[str, Any]) -> aiplatform.PipelineJob:
    values = {"parameter_values": {"region": REGION}, "pipeline_root": "gs://line-bucket/root"}
    job = aiplatform.PipelineJob(display_name="line", template_path=spec_path, job_id="run-1", **values)
    job.submit(experiment="an-experiment", service_account="sa@shardline-test.iam.gserviceaccount.com")
    job.wait_for_resource_creation()
    found["name"] = job.resource_name
    job.wait()
    found["state"] = job.state.name
    found["experiment"] = job.get_associated_experiment().name
    found["listed"] = [item.name for item in aiplatform.PipelineJob.list(filter='display_name="line"')]
    unknown = aiplatform.PipelineJob(
        display_name="x", template_path=spec_path, project="nobodys", location=REGION, **values
    )
    try:
        unknown.submit()
    except GoogleAPICallError as error:
        found["unknown project"] = type(error).__name__
    # submit() would make the bucket.
    lost = {
        "display_name": "lost",
        "pipeline_spec": yaml.safe_load(Path(spec_path).read_text()),
        "runtime_config": {
            "gcs_output_directory": "gs://nobodys-bucket/x",
            "parameter_values": values["parameter_values"],
        },
    }
    client = aiplatform.gapic.PipelineServiceClient(
        client_options={"api_endpoint": f"{REGION}-aiplatform.googleapis.com"}
    )
    parent = f"projects/shardline-test/locations/{REGION}"
    made = client.create_pipeline_job(parent=parent, pipeline_job=lost, pipeline_job_id="lost-1")
    failed = aiplatform.PipelineJob.get(made.name)
    found["no bucket"] = [failed.state.name, failed.gca_resource.error.code]
    found["simple view"] = [
        [item.display_name, item.pipeline_spec["pipelineInfo"]["name"], "root" in item.pipeline_spec]
        for item in aiplatform.PipelineJob.list(enable_simple_view=True, filter='display_name="lost"')
    ]
    return job


def schedule(job: aiplatform.PipelineJob, found: dict[str, Any]) -> None:
    made = job.create_schedule(
        cron="TZ=Europe/Berlin 0 6 * * 1", display_name="weekly", max_concurrent_active_run_count=1
    )
    made.pause()
    made.resume(catch_up=False)
    again = aiplatform.PipelineJobSchedule.get(made.resource_name)
    found["schedule"] = [again.cron, again.state.name, again.max_concurrent_active_run_count]
    found["jobs of schedule"] = len(made.list_jobs())
    made.delete()


def models(found: dict[str, Any]) -> None:
    values = {
        "serving_container_image_uri": IMAGE,
        "serving_container_ports": [8000],
        "serving_container_predict_route": "/v2/models/line/infer",
        "serving_container_health_route": "/v2/health/ready",
        "artifact_uri": "gs://line-bucket/triton",
    }
    first = aiplatform.Model.upload(display_name="digits", labels={"run": "1"}, **values)
    second = aiplatform.Model.upload(
        display_name="digits", parent_model=first.resource_name, version_aliases=["candidate"], **values
    )
    third = aiplatform.Model.upload(
        display_name="digits", parent_model=first.resource_name, is_default_version=True, **values
    )
    registry = aiplatform.models.ModelRegistry(first.resource_name)
    found["versions"] = {v.version_id: sorted(v.version_aliases) for v in registry.list_versions()}
    registry.add_version_aliases(["candidate"], third.version_id)
    found["moved"] = {v.version_id: sorted(v.version_aliases) for v in registry.list_versions()}
    found["same model"] = first.resource_name == second.resource_name == third.resource_name
    found["models"] = [model.version_id for model in aiplatform.Model.list(filter='display_name="digits"')]
    found["by alias"] = aiplatform.Model(f"{first.resource_name}@candidate").version_id
    resource: GapicModel = first.gca_resource
    found["container"] = [resource.container_spec.image_uri == IMAGE, resource.container_spec.ports[0].container_port]
    try:
        aiplatform.Model.upload(
            display_name="x", parent_model=first.resource_name.replace(REGION, "europe-west4"), **values
        )
    except GoogleAPICallError as error:
        found["other place"] = type(error).__name__


def others(found: dict[str, Any]) -> None:
    client = cloud_logging.Client()
    query = 'resource.type="ml_job" AND resource.labels.job_id=("7" OR "8") AND severity>=WARNING'
    found["grpc logs"] = [entry.payload["message"] for entry in client.list_entries(filter_=query)]
    over_http = cloud_logging.Client(_use_grpc=False)
    found["rest logs"] = [entry.payload["message"] for entry in over_http.list_entries(filter_=query)]
    # A client that is not told of the bucket server takes it for Google's.
    options = {"api_endpoint": "https://storage.googleapis.com"}
    bucket = storage.Client(client_options=options).bucket("line-bucket")
    bucket.blob("a folder/a file").upload_from_string("there")
    found["storage"] = [blob.download_as_text() for blob in bucket.list_blobs(prefix="a folder/")]
    found["bucket project"] = storage.Client().get_bucket("line-bucket").project_number


def over_rest(endpoint: str, spec_path: str, found: dict[str, Any]) -> None:
    """The SDK by the address of the HTTP door: no TLS, no proxy."""
    aiplatform.init(project="shardline-test", location=REGION, api_endpoint=endpoint, api_transport="rest")
    pool = {
        "replica_count": 1,
        "machine_spec": {"machine_type": "n1-standard-4"},
        "container_spec": {"image_uri": IMAGE, "env": [{"name": "QUOTES", "value": 'a "b"\nc'}]},
    }
    job = aiplatform.CustomJob("a job", [pool], staging_bucket="gs://line-bucket/staging")
    job.submit(scheduling_strategy=aiplatform.gapic.Scheduling.Strategy.SPOT, restart_job_on_worker_restart=True)
    found["rest job"] = [item.display_name for item in aiplatform.CustomJob.list()]
    job.cancel()
    found["rest job ended"] = aiplatform.CustomJob.get(job.resource_name).state.name
    line = aiplatform.PipelineJob(
        display_name="over rest",
        template_path=spec_path,
        job_id="run-2",
        parameter_values={"region": REGION},
        pipeline_root="gs://line-bucket/root",
    )
    line.submit()
    line.cancel()
    found["rest line"] = aiplatform.PipelineJob.get(line.resource_name).state.name
    found["rest name"] = line.resource_name


def main() -> None:
    found: dict[str, Any] = {}
    aiplatform.init(project="shardline-test", location=REGION)
    job = submit(sys.argv[1], found)
    schedule(job, found)
    models(found)
    others(found)
    over_rest(sys.argv[2], sys.argv[1], found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
