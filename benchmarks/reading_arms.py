"""One arm of benchmarks/reading.py in a process of its own: read all samples once, print what it took as JSON.

    python benchmarks/reading_arms.py folder FOLDER --workers 2 --decoder ours

It is run with the interpreter of a peer as well, so it imports nothing that a peer's environment lacks. All arms do the
same work: whole epochs in random order in batches of 32; a random resized crop and a flip drawn per sample, 224 px,
bytes to the main process, float32 and normalisation there. `--decoder ours` is trainer/data's scaled decoding, `own` is
what the peer itself decodes with, after which Pillow crops and resizes; `none` reads bytes only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch.utils.data import DataLoader

from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import slot_requests
from trainer.data.order.permutation import hash_integers
from trainer.data.order.resolve import FullOrder
from trainer.data.randomness import generator_of
from trainer.tasks.images.transforms import (
    EvaluationTransform,
    TrainTransform,
    _random_box,
    normalise,
    resize,
)
from trainer.tasks.protocol import Mode

BATCH_SIZE = 32
IMAGE_SIZE = 224
CHUNK_BYTES = 16 << 20
EVALUATION = EvaluationTransform(IMAGE_SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRANSFORM = TrainTransform(IMAGE_SIZE, "random_resized", True, EVALUATION)


@dataclass
class FolderReader:
    """What ShardReader does, on a plain folder of class folders."""

    files: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, places: list[int], request: Any) -> None:
        """Do nothing, as on any disk."""

    def sample(self, place: int) -> dict[str, Any]:
        """Return the file and its label."""
        path, label = self.files[place]
        with open(path, "rb", 0) as stream:
            return {"image": stream.read(), "label": label}


@dataclass
class BytesDataset:
    """Requests to lists of image files."""

    reader: Any

    def __getitem__(self, request: Any) -> list[bytes]:
        return [self.reader.sample(sample)["image"] for sample in request.samples]


class Finish:
    """From what a peer yields for a sample to pixels and label."""

    def __init__(self, decoder: str) -> None:
        self.decoder = decoder

    def __call__(self, image: Any, label: Any, number: int) -> Any:
        """Finish one sample; `number` keys its random crop."""
        if self.decoder == "none":
            return bytes(image)
        random = generator_of(0, 0, number)
        if self.decoder == "ours":
            return TRANSFORM.pixels(bytes(image), random).copy(), int(label)
        # A tensor [3, H, W] of torchvision's decoder, a picture of Pillow's, or an array.
        pixels = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
        pixels = np.ascontiguousarray(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
        result = resize(pixels, _random_box(*pixels.shape[:2], random), IMAGE_SIZE)
        return (result[:, ::-1] if random.random() < 0.5 else result).copy(), int(label)


def list_files(folder: Path) -> list[tuple[str, int]]:
    """Return the files of class folders with their labels."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(str(path), label) for label, place in enumerate(classes) for path in sorted(place.iterdir())]


def make_task() -> Any:
    """Return the task whose training transform is TRANSFORM, for any number of classes."""
    from contracts.config import DataSection
    from tests.trainer.tasks.for_tests import image_task

    mean, std = list(EVALUATION.mean), list(EVALUATION.std)
    data = DataSection(image_size=IMAGE_SIZE, crop="random_resized", horizontal_flip=True, mean=mean, std=std)
    return image_task(1, data)


def open_slots(kind: str, place: str, decoder: str) -> Any:
    """Return our dataset over a folder or over shards."""
    if kind == "folder":
        reader: Any = FolderReader(list_files(Path(place)))
    else:
        from contracts.artifacts import ShardManifest
        from trainer.data.reader import ShardReader

        reader = ShardReader(place, ShardManifest.load(place), "train")
    return BytesDataset(reader) if decoder == "none" else SlotDataset(reader, make_task(), 0)


def read_slots_of(kind: str, place: str, workers: int, decoder: str) -> Iterator[int]:
    """Yield the sizes of batches, read by our loader."""
    dataset = open_slots(kind, place, decoder)
    requests = slot_requests_from(0, len(dataset.reader))
    loader = make_loader(dataset, requests, num_workers=workers, prefetch_factor=2, pin_memory=False)
    if decoder == "none":
        yield from (len(batch) for batch in loader)  # type: ignore[arg-type]
        return
    for slot in read_slots(loader):
        yield len(dataset.task.to_model(slot.batch, Mode(training=True))["label"])


def slot_requests_from(position: int, num_samples: int) -> Iterator[Any]:
    """Yield requests of one slot a step to the end of the epoch."""
    yield from slot_requests(
        position,
        order=FullOrder(num_samples, 0),
        epochs=1,
        global_batch_size=BATCH_SIZE,
        slot_size=BATCH_SIZE,
        rank=0,
        ranks=1,
    )


def read_local_webdataset(kind: str, place: str, workers: int, decoder: str) -> Iterator[int]:
    """As above by webdataset."""
    urls = [str(path) for path in sorted(Path(place.removeprefix("file://")).glob("*.tar"))]
    yield from read_webdataset(urls, workers, decoder)


def read_webdataset(urls: list[str], workers: int, decoder: str) -> Iterator[int]:
    """Yield the sizes of batches, read by webdataset from shards, with its shuffle buffer."""
    import webdataset

    finish = Finish(decoder)
    pipeline = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0, empty_check=False).shuffle(1000)
    if decoder == "own":
        pipeline = pipeline.decode("pilrgb")

    def convert(sample: dict[str, Any]) -> Any:
        label = sample["cls"] if isinstance(sample["cls"], int) else int(bytes(sample["cls"]))
        return finish(sample["jpg"], label, hash_integers(hash(sample["__key__"])))

    yield from _read_batches(DataLoader(pipeline.map(convert), **_loading(workers, decoder)), decoder)


