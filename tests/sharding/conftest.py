"""Small real sources, and the stage run in this process."""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.stage import run_stage
from sharding.task import shard


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

    def run(*arguments, root="out", seed=0, **sharding):
        nonlocal number
        number += 1
        section = {"source": str(source), "target_shard_bytes": 4096, **sharding}
        config = json.dumps({"run": {"seed": seed}, "sharding": section})
        place = tmp_path / root
        where = [] if "--output" in arguments else ["--root", str(place)]
        capsys.readouterr()
        code = run_stage(
            "shard", shard, ["--config-json", config, "--attempt", f"attempt-{number}", *where, *arguments]
        )
        captured = capsys.readouterr()
        folder = storage.local_path(captured.out.strip()) if code == 0 else None
        return Result(code, captured.err, place, folder)

    return run
