"""Reading beside a plain folder of files, webdataset, litdata and mosaicml-streaming, as ratios from one run.

    python benchmarks/reading.py --files 3000                       # this environment: no litdata, no mosaicml
    python benchmarks/reading.py --peers FOLDER --record benchmarks/results

Every arm reads the same pictures, each time in a process of its own, in turn, for several rounds; a ratio is that of
one round, and what is printed is the median of the rounds and their range. Files come from memory: they are read once
beforehand. litdata and mosaicml-streaming need other versions of what this project needs: `--peers FOLDER` is where
their environments are made, once; what cannot be installed is said.

All arms do the same work: whole epochs in random order in batches of 32; a random resized crop and a flip drawn per
sample, 224 px, decoded by trainer/data's scaled decoding, bytes to the main process, float32 and normalisation there.
Two more arms read the shards from a bucket on this machine, with 30 ms to the first byte and a limit to each stream:
`pipe` copies whole shards to a disk, as many at a time as the reader does, and `bucket` reads an epoch in block order
with nothing in the cache.

An arm (`reading.py arm KIND PLACE`) runs with the interpreter of a peer as well, so that it imports nothing which a
peer's environment lacks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import describe_machine, make_peers, ratios, record, run, summary, write_pictures

PEERS = {"litdata": "litdata==0.2.76", "mosaicml": "mosaicml-streaming==0.13.0"}
SPLITS = {"train": 1.0, "validation": 0.0, "test": 0.0}
BATCH_SIZE = 32
IMAGE_SIZE = 224
CHUNK_BYTES = 16 << 20
# A bucket's: 8 streams pass 32 MB/s, less than the reader decodes; shards so small that there are many windows.
BUCKET, LATENCY_S, STREAM_BYTES_PER_S, BUCKET_SHARD_BYTES = "gs://bucket-1/shards", 0.03, 4e6, 1 << 20
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS = ("trainer.data.loader", "trainer.data.reader", "tests.trainer.tasks.for_tests")
# An arm's imports are not its reading.
IMPORTS = {
    "folder": OURS,
    "shards": OURS,
    "bucket": (*OURS, "google.cloud.storage"),
    "pipe": ("google.cloud.storage",),
    "webdataset": ("webdataset",),
    "litdata": ("litdata",),
    "mosaicml": ("streaming",),
}


@dataclass(frozen=True)
class Arm:
    """A reader on a place."""

    kind: str
    place: str
    python: str = sys.executable

    def run(self, workers: int) -> float:
        """Return samples a second."""
        command = [self.python, __file__, "arm", self.kind, self.place, f"--workers={workers}"]
        answer = json.loads(run(command).splitlines()[-1])
        return float(answer["samples"] / answer["seconds"])


def main() -> None:
    """Run what the arguments ask for and print it."""
    if sys.argv[1:2] == ["arm"]:
        run_arm(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000, help="number of pictures [default: 3000]")
    parser.add_argument("--kilobytes", type=int, default=50, help="size of a picture [default: 50]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--bucket", action="store_true", help="read from a bucket too")
    parser.add_argument("--peers", type=Path, default=None, help="folder for the environments of peers")
    parser.add_argument("--folder", type=Path, default=None, help="where to work [default: a temporary folder]")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place, size = Path(name), options.kilobytes * 1000
        write_pictures(place / "raw", total_bytes=options.files * size, file_bytes=size)
        shards = shard(place, "out", CHUNK_BYTES)
        peers, missing = make_peers(options.peers, {name: (requirement,) for name, requirement in PEERS.items()})
        for path in (place / "raw").glob("*/*"):
            path.read_bytes()
        arms = {
            "folder": Arm("folder", str(place / "raw")),
            "folder again": Arm("folder", str(place / "raw")),
            "shardline": Arm("shards", shards),
            "webdataset": Arm("webdataset", shards),
        }
        for name, python in peers.items():
            out = place / name
            run([python, __file__, "arm", f"write-{name}", str(place / "raw"), f"--out={out}"])
            arms[name] = Arm(name, str(out), python)
        if options.bucket:
            server = serve_bucket(shard(place, "small", BUCKET_SHARD_BYTES), place)
            arms |= {kind: Arm(kind, BUCKET) for kind in ("pipe", "bucket")}
        asked = {"files": options.files, "kilobytes": options.kilobytes, "rounds": options.rounds}
        report: dict[str, object] = {
            "about": {**describe_machine("torch", "webdataset", "simplejpeg", "pillow"), **PEERS, **asked},
            "not installed": missing,
            **{f"{number} workers": compare(arms, number, options.rounds) for number in options.workers},
        }
        if options.bucket:
            server.stop()
    print(json.dumps(report, indent=1))
    if options.record:
        record(options.record, "reading", report)


def compare(arms: dict[str, Arm], workers: int, rounds: int) -> dict[str, object]:
    """Run all arms in turn; return samples a second, and ratios to the folder and of ours to each."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            rates[name].append(arm.run(workers))
            words = f"round {number + 1}, {workers} workers: {name} {rates[name][-1]:.0f} samples/s"
            print(words, file=sys.stderr, flush=True)
    ours = rates["shardline"]
    found = {
        "samples_per_s": {name: summary(values) for name, values in rates.items()},
        "to the folder": {name: ratios(values, rates["folder"]) for name, values in rates.items() if name != "folder"},
        "shardline to": {name: ratios(ours, values) for name, values in rates.items() if name != "shardline"},
    }
    if "pipe" in rates:
        found["bucket to pipe"] = ratios(rates["bucket"], rates["pipe"])
    return found


