"""What several test folders need: a small set of real image files, its shards, and a fast model."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts.config.load import parse_config
from contracts.environment import spare_loopback
from contracts.stage import run_stage
from rehearsal.gcs import BucketServer

# Servers of tests are at 127.0.0.1.
spare_loopback(os.environ)

# No test measures time, and a busy machine is slow.
with suppress(ImportError):
    # A GPU machine without a network may lack it.
    from hypothesis import settings

    settings.register_profile("no deadline", deadline=None)
    settings.load_profile("no deadline")

# Files of which one test takes a minute or two: begun first, so that none of them is left over for one process alone.
LONG_FILES = (
    "test_restarts.py",
    "test_two_machines.py",
    "test_signals.py",
    "test_line.py",
    "test_parallel.py",
    "test_verify.py",
)

CLASSES = ("blue", "green", "red")
IMAGES_PER_CLASS = 40

# Networks and transforms that configurations name as `module:callable`: the code.path of `small_config`.
OWN_CODE = Path(__file__).parent / "own_code"

# A residual network of 11,000 parameters on 16 px images: a step takes about a millisecond.
SMALL: dict[str, Any] = {
    "sharding": {
        "splits": {"train": 0.6, "validation": 0.2, "test": 0.2},
        "target_shard_bytes": 8192,
    },
    "data": {"image_size": 16, "num_workers": 0},
    "model": {
        "architecture": "resnet",
        "arguments": {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    },
    "train": {"global_batch_size": 16, "epochs": 2, "learning_rate": 0.01},
    "parallel": {"slot_size": 4},
    "export": {"runtime": "tensorrt_rtx"},
}


def write_pictures(folder: Path, *, per_class: int = IMAGES_PER_CLASS, size: int = 16) -> Path:
    """Write noisy pictures, one colour a class, as PNG files in class folders; return the folder."""
    random = np.random.default_rng(0)
    for channel, name in ((2, "blue"), (1, "green"), (0, "red")):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = random.integers(0, 160, (size, size, 3), dtype=np.uint8)
            pixels[..., channel] = random.integers(96, 256, (size, size), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
    return folder


def small_config(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of SMALL with changes merged in."""
    values = {name: dict(section) for name, section in SMALL.items()}
    for name, changes in sections.items():
        values[name] = {**values.get(name, {}), **changes}
    if "code" not in values and ":" in values["model"]["architecture"] + values["data"].get("transform", ""):
        values["code"] = {"path": str(OWN_CODE)}
    parse_config(values, where="test")
    return values


def pytest_configure() -> None:
    """Give all processes of the tests one new cache, so that equal checks before a first stage are made once."""
    if "SHARDLINE_CACHE_DIR" not in os.environ:
        os.environ["SHARDLINE_CACHE_DIR"] = tempfile.mkdtemp(prefix="shardline-tests-")
        atexit.register(shutil.rmtree, os.environ["SHARDLINE_CACHE_DIR"], ignore_errors=True)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Collect no garbage while modules are imported: there is little, and each search looks at all modules so far."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Set aside what the imports of all tests have made: a million objects, which each later search would look at."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order of all others stays."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three classes of 40 pictures each; read only."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "raw")


@pytest.fixture(scope="session")
def small_shards(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of the pictures' shards; read only."""
    import json

    from contracts import storage
    from sharding.task import shard

    folder = tmp_path_factory.mktemp("shards") / "out"
    config = small_config(sharding={"source": str(pictures)})
    text = json.dumps({"sharding": config["sharding"]})
    assert run_stage("shard", shard, ["--output", str(folder), "--config-json", text]) == 0
    return storage.normalise(folder)


@pytest.fixture(scope="session")
def shared_bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket server for the whole session; use `bucket_server`."""
    with BucketServer(tmp_path_factory.mktemp("buckets"), is_open=True) as server:
        yield server


@pytest.fixture
def bucket_server(shared_bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """The server with an empty bucket, bucket-1, and no rules; clients of this process and its children find it."""
    for name, value in shared_bucket_server.environment.items():
        monkeypatch.setenv(name, value)
    shared_bucket_server.objects.create_bucket("bucket-1", {})
    yield shared_bucket_server
    shared_bucket_server.faults.set()
    shared_bucket_server.access_log.clear()
    shared_bucket_server.clear()
