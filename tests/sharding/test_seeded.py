"""Ten kills, drawn by seeds: the same command goes on where the work stood, and ends with the same bytes.

Launcher, worker or the whole job is killed with -9 when some shards are finished; sources and outputs are folders or
buckets; the FnApiRunner has one or several shards under way.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from rehearsal.gcs import BucketServer
from tests.sharding.conftest import descendants_of, process_environment

END_S = 120
NUM_IMAGES = 240
# Source files wait this long before they are opened, so that there is time to kill: 240 of them take over 2 s.
WAIT_S = 0.01
SLOW = """
import os, sys, time

def slow(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if "/raw/" in path:
            time.sleep(float(os.environ["SHARDLINE_TEST_WAIT"]))
            with open(os.path.join(os.environ["SHARDLINE_TEST_READ"], str(os.getpid())), "a") as notes:
                notes.write(path.rpartition("/raw/")[2] + "\\n")

sys.addaudithook(slow)
"""


@dataclass
class Case:
    """One kill."""

    seed: int
    victim: str
    engine: str
    bucket: bool

    @property
    def resources(self) -> dict[str, Any]:
        return {"fnapi": {"beam_workers": 1}, "processes": {"beam_workers": 2}}[self.engine]


CASES = [
    Case(0, "launcher", "fnapi", bucket=False),
    Case(1, "launcher", "processes", bucket=False),
    Case(2, "worker", "processes", bucket=False),
    Case(3, "worker", "fnapi", bucket=False),
    Case(4, "job", "processes", bucket=True),
    Case(5, "launcher", "fnapi", bucket=True),
    Case(6, "worker", "processes", bucket=True),
    Case(7, "job", "fnapi", bucket=False),
    Case(8, "launcher", "processes", bucket=True),
    Case(9, "worker", "fnapi", bucket=True),
]


class World:
    """A source, a place for outputs, and the notes of which source files were opened."""

    def __init__(self, folder: Path, server: BucketServer | None) -> None:
        self.folder, self.server = folder, server
        self.notes = folder / "read"
        self.notes.mkdir()
        spy = folder / "spy"
        spy.mkdir()
        (spy / "sitecustomize.py").write_text(SLOW)
        given = process_environment()
        self.environment = {
            **given,
            **(server.environment if server is not None else {}),
            "PYTHONPATH": os.pathsep.join([str(spy), given["PYTHONPATH"]]),
            "SHARDLINE_TEST_WAIT": str(WAIT_S),
            "SHARDLINE_TEST_READ": str(self.notes),
        }

    def uri(self, name: str) -> str:
        return f"gs://photos/{name}" if self.server is not None else storage.normalise(self.folder / name)

    def start(self, root: str, resources: dict[str, Any]) -> subprocess.Popen[str]:
        section = {"source": self.uri("raw"), "target_shard_bytes": 4096}
        config = json.dumps({"sharding": section, "resources": resources})
        return subprocess.Popen(
            [sys.executable, "-m", "sharding.task", "--config-json", config, "--root", self.uri(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def finish(self, process: subprocess.Popen[str]) -> str:
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err
        return out.strip()

    def opened(self) -> set[str]:
        """Return the source files that were read since the last call."""
        if self.server is not None:
            entries = self.server.access_log.entries(operation="objects.media", object="raw/*")
            self.server.access_log.clear()
            return {str(entry.object).removeprefix("raw/") for entry in entries}
        found = {line for path in self.notes.iterdir() for line in path.read_text().splitlines()}
        for path in self.notes.iterdir():
            path.write_text("")
        return found

    def finished(self, root: str) -> dict[str, int]:
        """Return the shards that are there, with the time of their last change (a bucket: their generation).

        Of outputs with a record, or with a manifest.
        """
        found = {}
        for folder in storage.list_names(self.uri(root)):
            uri = storage.join(self.uri(root), folder.rstrip("/"))
            records = {
                int(info.name.rpartition("-")[2])
                for info in storage.list_objects(storage.join(uri, ".work"))
                if "/record-" in info.name
            }
            is_finished = storage.exists(storage.join(uri, "manifest.json"))
            for info in storage.list_objects(uri, recursive=False):
                if info.name.endswith(".tar") and (records or is_finished):
                    found[storage.join(uri, info.name)] = _changed_at(uri, info)
        return found

    def count_records(self, root: str) -> int:
        return sum(
            "/record-" in info.name
            for folder in storage.list_names(self.uri(root))
            if not folder.startswith((".", "attempts"))
            for info in storage.list_objects(storage.join(self.uri(root), folder.rstrip("/"), ".work"))
        )


def _changed_at(uri: str, info: storage.ObjectInfo) -> int:
    if info.generation is not None:
        return info.generation
    return (storage.local_path(uri) / info.name).stat().st_mtime_ns


def paths_in(uri: str) -> set[str]:
    """Return the source files that a shard holds."""
    with tarfile.open(fileobj=io.BytesIO(storage.read_bytes(uri))) as archive:
        return {
            json.load(archive.extractfile(member))["path"]  # type: ignore[arg-type]
            for member in archive.getmembers()
            if member.name.endswith(".json")
        }


@pytest.fixture
def make_world(tmp_path: Path, make_image: Any, write_file: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(*, bucket: bool) -> World:
            server = None
            if bucket:
                server = stack.enter_context(BucketServer(tmp_path / "buckets", is_open=True))
                for name, value in server.environment.items():
                    monkeypatch.setenv(name, value)
                server.objects.create_bucket("photos", {})
                server.faults.set()
            world = World(tmp_path, server)
            for number in range(NUM_IMAGES):
                path = f"{('ant', 'bee')[number % 2]}/{number:03d}.png"
                content = make_image(number, "png")
                if bucket:
                    storage.publish(f"gs://photos/raw/{path}", content)
                else:
                    write_file(tmp_path / "raw", path.encode(), content)
            return world

        yield make


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.seed}-{case.victim}-{case.engine}-{case.bucket}")
def test_a_kill_and_the_same_command(case: Case, make_world: Any) -> None:
    world = make_world(bucket=case.bucket)
    whole = world.finish(world.start("whole", {"beam_workers": 2}))
    want = {entry.name: storage.read_bytes(entry.uri(whole)) for entry in ShardManifest.load(whole).owned_files()}
    wanted_manifest = storage.read_bytes(storage.join(whole, "manifest.json"))
    kill_at = random.Random(case.seed).randrange(2, 12)
    resources = case.resources
    process = world.start("killed", resources)
    deadline = time.monotonic() + END_S
    while world.count_records("killed") < kill_at:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    below = descendants_of(process.pid)
    if case.victim == "worker":
        # The youngest is what writes shards: the fork server, and whatever tracks resources, are older.
        os.kill(max(below), signal.SIGKILL)
        _, err = process.communicate(timeout=END_S)
        if process.returncode == 0:
            out = world.finish(world.start("killed", resources))
            assert storage.read_bytes(storage.join(out, "manifest.json")) == wanted_manifest
            return
        assert process.returncode == 75, err
    else:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + END_S
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "processes outlive their command"
        time.sleep(0.05)
    before = world.finished("killed")
    assert before
    world.opened()
    out = world.finish(world.start("killed", {"beam_workers": 2}))
    read = world.opened()
    assert {entry.name: storage.read_bytes(entry.uri(out)) for entry in ShardManifest.load(out).owned_files()} == want
    assert storage.read_bytes(storage.join(out, "manifest.json")) == wanted_manifest
    changed = {storage.join(out, info.name): _changed_at(out, info) for info in storage.list_objects(out)}
    assert {uri: changed[uri] for uri in before} == before
    kept = set().union(*(paths_in(uri) for uri in before))
    written_again = read & kept
    # A shard that was published a moment before its record is looked at again; all others are not.
    assert len(written_again) <= 2 * max(len(paths_in(uri)) for uri in before), written_again
    assert len(read) < NUM_IMAGES


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("bucket", [False, True])
def test_two_launches_at_once_and_the_same_command(make_world: Any, bucket: bool) -> None:
    world = make_world(bucket=bucket)
    whole = world.finish(world.start("whole", {"beam_workers": 2}))
    want = {entry.name: storage.read_bytes(entry.uri(whole)) for entry in ShardManifest.load(whole).owned_files()}
    both = [world.start("both", {"beam_workers": workers}) for workers in (1, 2)]
    codes = []
    for process in both:
        _, err = process.communicate(timeout=END_S)
        codes.append(process.returncode)
        # Who finds the folder locked, or other bytes under a name, asks for another attempt.
        assert process.returncode in (0, 75), err
    assert 0 in codes
    before = world.finished("both")
    out = world.finish(world.start("both", {"beam_workers": 2}))
    assert world.finished("both") == before
    assert {entry.name: storage.read_bytes(entry.uri(out)) for entry in ShardManifest.load(out).owned_files()} == want
    assert storage.read_bytes(storage.join(out, "manifest.json")) == storage.read_bytes(
        storage.join(whole, "manifest.json")
    )