def serve_bucket(shards: str, place: Path) -> Any:
    """Start a bucket that holds the shards, found by this process and its children; return its server."""
    from contracts import storage
    from rehearsal.gcs import BucketServer
    from rehearsal.gcs.faults import Rule

    server = BucketServer(place / "buckets", is_open=True)
    server.start()
    os.environ.update(server.environment)
    server.objects.create_bucket("bucket-1", {})
    for name in storage.list_names(shards):
        if not name.startswith("."):
            storage.replace(storage.join(BUCKET, name), storage.read_bytes(storage.join(shards, name)))
    server.faults.set(Rule(operation="objects.media", latency_s=LATENCY_S, bytes_per_s=STREAM_BYTES_PER_S))
    return server


def shard(place: Path, name: str, shard_bytes: int) -> str:
    """Write shards of the pictures; return their URI."""
    section = {"source": str(place / "raw"), "target_shard_bytes": shard_bytes, "splits": SPLITS}
    config = json.dumps({"sharding": section})
    run([sys.executable, "-m", "sharding.task", "--config-json", config, "--output", str(place / name)])
    return f"file://{(place / name).absolute()}"


@dataclass
class FolderReader:
    """What ShardReader does, on a plain folder of class folders."""

    files: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, places: list[int]) -> None:
        """Do nothing, as on any disk."""

    def sample(self, place: int) -> dict[str, Any]:
        """Return the file and its label."""
        path, label = self.files[place]
        with open(path, "rb", 0) as stream:
            return {"image": stream.read(), "label": label}


class Finish:
    """From what a peer yields for a sample to pixels and label."""

    def __init__(self) -> None:
        from trainer.tasks.image_transforms import TrainTransform

        self._transform = TrainTransform(IMAGE_SIZE, "random_resized", True)

    def __call__(self, image: Any, label: Any, number: int) -> Any:
        """Finish one sample; `number` keys its random crop."""
        from trainer.data.randomness import generator_of

        return self._transform.decode(bytes(image), generator_of(0, 0, number)).copy(), int(label)


