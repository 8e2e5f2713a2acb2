"""A job is submitted to a small endpoint of our own: what Dataflow would be asked for, compared with a golden file.

After a wanted change of the graph or its options: `python tests/sharding/test_dataflow.py` writes the file anew.
"""

import base64
import json
import logging
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import google_crc32c
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2

from contracts.config.load import parse_config, stage_config
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
    "subnetwork": "regions/europe-west4/subnetworks/workers",
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


class Endpoint(ThreadingHTTPServer):
    """Enough of Cloud Storage and Dataflow to take one job."""

    def __init__(self):
        super().__init__(("localhost", 0), Handler)
        self.jobs = []
        self.objects = {}

    @property
    def url(self):
        return f"http://localhost:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status=200, **headers):
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(content)

    def read(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        if "/o/" in self.path:
            self.answer({"error": {"code": 404, "message": "no such object"}}, 404)
        else:
            self.answer({"name": "bucket", "kind": "storage#bucket"})

    def do_POST(self):
        content = self.read()
        if "/jobs" in self.path:
            self.server.jobs.append(json.loads(content))
            self.answer({"id": "job-1", "currentState": "JOB_STATE_DONE"})
        else:
            name = json.loads(content)["name"]
            self.answer({}, Location=f"{self.server.url}/put?name={name}")

    def do_PUT(self):
        (name,) = parse_qs(urlsplit(self.path).query)["name"]
        content = self.server.objects[name] = self.read()
        checksum = base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
        self.answer({"name": name, "bucket": "bucket", "size": str(len(content)), "crc32c": checksum})


def submit_job():
    """Submit the graph of three shards; return the request and the staged pipeline."""
    handle = JobHandle("gs://bucket/digits/shard/0", "f" * 16, "listing-attempt")
    limits = Limits(0.01, "warn")
    endpoint = Endpoint()
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    given = {
        "resources": {"beam_runner": "dataflow"},
        "cloud": CLOUD,
        "dataflow": WORKERS,
    }
    # As the stage gets it.
    config = parse_config(stage_config(parse_config(given, where="test"), "shard"), where="test")
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    try:
        played = ["--no_auth", f"--dataflow_endpoint={endpoint.url}/"]
        with (
            mock.patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": endpoint.url}),
            mock.patch.object(
                dataflow, "dataflow_flags", lambda *given, **named: [*dataflow_flags(*given, **named), *played]
            ),
        ):
            result = submit(
                lambda pipeline: build_graph(pipeline, handle, limits, num_parts=4),
                config,
                job_name="shardline-0",
                output_uri=handle.output_uri,
                run_id="Digits.1",
            )
        assert result.state == "DONE"
    finally:
        endpoint.shutdown()
        endpoint.server_close()
    (request,) = endpoint.jobs
    (staged,) = [content for name, content in endpoint.objects.items() if name.endswith("pipeline.pb")]
    return request, beam_runner_api_pb2.Pipeline.FromString(staged), sorted(endpoint.objects)


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


def test_the_request_is_the_golden_one():
    assert describe(*submit_job()) == GOLDEN.read_text()


def test_workers_run_the_image_and_nothing_of_this_process():
    request, pipeline, staged = submit_job()
    (environment,) = pipeline.components.environments.values()
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
    assert not environment.dependencies
    assert [name for name in staged if not name.endswith("pipeline.pb")] == []
    assert not request["environment"]["sdkPipelineOptions"]["options"].get("save_main_session")


if __name__ == "__main__":
    GOLDEN.write_text(describe(*submit_job()))