def read_local_litdata(kind: str, place: str, workers: int, decoder: str) -> Iterator[int]:
    """As above by litdata."""
    yield from read_litdata(place, workers, decoder)


def read_litdata(
    place: str, workers: int, decoder: str, cache: str | None = None, client: dict[str, Any] | None = None
) -> Iterator[int]:
    """As above; `cache` is where it keeps what comes from a bucket, `client` what it gives Google's client."""
    from litdata import StreamingDataLoader, StreamingDataset

    finish = Finish(decoder)

    class Dataset(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return finish(item["image"], item["label"], getattr(index, "index", 0))

    dataset = Dataset(place, cache_dir=cache, storage_options=client, shuffle=True, seed=0)
    yield from _read_batches(StreamingDataLoader(dataset, **_loading(workers, decoder)), decoder)


def read_mosaicml(kind: str, place: str, workers: int, decoder: str) -> Iterator[int]:
    """As above by mosaicml-streaming."""
    from streaming import StreamingDataset

    finish = Finish(decoder)

    class Dataset(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return finish(item["image"], item["label"], int(index))

    dataset = Dataset(local=place, shuffle=True, batch_size=BATCH_SIZE)
    yield from _read_batches(DataLoader(dataset, **_loading(workers, decoder)), decoder)


def _loading(workers: int, decoder: str) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers}
    if workers:
        options["prefetch_factor"] = 2
    return options | ({"collate_fn": list} if decoder == "none" else {"collate_fn": _stack})


def _stack(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.stack([image for image, _ in samples])
    return torch.from_numpy(images), torch.tensor([label for _, label in samples])


def _read_batches(loader: Any, decoder: str) -> Iterator[int]:
    for batch in loader:
        if decoder == "none":
            yield len(batch)
        else:
            yield len(normalise(batch[0], EVALUATION.mean, EVALUATION.std))


def write_litdata(source: Path, out: Path, decoder: str) -> None:
    """Write the folder as litdata's chunks: files as they are, or marked as JPEG for its own decoder."""
    from litdata import optimize

    options = {"num_workers": 1, "chunk_bytes": CHUNK_BYTES, "start_method": "fork"}
    optimize(_LitItem(decoder), list_files(source), str(out), **options)


class _LitItem:
    def __init__(self, decoder: str) -> None:
        self.decoder = decoder

    def __call__(self, item: tuple[str, int]) -> dict[str, Any]:
        return {"image": _item(item[0], self.decoder), "label": item[1]}


def write_mosaicml(source: Path, out: Path, decoder: str) -> None:
    """Write the folder as mosaicml's shards, likewise."""
    from streaming import MDSWriter

    columns = {"image": "jpeg" if decoder == "own" else "bytes", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=CHUNK_BYTES) as writer:
        for path, label in list_files(source):
            writer.write({"image": _item(path, decoder), "label": label})


def _item(path: str, decoder: str) -> Any:
    if decoder != "own":
        return Path(path).read_bytes()
    from PIL import Image

    return Image.open(path)


def time_resume(place: str, workers: int) -> dict[str, list[float]]:
    """Return seconds from a position to its first batch, interleaved: at 0, and at 1/3 and nearly the end."""
    dataset = open_slots("shards", place, "ours")
    count = len(dataset.reader) // BATCH_SIZE
    places = {"start": 0, "third": count // 3 * BATCH_SIZE, "end": (count - 1) * BATCH_SIZE}
    found: dict[str, list[float]] = {name: [] for name in places}
    for number in range(11):
        for name, position in places.items():
            began = time.perf_counter()
            dataset = open_slots("shards", place, "ours")
            requests = slot_requests_from(position, len(dataset.reader))
            loader = make_loader(dataset, requests, num_workers=workers, prefetch_factor=2, pin_memory=False)
            slots = read_slots(loader)
            next(slots)
            # The first of all starts colder than any other.
            if number:
                found[name].append(time.perf_counter() - began)
            slots.close()  # type: ignore[attr-defined]
            del loader
    return found


READERS: dict[str, Callable[[str, str, int, str], Iterator[int]]] = {
    "folder": read_slots_of,
    "shards": read_slots_of,
    "webdataset": read_local_webdataset,
    "litdata": read_local_litdata,
    "mosaicml": read_mosaicml,
}


def main() -> None:
    """Run one arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*READERS, "resume", "write-litdata", "write-mosaicml"])
    parser.add_argument("place")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--decoder", choices=("ours", "own", "none"), default="ours")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.kind == "resume":
        print(json.dumps(time_resume(options.place, options.workers)))
        return
    if options.kind.startswith("write-"):
        writers = {"write-litdata": write_litdata, "write-mosaicml": write_mosaicml}
        writers[options.kind](Path(options.place), options.out, options.decoder)
        return
    # torch's and numpy's first calls are not the reader's cost.
    normalise(torch.zeros(2, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8), EVALUATION.mean, EVALUATION.std)
    began = time.perf_counter()
    samples = sum(READERS[options.kind](options.kind, options.place, options.workers, options.decoder))
    print(json.dumps({"samples": samples, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
