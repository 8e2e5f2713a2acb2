"""Google's clients on a machine with a network of its own: unmodified, led by nothing but names, trust and metadata."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from rehearsal.cloud import LocalCloud
from rehearsal.machines.machine import Machine, identity_of
from rehearsal.machines.processes import clean_environment
from tests.rehearsal.machines.conftest import IDENTITY, LIMIT_S

PARENT = "projects/acme/locations/us-central1"
PROGRAM = """
import json, os, sys
import gcsfs, google.auth, googleapiclient.discovery, googleapiclient.errors
from apache_beam.io.filesystems import FileSystems
from google.cloud import aiplatform_v1, storage
from contracts import storage as ours
parent = sys.argv[1]
found = {"project": google.auth.default()[1]}
ours.replace("gs://line/ours.txt", b"ours")
storage.Client().bucket("line").blob("large.bin").upload_from_string(b"x" * (9 << 20))
files = gcsfs.GCSFileSystem()
with files.open("line/gcsfs.txt", "wb") as stream:
    stream.write(b"gcsfs")
found["gcsfs"] = sorted(files.ls("line"))
found["beam"] = [entry.path for entry in FileSystems.match(["gs://line/*.txt"])[0].metadata_list]
found["read"] = FileSystems.open("gs://line/gcsfs.txt").read().decode()
options = {"api_endpoint": "us-central1-aiplatform.googleapis.com"}
for transport in ("grpc", "rest"):
    client = aiplatform_v1.JobServiceClient(transport=transport, client_options=options)
    found[transport] = len(list(client.list_custom_jobs(parent=parent)))
try:
    dataflow = googleapiclient.discovery.build("dataflow", "v1b3", cache_discovery=False)
    dataflow.projects().locations().jobs().get(projectId="acme", location="us-central1", jobId="1").execute()
except googleapiclient.errors.HttpError as error:
    found["discovery"] = error.status_code
led = ("proxy", "emulator", "gce_", "credentials")
found["variables"] = [name for name in os.environ if any(word in name.lower() for word in led)]
print(json.dumps(found))
"""


def test_all_of_googles_clients_are_led_by_names(tmp_path: Path) -> None:
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        cloud = LocalCloud(
            tmp_path / "cloud", projects={"acme": "123456789012"}, buckets=["line"], network="namespaces"
        )
        try:
            stack.enter_context(cloud)
        except ConfigError as error:
            pytest.skip(f"no namespaces here: {error}")
        tree = cloud.network.add("worker-0", replace(IDENTITY, token=lambda: cloud.vertex.access.token)).start(
            [sys.executable, "-c", PROGRAM, PARENT],
            environment=clean_environment(cloud.machine_environment),
            folder=tmp_path,
            on_line=lines.append,
        )
        assert tree.wait(LIMIT_S) == 0, lines
    assert json.loads(lines[-1]) == {
        "project": "p123-tp",
        "gcsfs": ["line/gcsfs.txt", "line/large.bin", "line/ours.txt"],
        "beam": ["gs://line/gcsfs.txt", "gs://line/ours.txt"],
        "read": "gcsfs",
        "grpc": 0,
        "rest": 0,
        "discovery": 404,
        "variables": [],
    }
    assert cloud.vertex.refused == []
    # gcsfs has asked for the kind of the bucket, once, and was answered: it warns, and asks again each time, otherwise.
    layouts = [entry.status for entry in cloud.vertex.access_log.entries("StorageControl.GetStorageLayout")]
    assert layouts == ["OK"]
    assert not [line for line in lines if "bucket type" in line]


def test_a_custom_jobs_default_project_is_a_tenant_project() -> None:
    from google.cloud import aiplatform_v1

    machine = Machine(0, 0, 0, ("true",), {}, "image", "g2-standard-12")
    job = aiplatform_v1.CustomJob(name="projects/123456789012/locations/europe-west4/customJobs/7")
    found = identity_of(machine, job, lambda: "token")
    assert found.project.endswith("-tp") and found.project_number != "123456789012"
    assert (found.zone, found.machine_type) == ("europe-west4-a", "g2-standard-12")
    assert found.email == "service-123456789012@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