def list_files(folder: Path) -> list[tuple[str, int]]:
    """Return the files of class folders with their labels."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(str(path), label) for label, place in enumerate(classes) for path in sorted(place.iterdir())]


def make_task() -> Any:
    """Return the task with the transform of all arms, for any number of classes."""
    from contracts.config import DataSection
    from tests.trainer.tasks.for_tests import image_task

    data = DataSection(
        image_size=IMAGE_SIZE, crop="random_resized", horizontal_flip=True, mean=list(MEAN), std=list(STD)
    )
    return image_task(1, data)


def read_ours(kind: str, place: str, workers: int) -> Iterator[int]:
    """Yield the sizes of batches, read by our loader from a folder or from shards."""
    from trainer.data.cursor import slot_requests
    from trainer.data.loader import SlotDataset, make_loader, read_slots
    from trainer.data.order import FullOrder
    from trainer.tasks.task import Mode

    if kind == "folder":
        reader: Any = FolderReader(list_files(Path(place)))
    else:
        from contracts.artifacts import ShardManifest
        from trainer.data.reader import ShardReader

        reader = ShardReader(place, ShardManifest.load(place), "train")
    dataset = SlotDataset(reader, make_task(), 0)
    cut = {"global_batch_size": BATCH_SIZE, "slot_size": BATCH_SIZE, "rank": 0, "ranks": 1}
    requests = slot_requests(0, order=FullOrder(len(reader), 0), epochs=1, **cut)
    for slot in read_slots(make_loader(dataset, requests, num_workers=workers, prefetch_factor=2, pin_memory=False)):
        yield len(dataset.task.to_model(slot.batch, Mode(training=True))["label"])


def read_bucket(kind: str, place: str, workers: int) -> Iterator[int]:
    """Yield the sizes of batches, read by our loader from a bucket with nothing in the cache, as training does."""
    from contracts.artifacts import SampleOrder, ShardManifest
    from contracts.config import DataSection
    from trainer.data.cursor import slot_requests
    from trainer.data.loader import SlotDataset, make_loader, read_slots
    from trainer.data.order import WINDOW_SHARDS, make_order
    from trainer.data.reader import ShardReader

    manifest = ShardManifest.load(place)
    with tempfile.TemporaryDirectory() as folder:
        reader = ShardReader(place, manifest, "train", DataSection(cache_dir=folder, cache_bytes=1 << 40))
        order = make_order(SampleOrder(kind="blocks", window_shards=WINDOW_SHARDS), manifest, seed=0)
        cut = {"global_batch_size": BATCH_SIZE, "slot_size": BATCH_SIZE, "rank": 0, "ranks": 1}
        requests = slot_requests(0, order=order, epochs=1, **cut)
        position, ahead = 0, reader.prefetcher(order, 0, epochs=1)
        loader = make_loader(
            SlotDataset(reader, make_task(), 0),
            ahead.start_with(requests),
            num_workers=workers,
            prefetch_factor=2,
            pin_memory=False,
        )
        for slot in read_slots(loader):
            position += slot.request.batch_samples
            ahead.advance(position)
            yield slot.request.batch_samples
        ahead.close()


def copy_bucket(kind: str, place: str, workers: int) -> Iterator[int]:
    """Copy the shards of a bucket to files, and nothing else; yield their samples."""
    from concurrent.futures import ThreadPoolExecutor

    from contracts import storage
    from contracts.artifacts import ShardManifest
    from trainer.data.shard_cache import STREAMS

    shards = ShardManifest.load(place).shards
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(STREAMS) as pool:

        def copy(number: int) -> int:
            with (Path(folder) / str(number)).open("wb") as stream:
                storage.copy_range(shards[number].uri(place), 0, shards.bytes[number], stream.write)
            return shards.samples[number]

        yield from pool.map(copy, shards.numbers_of("train"))


def read_webdataset(kind: str, place: str, workers: int) -> Iterator[int]:
    """As above by webdataset, with its shuffle buffer."""
    import webdataset

    from trainer.data.randomness import hash_integers

    finish = Finish()
    urls = [str(path) for path in sorted(Path(place.removeprefix("file://")).glob("*.tar"))]
    pipeline = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0, empty_check=False).shuffle(1000)

    def convert(sample: dict[str, Any]) -> Any:
        return finish(sample["jpg"], int(bytes(sample["cls"])), hash_integers(hash(sample["__key__"])))

    yield from _read_peer("torch.utils.data", "DataLoader", pipeline.map(convert), workers)


def read_litdata(kind: str, place: str, workers: int) -> Iterator[int]:
    """As above by litdata."""
    from litdata import StreamingDataset

    finish = Finish()

    class Dataset(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return finish(item["image"], item["label"], getattr(index, "index", 0))

    yield from _read_peer("litdata", "StreamingDataLoader", Dataset(place, shuffle=True, seed=0), workers)


def read_mosaicml(kind: str, place: str, workers: int) -> Iterator[int]:
    """As above by mosaicml-streaming."""
    from streaming import StreamingDataset

    finish = Finish()

    class Dataset(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return finish(item["image"], item["label"], int(index))

    dataset = Dataset(local=place, shuffle=True, batch_size=BATCH_SIZE)
    yield from _read_peer("torch.utils.data", "DataLoader", dataset, workers)


def _read_peer(module: str, loader: str, dataset: Any, workers: int) -> Iterator[int]:
    from trainer.tasks.image_transforms import normalise

    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers, "collate_fn": _stack}
    if workers:
        options["prefetch_factor"] = 2
    for images, _ in getattr(importlib.import_module(module), loader)(dataset, **options):
        yield len(normalise(images, MEAN, STD))


def _stack(samples: list[Any]) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([image for image, _ in samples])), torch.tensor([label for _, label in samples])


def write_litdata(source: Path, out: Path) -> None:
    """Write the folder as litdata's chunks, files as they are."""
    from litdata import optimize

    optimize(_read_item, list_files(source), str(out), num_workers=1, chunk_bytes=CHUNK_BYTES, start_method="fork")


def _read_item(item: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def write_mosaicml(source: Path, out: Path) -> None:
    """Write the folder as mosaicml's shards, likewise."""
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}, size_limit=CHUNK_BYTES) as writer:
        for item in list_files(source):
            writer.write(_read_item(item))


READERS: dict[str, Callable[[str, str, int], Iterator[int]]] = {
    "folder": read_ours,
    "shards": read_ours,
    "bucket": read_bucket,
    "pipe": copy_bucket,
    "webdataset": read_webdataset,
    "litdata": read_litdata,
    "mosaicml": read_mosaicml,
}


def run_arm(arguments: list[str]) -> None:
    """Read all samples once, and print what it took as JSON; or write a peer's format."""
    import torch

    from trainer.tasks.image_transforms import normalise

    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*READERS, "write-litdata", "write-mosaicml"])
    parser.add_argument("place")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.kind.startswith("write-"):
        {"write-litdata": write_litdata, "write-mosaicml": write_mosaicml}[options.kind](
            Path(options.place), options.out
        )
        return
    torch.set_num_threads(1)
    # torch's and numpy's first calls are not the reader's cost.
    normalise(torch.zeros(2, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8), MEAN, STD)
    for module in IMPORTS[options.kind]:
        importlib.import_module(module)
    began = time.perf_counter()
    samples = sum(READERS[options.kind](options.kind, options.place, options.workers))
    print(json.dumps({"samples": samples, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
