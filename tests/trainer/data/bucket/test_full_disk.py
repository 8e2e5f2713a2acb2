"""Caches on file systems that are really full or too small: tmpfs, mounted in a namespace of a child process.

`python -m tests.trainer.data.bucket.test_full_disk JSON` is that child.
"""

import contextlib
import errno
import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import ShardManifest
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import BUCKET_SHARDS, open_reader, shard_requests, upload
from tests.trainer.data.synthetic import write_shards
from trainer.data.bucket.cache import RangeCache
from trainer.data.order.cursor import slot_requests
from trainer.data.order.resolve import make_order, resolve_order

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

BATCH = 32
BLOCKS = {"order": "blocks", "range_bytes": 64 << 10, "block_bytes": 64 << 10, "canonical_streams": 2}
SHARDS, SAMPLES, SAMPLE_BYTES = 8, 32, 8000
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
SHARD = "00c0ffee-1000"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


@pytest.fixture
def total_bytes(bucket_server: BucketServer, tmp_path: Path) -> int:
    """The bytes of shards of 2 MB in a bucket."""
    manifest = write_shards(tmp_path / "shards", shards=SHARDS, samples=SAMPLES, sample_bytes=SAMPLE_BYTES)
    upload(tmp_path / "shards")
    bucket_server.access_log.clear()
    return sum(shard.bytes for shard in manifest.shards)


def in_namespace(mounts: dict[Path, str], task: dict[str, Any], **environment: str) -> tuple[dict[str, Any], str]:
    """Run a child that sees a tmpfs of the given size at each folder; return what it found, and its log."""
    probe = subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"a process cannot mount a tmpfs of its own here: {probe.stderr.strip()}")
    commands = [f"mount -t tmpfs -o size={size} none {shlex.quote(str(path))}" for path, size in mounts.items()]
    commands.append(
        shlex.join(["exec", sys.executable, "-m", "tests.trainer.data.bucket.test_full_disk", json.dumps(task)])
    )
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", " && ".join(commands)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def read_epoch(task: dict[str, Any]) -> dict[str, Any]:
    """Read an epoch, each sample being compared with the index; at `fill`, another one fills the disk on the way."""
    cache = Path(task["cache"]) if "cache" in task else None
    reader = open_reader(BUCKET_SHARDS, cache=cache, **{**BLOCKS, **task.get("fields", {})})
    manifest = ShardManifest.load(BUCKET_SHARDS)
    order = make_order(resolve_order(reader.data, BUCKET_SHARDS, manifest, None).order, manifest, seed=1)
    reader.set_order(order, global_batch_size=BATCH)
    requests = list(slot_requests(0, order=order, epochs=1, global_batch_size=BATCH, slot_size=BATCH, rank=0, ranks=1))
    seen: list[int] = []
    with reader.prefetcher(0, epochs=1, ranks=1, requests=requests) as ahead:
        for number, request in enumerate(requests):
            if "fill" in task and number == len(requests) // 3:
                fill_disk(Path(task["fill"]))
            reader.prepare(list(request.samples), request)
            for place in request.samples:
                reader.sample(place)
                seen.append(place)
            ahead.passed(request)
    assert reader.fetcher is not None
    held = reader.fetcher.cache
    return {
        "each once": sorted(seen) == list(range(order.num_samples)),
        "limit": held.limit_bytes,
        "folder": str(held.folder),
    }


def fill_disk(folder: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), (folder / "of another").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def reserve_on_a_full_disk(task: dict[str, Any]) -> dict[str, Any]:
    """Fill a disk that has three ranges, and reserve a fourth: while all are to be read, and when one is done with."""
    cache = RangeCache(Path(task["cache"]), 64 << 20)
    cache.open()
    for first in (0, 10, 20):
        [claim], _ = cache.claim(SHARD, first, 10)
        assert cache.reserve(claim, 64 << 10)
        claim.publish()
    fill_disk(cache.folder)
    [claim], _ = cache.claim(SHARD, 30, 10)
    try:
        cache.reserve(claim, 64 << 10)
        error = None
    except OSError as raised:
        error = raised.errno
    cache.done(SHARD, 10, 10)
    reserved = cache.reserve(claim, 64 << 10)
    claim.publish()
    return {"error": error, "reserved": reserved, "held": [held.first for held in cache.held(SHARD)]}


def test_a_full_disk_gives_room_by_what_is_done_with_and_by_nothing_else(tmp_path: Path) -> None:
    found, _ = in_namespace({tmp_path: "512k"}, {"reserve": True, "cache": str(tmp_path / "cache")})
    assert found == {"error": errno.ENOSPC, "reserved": True, "held": [0, 20, 30]}


def test_a_disk_smaller_than_the_bound_lowers_it(total_bytes: int, bucket_server: BucketServer, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    found, log = in_namespace({disk: "1m"}, {"cache": str(disk)})
    assert found["each once"] and found["limit"] < 1 << 20
    assert f"there is room for {found['limit']} bytes of shards in {disk}" in log
    requests = shard_requests(bucket_server)
    assert sum(requests) <= 1.05 * total_bytes
    # In ranges: it is not read past the cache.
    assert len(requests) < SHARDS * SAMPLES / 2


def test_a_disk_that_another_fills_meanwhile_changes_no_sample(
    total_bytes: int, bucket_server: BucketServer, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    found, _ = in_namespace({disk: "1m"}, {"cache": str(disk), "fill": str(disk)})
    assert found["each once"]
    # What was fetched before it could be kept may be fetched again, but not over and over.
    assert sum(shard_requests(bucket_server)) <= 2 * total_bytes


def test_where_shared_memory_is_too_small_the_temporary_folder_is_taken(total_bytes: int, tmp_path: Path) -> None:
    task = {"fields": {"memory_bytes": 8 << 20}}
    found, log = in_namespace({Path("/dev/shm"): "1m"}, task, TMPDIR=str(tmp_path))
    assert found["each once"] and found["folder"].startswith(str(tmp_path))
    assert found["limit"] == 8 << 20 and "there is room" not in log


if __name__ == "__main__":
    TASK = json.loads(sys.argv[1])
    print(json.dumps(reserve_on_a_full_disk(TASK) if "reserve" in TASK else read_epoch(TASK)))
