"""One arm of benchmarks/reading_bucket.py in a process of its own: read an epoch, print what it took as JSON.

    python benchmarks/reading_bucket_arms.py shards gs://BUCKET/FOLDER --workers 2 --decoder ours

Run with the interpreter of a peer as well. The work is that of reading_arms.py. The time begins before anything is
opened and ends with the last batch; imports come before it.

    shards       ours, from gs:// with nothing cached, or from file://; order=blocks in both
    webdataset   http://.../SHARD.tar, which it hands to curl: one stream a loader process
    litdata      gs://, by its own clients (Google's, obstore), with a service account of the server; a new cache
    gets         no reader: ranges side by side, received and thrown away; what there is to reach
    resume       ours: seconds to the first batch at the start, at a third and near the end
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.reading_arms import BATCH_SIZE, EVALUATION, IMAGE_SIZE, make_task, read_litdata, read_webdataset
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import slot_requests
from trainer.tasks.images.transforms import normalise
from trainer.tasks.protocol import Mode

# As by default.
RANGE_BYTES, BLOCK_BYTES = 16 << 20, 32 << 20
# So few that a benchmark's gigabyte is several working sets: an epoch of a real collection is with the default.
CANONICAL_STREAMS = 4


@dataclass
class BytesOfSlots:
    """Requests to the image files of their samples."""

    reader: Any

    def __getitem__(self, request: Any) -> tuple[Any, list[bytes]]:
        self.reader.prepare(list(request.samples), request)
        return request, [self.reader.sample(sample)["image"] for sample in request.samples]


def read_shards(options: argparse.Namespace, place: float = 0.0) -> Iterator[int]:
    """Yield the sizes of batches from a place of the epoch on (0 to 1), read by our reader as training does it."""
    from contracts.artifacts import ShardManifest
    from contracts.config import DataSection
    from trainer.data.bucket.fetch import Streams
    from trainer.data.order.resolve import make_order, resolve_order
    from trainer.data.reader import ShardReader

    uri = options.place
    manifest = ShardManifest.load(uri)
    data = DataSection(
        order=options.order,
        range_bytes=RANGE_BYTES,
        block_bytes=BLOCK_BYTES,
        canonical_streams=CANONICAL_STREAMS,
        memory_bytes=options.memory_bytes,
    )
    reader = ShardReader(uri, manifest, "train", data)
    order = make_order(resolve_order(data, uri, manifest, None).order, uri, manifest, seed=0)
    position = int(place * len(reader)) // BATCH_SIZE * BATCH_SIZE
    reader.set_order(order, global_batch_size=BATCH_SIZE, readers=max(1, options.workers))
    if options.streams and reader.fetcher is not None:
        reader.fetcher.streams = Streams(options.streams, options.streams)

    def requests() -> Iterator[Any]:
        cut = {"global_batch_size": BATCH_SIZE, "slot_size": BATCH_SIZE, "rank": 0, "ranks": 1}
        return slot_requests(position, order=order, epochs=1, **cut)

    ahead = reader.prefetcher(position, epochs=1, ranks=1, requests=requests())
    dataset: Any = BytesOfSlots(reader) if options.decoder == "none" else SlotDataset(reader, make_task(), 0)
    loader = make_loader(
        dataset, ahead.start_with(requests()), num_workers=options.workers, prefetch_factor=2, pin_memory=False
    )
    try:
        if options.decoder == "none":
            for request, contents in loader:  # type: ignore[misc]
                ahead.passed(request)
                yield len(contents)
        else:
            for slot in read_slots(loader):
                ahead.passed(slot.request)
                yield len(dataset.task.to_model(slot.batch, Mode(training=True))["label"])
    finally:
        ahead.stop()


def time_resume(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return seconds from a place of the epoch to its first batch, in turn, with nothing cached."""
    found: dict[str, list[float]] = {"start": [], "third": [], "end": []}
    for number in range(6):
        for name, place in (("start", 0.0), ("third", 1 / 3), ("end", 0.98)):
            began = time.perf_counter()
            batches = read_shards(options, place)
            next(batches)
            # The first of all starts colder than any other.
            if number:
                found[name].append(time.perf_counter() - began)
            batches.close()  # type: ignore[attr-defined]
    return found


def read_by_webdataset(options: argparse.Namespace) -> Iterator[int]:
    """As above by webdataset; the place holds the addresses of the shards, one a line."""
    urls = Path(options.place).read_text().split()
    yield from read_webdataset(urls, options.workers, options.decoder)


def read_by_litdata(options: argparse.Namespace) -> Iterator[int]:
    """As above by litdata."""
    from google.oauth2.service_account import Credentials

    account = os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
    # Its obstore refuses to be without credentials.
    client = {"project": "emulated", "credentials": Credentials.from_service_account_file(account)}
    with tempfile.TemporaryDirectory() as cache:
        yield from read_litdata(options.place, options.workers, options.decoder, cache, client)


def receive_ranges(options: argparse.Namespace) -> Iterator[int]:
    """Yield samples for bytes: the shards' ranges, received side by side and thrown away."""
    from contracts import storage
    from contracts.artifacts import ShardManifest

    manifest = ShardManifest.load(options.place)
    ranges = [
        (shard.uri(options.place), start, min(RANGE_BYTES, shard.bytes - start))
        for shard in manifest.shards
        for start in range(0, shard.bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(options.streams or 4) as threads:
        list(threads.map(lambda one: storage.copy_range(*one, lambda piece: None), ranges))
    yield sum(shard.samples for shard in manifest.shards)


READERS: dict[str, Callable[[argparse.Namespace], Iterator[int]]] = {
    "shards": read_shards,
    "webdataset": read_by_webdataset,
    "litdata": read_by_litdata,
    "gets": receive_ranges,
}


def main() -> None:
    """Run one arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*READERS, "resume"])
    parser.add_argument("place")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--decoder", choices=("ours", "own", "none"), default="ours")
    parser.add_argument("--streams", type=int, default=0, help="ranges at a time; 0: the reader chooses")
    parser.add_argument("--order", choices=("blocks", "full"), default="blocks")
    parser.add_argument("--memory-bytes", type=int, default=1 << 30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _import_all(options)
    if options.kind == "resume":
        print(json.dumps(time_resume(options)))
        return
    before = _cpu_s()
    began = time.perf_counter()
    samples = sum(READERS[options.kind](options))
    print(json.dumps({"samples": samples, "seconds": time.perf_counter() - began, "cpu_s": _cpu_s() - before}))


def _import_all(options: argparse.Namespace) -> None:
    """Take first calls and imports before the clock runs."""
    normalise(torch.zeros(2, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8), EVALUATION.mean, EVALUATION.std)
    if options.place.startswith("gs://"):
        import google.cloud.storage  # noqa: F401
    if options.kind == "litdata":
        import litdata  # noqa: F401
    elif options.kind == "webdataset":
        import webdataset  # noqa: F401
    elif options.place.startswith("gs://"):
        from contracts.stores.gcs_client import client

        client()


def _cpu_s() -> float:
    """Return the CPU time of this process and of the children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main()
