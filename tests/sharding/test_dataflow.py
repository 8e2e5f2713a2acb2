"""A job is submitted to a small endpoint of our own: what Dataflow would be asked for, compared with a golden file.

After a wanted change of the graph or its options: `python tests/sharding/test_dataflow.py` writes the file anew.
"""

import json
import logging
import os
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2

from contracts import storage
from contracts.config.load import parse_config, stage_config
from rehearsal.gcs import BucketServer
from sharding import dataflow
from sharding.dataflow import dataflow_flags, submit
from sharding.graph import build_graph
from sharding.job import JobHandle
from sharding.limits import Limits

GOLDEN = Path(__file__).parents[1] / "golden" / "dataflow-job.json"
IMAGE = "europe-west4-docker.pkg.dev/acme-vision/shardline/worker@sha256:" + "0" * 64
CLOUD = {
    "project": "acme-vision",
    "region": "europe-west4",
    "service_account": "sharding@acme-vision.iam.gserviceaccount.com",
    "images": {"cpu": IMAGE},
    "kms_key": "projects/acme-vision/locations/europe-west4/keyRings/line/cryptoKeys/shards",
    "labels": {"team": "vision", "line": "digits"},
}
WORKERS = {
    "max_workers": 8,
    "network": "regions/europe-west4/subnetworks/workers",
    "public_ips": False,
}

OPTIONS = (
    "dataflow_kms_key",
    "disk_size_gb",
    "experiments",
    "extra_packages",
    "job_name",
    "labels",
    "machine_type",
    "max_num_workers",
    "project",
    "region",
    "requirements_file",
    "save_main_session",
    "sdk_container_image",
    "sdk_location",
    "service_account_email",
    "setup_file",
    "staging_location",
    "subnetwork",
    "temp_location",
    "use_public_ips",
)


class Jobs(BaseHTTPRequestHandler):
    """Takes a Dataflow job, and keeps it in `jobs` of the server."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.server.jobs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        content = json.dumps({"id": "job-1", "currentState": "JOB_STATE_DONE"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def submit_job():
    """Submit the graph of three shards; return the request and the staged pipeline."""
    handle = JobHandle("gs://bucket/digits/shard/0", "f" * 16, "listing-attempt")
    limits = Limits(0.01, "warn")
    given = {
        "resources": {"beam_runner": "dataflow"},
        "cloud": CLOUD,
        "dataflow": WORKERS,
    }
    # As the stage gets it.
    config = parse_config(stage_config(parse_config(given, where="test"), "shard"), where="test")
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory() as folder,
        BucketServer(Path(folder), is_open=True) as buckets,
        ThreadingHTTPServer(("localhost", 0), Jobs) as endpoint,
        mock.patch.dict(os.environ, buckets.environment),
    ):
        buckets.objects.create_bucket("bucket", {})
        endpoint.jobs = []
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        played = ["--no_auth", f"--dataflow_endpoint=http://localhost:{endpoint.server_port}/"]
        with mock.patch.object(
            dataflow, "dataflow_flags", lambda *given, **named: [*dataflow_flags(*given, **named), *played]
        ):
            result = submit(
                lambda pipeline: build_graph(pipeline, handle, limits, num_parts=4),
                config,
                job_name="shardline-0",
                output_uri=handle.output_uri,
                run_id="Digits.1",
            )
        assert result.state == "DONE"
        endpoint.shutdown()
        staged = [info.name for info in storage.list_objects("gs://bucket")]
        (name,) = [name for name in staged if name.endswith("pipeline.pb")]
        pipeline = beam_runner_api_pb2.Pipeline.FromString(storage.read_bytes(f"gs://bucket/{name}"))
    (request,) = endpoint.jobs
    return request, pipeline, sorted(staged)


def describe(request, pipeline, staged):
    """Return what matters of a job, without ports, versions and times."""
    options = request["environment"]["sdkPipelineOptions"]["options"]
    transforms = pipeline.components.transforms
    environment = dict(request["environment"])
    for name in ("sdkPipelineOptions", "userAgent"):
        del environment[name]
    for pool in environment["workerPools"]:
        for image in pool["sdkHarnessContainerImages"]:
            del image["capabilities"]
    described = {
        "request": {name: request[name] for name in ("labels", "name", "type")},
        "environment": environment,
        # What was asked for; Beam adds the defaults of every runner that it knows.
        "options": {name: options[name] for name in OPTIONS if options.get(name)},
        "staged": staged,
        "steps": sorted(f"{one.unique_name}: {one.spec.urn}" for one in transforms.values() if not one.subtransforms),
        "worker containers": sorted(
            {
                beam_runner_api_pb2.DockerPayload.FromString(one.payload).container_image
                for one in pipeline.components.environments.values()
                if one.urn == common_urns.environments.DOCKER.urn
            }
        ),
        "coders": sorted({one.spec.urn for one in pipeline.components.coders.values()}),
    }
    text = json.dumps(described, indent=1, sort_keys=True)
    text = re.sub(r"localhost:\d+", "localhost:PORT", text)
    text = re.sub(r"beam-?[a-z]*-?\d{10,}[-.\d]*", "TIME", text)
    text = re.sub(r"shardline-0[.-]\d[\d.]*", "shardline-0.TIME", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T_ ]\d\d[:_]\d\d[:_]\d\d[\w.:-]*", "TIME", text)
    return text + "\n"


def test_the_request_is_the_golden_one_and_workers_run_the_image_alone():
    request, pipeline, staged = submit_job()
    assert describe(request, pipeline, staged) == GOLDEN.read_text()
    (environment,) = pipeline.components.environments.values()
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
    assert not environment.dependencies
    assert [name for name in staged if not name.endswith("pipeline.pb")] == []
    assert not request["environment"]["sdkPipelineOptions"]["options"].get("save_main_session")


if __name__ == "__main__":
    GOLDEN.write_text(describe(*submit_job()))
