"""Small real sources, and the stage run in this process."""

import io
import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import RunConfig, ShardingSection
from contracts.events import EventLog
from contracts.stage import Output, Stage, run_stage
from sharding import graph
from sharding.job import JobHandle, open_job
from sharding.listing import list_source
from sharding.planning import Choice, prepare_plan
from sharding.task import shard
from sharding.write import write_shard


def _make_image(seed, extension):
    """Return the bytes of a small image that differs for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), np.uint8)
    if extension == "jpg":
        return simplejpeg.encode_jpeg(pixels, quality=90)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def _write_file(root, path, content):
    """Write a file at a relative path of bytes, with a fixed modification time."""
    full = Path(root) / os.fsdecode(path)
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(content)
    os.utime(full, ns=(10**18, 10**18))


@pytest.fixture
def make_image():
    return _make_image


@pytest.fixture
def write_file():
    return _write_file


@pytest.fixture
def source(tmp_path) -> Path:
    """Three classes of 20 images each, PNG and JPEG."""
    root = tmp_path / "raw"
    for number in range(60):
        extension = ("png", "jpg")[number % 2]
        path = f"{('ant', 'bee', 'cow')[number % 3]}/{number:02d}.{extension}"
        _write_file(root, path.encode(), _make_image(number, extension))
    return root


@dataclass
class Result:
    """How a stage ended."""

    code: int
    stderr: str
    root: Path
    folder: Path | None = None
    stdout: str = ""

    @property
    def manifest(self) -> ShardManifest:
        return ShardManifest.load(storage.normalise(self.folder))

    @property
    def events(self):
        newest = max((self.root / "attempts").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(line) for line in (newest / "events.jsonl").read_text().splitlines()]

    @property
    def errors(self):
        return [json.loads(path.read_text()) for path in sorted((self.root / "attempts").glob("*/error.json"))]

    @property
    def content(self):
        """Bytes of every file of the result, by name."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture
def run_shard(tmp_path, source, capsys):
    """Run the stage in this process on `source`; keyword arguments are fields of the sharding section."""
    number = 0

    def run(*arguments, root="out", seed=0, resources=None, printed=False, **sharding):
        nonlocal number
        number += 1
        section = {"source": str(source), "target_shard_bytes": 4096, "seed": seed, **sharding}
        config = json.dumps({"sharding": section, "resources": resources or {}})
        place = tmp_path / root
        where = [] if "--output" in arguments else ["--root", str(place)]
        capsys.readouterr()
        code = run_stage(
            "shard", shard, ["--config-json", config, "--attempt", f"attempt-{number}", *where, *arguments]
        )
        captured = capsys.readouterr()
        folder = storage.local_path(captured.out.strip()) if code == 0 and not printed else None
        return Result(code, captured.err, place, folder, captured.out)

    return run


@pytest.fixture
def in_process(monkeypatch):
    """Write shards in this process, where a test may change what is called."""

    def write(handle, shard, references):
        return write_shard(open_job(handle), shard, references)

    monkeypatch.setattr(graph, "write_in_process", write)


REPOSITORY = Path(__file__).parents[2]


def process_environment():
    """Environment of a process that imports this checkout, and finds this interpreter as `python`."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
        "OMP_NUM_THREADS": "1",
    }


def children_of(pid):
    """Return the process ids of the children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def descendants_of(pid):
    """Return the process ids of everything below a process."""
    children = children_of(pid)
    return children + [one for child in children for one in descendants_of(child)]


@pytest.fixture
def start_shard(tmp_path, source):
    """Start the stage as a process of its own; keyword arguments are fields of the sharding section."""
    started = []

    def start(root, resources, *, environment=None, **sharding):
        section = {"source": str(source), "target_shard_bytes": 4096, **sharding}
        config = json.dumps({"sharding": section, "resources": resources})
        process = subprocess.Popen(
            [sys.executable, "-m", "sharding.task", "--config-json", config, "--root", str(tmp_path / root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**process_environment(), **(environment or {})},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def find_descendants():
    return descendants_of


@pytest.fixture
def listing_of(tmp_path):
    """List a source; keyword arguments are fields of the sharding section."""
    places = itertools.count()

    def list_it(source, **sharding):
        section = ShardingSection.model_validate({"source": str(source), **sharding})
        return list_source(section, tmp_path / f"listing-{next(places)}")

    return list_it


@pytest.fixture
def make_job(source, tmp_path):
    """Return a function that plans a job with one training shard on `source`: its handle, and its training samples."""
    numbers = itertools.count()

    def make(output="out", **section):
        given = ShardingSection.model_validate({"source": str(source), "seed": 3, **section})
        listing = list_source(given, tmp_path / f"l{next(numbers)}")
        events = EventLog(None, stage="shard", attempt="1")
        stage = Stage("shard", RunConfig(sharding=given), events, "1", root=storage.normalise(tmp_path))
        place = Output(storage.normalise(tmp_path / output), "f" * 16, {"listing": listing.sha256}, reused=False)
        planned = prepare_plan(stage, place, Choice(place.made_from, listing))
        references = [one for one in listing.references() if one.split == 0]
        return JobHandle(place.uri, planned.fingerprint, planned.listing), references

    yield make
    open_job.cache_clear()
