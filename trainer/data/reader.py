"""Samples by their place: bytes from a shard, checked against the index, and decoded as strictly as while sharding."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError
from records.decode import Pixels, UndecodableImage, decode_rgb
from records.index import DamagedSample, key_of, read_payload
from records.index_file import IndexFile
from trainer.data.bucket.cache_folder import CacheFolder
from trainer.data.bucket.fetch import Fetcher
from trainer.data.bucket.plan import Grid, ReadPlan, ahead_bytes, blocks_bytes, evaluation_bytes
from trainer.data.bucket.prefetch import Prefetcher
from trainer.data.bucket.reader import BucketShards
from trainer.data.order.block_order import BlockOrder
from trainer.data.order.cursor import SlotRequest
from trainer.data.order.resolve import Order

# Shards held open by one reader: far below the usual limit of 1,024 files a process, and opening one costs little.
MAX_OPEN_SHARDS = 64
# Labels looked at in one go for the next sample of a class: more than most collections have classes.
_LABELS_AT_A_TIME = 4096


class Shards(Protocol):
    """Where the bytes of samples come from; a place is one of the whole index."""

    def prepare(self, places: list[int], request: SlotRequest | None) -> None:
        """Get ready to read samples, all of one request."""

    def read(self, place: int) -> bytes:
        """Return the bytes of one sample; DataError when they are damaged."""


class ShardReader:
    """Reads samples of one split by their place, from shards of either format, on disk or in a bucket.

    Args:
        shards_uri: Folder of the shards.
        manifest: Their manifest.
        split: The split.
        data: How a bucket is read; unset: by the defaults.
        folder: Cache of this machine for shards in a bucket; unset: one in memory for this reader.

    Attributes:
        index_uri: The whole index, as a file of this machine.

    Raises:
        DataError: The index is missing, or is not as long as the manifest says. Its bytes are compared once an attempt
            (trainer/data/shards.py, trainer/data/bucket/index_cache.py), not by every reader: that takes seconds.
    """

    def __init__(
        self,
        shards_uri: str,
        manifest: ShardManifest,
        split: str,
        data: DataSection | None = None,
        folder: CacheFolder | None = None,
    ) -> None:
        self.data = data or DataSection()
        self._shard_names = [shard.relative_path for shard in manifest.shards]
        self._split = split
        entry = manifest.splits[split]
        self._first = entry.first
        self.fetcher: Fetcher | None = None
        self._shards: Shards
        if storage.is_local(shards_uri):
            path = storage.local_path(manifest.index.uri(shards_uri))
            index = _checked_index(IndexFile(path), path, manifest)
            self._shards = LocalShards(shards_uri, manifest, index)
        else:
            # Kept: in memory it lasts as long as someone holds it.
            self._folder = folder or CacheFolder(self.data)
            # The user may do anything to the cache's files: whatever is wrong with this one, it is taken anew.
            index_path = partial(self._folder.index_path, shards_uri, manifest.index)
            path = index_path()
            index = _checked_index(IndexFile(path, index_path), path, manifest)
            # After the index, which takes room too.
            self.fetcher = Fetcher(shards_uri, manifest, index, self._folder.fitted(manifest))
            self.grid = Grid(manifest, self.data.range_bytes)
            self._shards = BucketShards(self.fetcher, ReadPlan(self.grid, split))
        self.index_uri = path.as_uri()
        self._index = index.part(entry.first, entry.samples)

    def __len__(self) -> int:
        return len(self._index)

    def set_order(
        self,
        order: Order,
        *,
        global_batch_size: int,
        streams: npt.NDArray[np.bool_] | None = None,
        readers: int = 1,
    ) -> None:
        """Tell in which order samples will be asked for; local shards do not care.

        Args:
            order: Of the split.
            global_batch_size: Samples per optimizer step.
            streams: [num_streams] the canonical streams that this rank reads; None: all.
            readers: Processes that read this split, over all ranks.
        """
        if self.fetcher is None:
            return
        manifest, limit = self.grid.manifest, self.fetcher.cache.limit_bytes
        whole = sum(shard.bytes for shard in manifest.shards if shard.split == self._split) <= limit
        fits = not isinstance(order, BlockOrder) or limit >= blocks_bytes(
            manifest, self._split, num_streams=order.num_streams, block_samples=order.block_samples
        )
        plan = ReadPlan(self.grid, self._split, order, global_batch_size, streams, whole, fits)
        self._shards = BucketShards(self.fetcher, plan, readers)

    def content(self, place: int) -> bytes:
        """Return the bytes of the image at `place`.

        Raises:
            DataError: They are damaged.
        """
        return self._shards.read(self._first + place)

    def prepare(self, places: list[int], request: SlotRequest | None = None) -> None:
        """Fetch samples that will be read next, side by side; nothing happens for local shards."""
        self._shards.prepare([self._first + place for place in places], request)

    def prefetcher(self, position: int, *, epochs: int, ranks: int, requests: Iterable[SlotRequest] = ()) -> Prefetcher:
        """Return what fetches ahead of training, in the order of `set_order`; for local shards it does nothing.

        Args:
            position: The global position to begin at.
            requests: What this rank will ask for from there on; used where samples are fetched one by one.
            epochs: Of the whole training.
            ranks: Training processes of this machine, which share the cache.
        """
        if self.fetcher is None or not isinstance(self._shards, BucketShards):
            return Prefetcher(None, (), 0)
        plan = self._shards.plan
        needs = plan.of_requests(requests) if plan.one_by_one else plan.coming(position, epochs)
        budget = ahead_bytes(self.fetcher.cache.limit_bytes, self.data.range_bytes, ranks)
        return Prefetcher(self.fetcher, needs, budget, plan)

    @contextmanager
    def read_ahead(self, ranks: int = 1) -> Iterator[Callable[[int], None]]:
        """Fetch ahead of reading the split from end to end; call what this gives with each place that is reached.

        Args:
            ranks: Processes of this machine that evaluate, and share the cache.
        """
        if self.fetcher is None:
            yield lambda place: None
            return
        plan = ReadPlan(self.grid, self._split)
        budget = evaluation_bytes(self.fetcher.cache.limit_bytes, self.data.range_bytes, ranks)
        with Prefetcher(self.fetcher, plan.from_end_to_end(), budget) as prefetcher:
            yield prefetcher.advance

    def read(self, place: int) -> tuple[Pixels, int]:
        """Return the whole image [H, W, 3] and the label at `place`.

        Raises:
            DamagedSample: The bytes are damaged, or are no image.
            DataError: The shard cannot be read.
        """
        content, label = self.read_bytes(place)
        try:
            return decode_rgb(content), label
        except UndecodableImage as error:
            raise self.undecodable(place, error) from None

    def read_bytes(self, place: int) -> tuple[bytes, int]:
        """Return the image file, checked against the index, and the label at `place`; raises as `read` does."""
        return self.content(place), int(self._index[place]["label"])

    def origin_of(self, place: int) -> tuple[int, str]:
        """Return the shard of the sample at `place`, as its place in the manifest, and its key there."""
        record = self._index[place]
        return int(record["shard"]), key_of(record)

    def undecodable(self, place: int, error: UndecodableImage) -> DamagedSample:
        """Return the error of a sample whose bytes are as they were sharded, but are no image."""
        in_training = self._split == "train"
        return DamagedSample(
            f"{self.describe(place)}: cannot be decoded: {error}",
            allowed="images that were decoded when they were sharded",
            todo="shard again with --fresh, or set data.on_bad_sample=replace"
            if in_training
            else "shard again with --fresh; data.on_bad_sample is for training samples, others are never replaced",
        )

    def describe(self, place: int) -> str:
        """Return how errors call the sample at `place`: by its shard and key."""
        record = self._index[place]
        return f"shard {self._shard_names[int(record['shard'])]}, sample {key_of(record)}"

    def next_of_class(self, place: int) -> int:
        """Return the place of the next sample with the label of `place`, in the order of the index.

        It goes on from the end at the start, and is `place` itself where it is the only one.
        """
        label = self._index[place]["label"]
        for first, end in ((place + 1, len(self._index)), (0, place)):
            for start in range(first, end, _LABELS_AT_A_TIME):
                same = self._index[start : min(start + _LABELS_AT_A_TIME, end)]["label"] == label
                if same.any():
                    return start + int(same.argmax())
        return place


def _checked_index(index: IndexFile, path: Path, manifest: ShardManifest) -> IndexFile:
    """Return the index, having seen to it that it has the records that the manifest counts."""
    samples = sum(split.samples for split in manifest.splits.values())
    if len(index) != samples:
        raise DataError(
            f"the index {path} has {len(index)} samples, the manifest {samples}",
            allowed="the index that the shard stage wrote",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )
    return index


class LocalShards:
    """Reads from the files of this machine."""

    def __init__(self, shards_uri: str, manifest: ShardManifest, index: IndexFile) -> None:
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._folder_uri, self._shards, self._index = shards_uri, manifest.shards, index

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to a spawned process; it opens its own.
        return {**self.__dict__, "_descriptors": OrderedDict()}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def prepare(self, places: list[int], request: SlotRequest | None) -> None:
        """Do nothing: the system reads ahead."""

    def read(self, place: int) -> bytes:
        """Return the bytes of one sample, checked."""
        record = self._index[place]
        number = int(record["shard"])
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            descriptor = self._open(number, record)
        else:
            self._descriptors.move_to_end(number)
        return read_payload(descriptor, record, name=self._shards[number].relative_path)

    def _open(self, number: int, record: Any) -> int:
        """Open a shard, and keep it open; the least recently used one is closed when there are many."""
        if number >= len(self._shards):
            raise DataError(
                f"the index has sample {key_of(record)} in shard {number} of {len(self._shards)}",
                allowed="the index that the shard stage wrote",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            )
        if len(self._descriptors) >= MAX_OPEN_SHARDS:
            os.close(self._descriptors.popitem(last=False)[1])
        entry = self._shards[number]
        try:
            descriptor = os.open(storage.local_path(entry.uri(self._folder_uri)), os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"shard {entry.relative_path}, sample {key_of(record)}: the shard cannot be read ({error.strerror})",
                allowed="shards as the shard stage left them",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            ) from None
        self._descriptors[number] = descriptor
        return descriptor
