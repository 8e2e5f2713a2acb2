"""Unmodified clients of Cloud Storage reach a rehearsal's buckets by variables alone: proxy, authority, credentials."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.cloud import LocalCloud

_CHILD = """
import json
import fsspec
from google.cloud import storage as google_storage
from contracts import storage

found = {}
names = [f"gs://line/many/{n}" for n in range(40)]
for name in names:
    storage.replace(name, name.encode())
many = storage.read_many([storage.ReadRequest(name) for name in names])
found["many"] = [content.decode() for content in many] == names
found["one"] = storage.read_bytes(names[0]).decode()
pieces = []
storage.copy_range(names[0], 5, 4, pieces.append)
found["range"] = b"".join(pieces).decode()
found["listed"] = len(list(storage.list_objects("gs://line/many")))
client = google_storage.Client()
client.bucket("line").blob("by google").upload_from_string("x" * 20_000_000)
found["google"] = len(client.bucket("line").blob("by google").download_as_bytes())
files = fsspec.filesystem("gs")
files.pipe_file("line/by gcsfs", b"gcsfs")
found["gcsfs"] = [files.cat_file("line/by gcsfs").decode(), files.info("line/by google")["size"]]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    folder = tmp_path_factory.mktemp("clients")
    with LocalCloud(folder, projects={"acme": "123456789012"}, buckets=["line"]) as found:
        yield found


def test_they_read_and_write_unmodified(cloud: LocalCloud, tmp_path: Path) -> None:
    # Nothing but the cloud's variables: no switch tells a client of an emulator.
    assert "STORAGE_EMULATOR_HOST" not in cloud.environment
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | cloud.environment
    command = [sys.executable, "-W", "error::UserWarning", "-c", _CHILD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {
        "many": True,
        "one": "gs://line/many/0",
        "range": "line",
        "listed": 40,
        "google": 20_000_000,
        "gcsfs": ["gcsfs", 20_000_000],
    }
    assert cloud.vertex.refused == []
    hosts = {entry.resource for entry in cloud.vertex.access_log.entries("CONNECT")}
    assert {"oauth2.googleapis.com:443", "storage.googleapis.com:443"} <= hosts
