"""The folder that stands for /gcs: what goes to the bucket and comes from it, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from contracts import storage
from rehearsal.gcs import BucketServer
from rehearsal.machines.mount import Mount

# Sends a large file and fetches it again; prints by how much the process grew, in MiB.
ROUND_TRIP = """
import resource, sys
from pathlib import Path
from contracts import storage
from rehearsal.machines.mount import Mount
mount, uri, size = Mount(Path(sys.argv[1])), "gs://line/large/content", int(sys.argv[2])
storage.replace("gs://line/large/small", b"x")
mount.fetch("gs://line/large/small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = Path(mount.path_of(uri))
with path.open("wb") as stream:
    stream.truncate(size)
mount.send("gs://line/large")
path.unlink()
mount.fetch("gs://line/large")
assert path.stat().st_size == size
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_large_file_is_never_held_whole(tmp_path: Path, bucket_environment: BucketServer) -> None:
    size = 96 << 20
    command = [sys.executable, "-c", ROUND_TRIP, str(tmp_path), str(size)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64, f"grew by {done.stdout.strip()} MiB for a file of 96 MiB"


def test_what_has_changed_is_sent_again(tmp_path: Path, bucket_environment: BucketServer) -> None:
    mount, uri = Mount(tmp_path), f"gs://line/{tmp_path.name}/file"
    path = Path(mount.path_of(uri))
    path.parent.mkdir(parents=True)
    for content in (b"first", b"x" * (9 << 20), b"y" * (9 << 20)):
        path.write_bytes(content)
        # A file by its own name, as its folder's.
        mount.send(uri)
        assert storage.read_bytes(uri) == content
    storage.replace(uri, b"another's")
    mount.send(uri)
    assert storage.read_bytes(uri) == b"another's"
    mount.fetch(uri)
    assert path.read_bytes() == b"another's"
    mount.fetch(f"{uri}/nothing")
