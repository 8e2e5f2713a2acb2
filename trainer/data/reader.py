"""Samples by their place: bytes from a shard, checked against the index, and their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest, find_damage
from contracts.config import DataSection
from contracts.config.sharding import ROW_PREFIX
from contracts.errors import DataError, ShardlineError
from records.decode import UndecodableImage
from records.description import read_path
from records.fields import FieldReader
from records.index import DamagedSample, key_of
from records.index_file import IndexFile, PartFiles
from records.samples import PartedIndex, SampleIndex, count_samples
from trainer.data.bucket.cache_folder import CacheFolder
from trainer.data.bucket.fetch import Fetcher
from trainer.data.bucket.plan import Grid, ReadPlan, ahead_bytes, blocks_bytes, evaluation_bytes
from trainer.data.bucket.prefetch import Prefetcher
from trainer.data.bucket.reader import BucketShards
from trainer.data.bucket.rows import FetchedRows
from trainer.data.local_shards import LocalShards
from trainer.data.order.block_order import BlockOrder
from trainer.data.order.cursor import SlotRequest
from trainer.data.order.resolve import Order, split_size

# Labels looked at in one go for the next sample of a class: more than most collections have classes.
_LABELS_AT_A_TIME = 4096
# Samples that are named of a batch, and what is shown of a row.
_NAMED = 3
_ROW_CHARACTERS = 120
# By one request to a bucket: 4 MB.
_LABELS_FETCHED = 1 << 20


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
        fields: Names of the fields of a sample that are wanted; unset: all.

    Attributes:
        index: All samples of all splits.
        shows_rows: Whether errors show how a row begins (inspect.samples).

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
        fields: Sequence[str] | None = None,
    ) -> None:
        self.data = data or DataSection()
        self.shows_rows = False
        self._fields = FieldReader(manifest, fields)
        self._shards_uri, self._manifest, self._split = shards_uri, manifest, split
        self._first, self._count = manifest.splits[split].first, manifest.splits[split].samples
        self.fetcher: Fetcher | None = None
        self._shards: Shards
        if storage.is_local(shards_uri):
            self.index = open_local_index(shards_uri, manifest)
            self._shards = LocalShards(shards_uri, manifest, self.index)
        else:
            # Kept: in memory it lasts as long as someone holds it.
            self._folder = folder or CacheFolder(self.data)
            self.index = open_bucket_index(shards_uri, manifest, self._folder)
            # After the index, which takes room too.
            self.fetcher = Fetcher(shards_uri, manifest, self.index, self._folder.fitted(manifest))
            self.grid = Grid(manifest, self.data.range_bytes)
            self._shards = BucketShards(self.fetcher, ReadPlan(self.grid, split))

    def __len__(self) -> int:
        return self._count

    def fetch_index(self) -> int:
        """Fetch all parts of the index that hold the split, for an order that reads all over it; return their bytes.

        Nothing happens, and 0 is returned, where the index is on this machine already.

        Raises:
            DataError: A part is missing in the bucket, or has other bytes than the manifest says.
            StorageError: There is no room for them.
        """
        if self.fetcher is None or not isinstance(self.index, FetchedRows):
            return 0
        wanted = [
            number
            for number, part in enumerate(self._manifest.index_parts)
            if self._first <= part.first < self._first + self._count
        ]
        path_of = partial(_fetched_part, self._folder, self._shards_uri, self._manifest)
        for number in wanted:
            path_of(number)
        self.index = self.fetcher.index = PartedIndex(self._manifest, PartFiles(path_of).read)
        return sum(self._manifest.index_parts[number].bytes for number in wanted)

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
        whole = split_size(manifest, self._split)[0] <= limit
        fits = not isinstance(order, BlockOrder) or limit >= blocks_bytes(
            manifest, self._split, num_streams=order.num_streams, block_samples=order.block_samples
        )
        plan = ReadPlan(self.grid, self._split, order, global_batch_size, streams, whole, fits)
        self._shards = BucketShards(self.fetcher, plan, readers)

    def sample(self, place: int) -> dict[str, Any]:
        """Return the fields of the sample at `place` by name, its bytes checked against the index.

        Raises:
            DamagedSample: They are damaged, or a field cannot be read from them.
            DataError: The shard cannot be read.
        """
        stored, label = self._shards.read(self._first + place), int(self._record(place)["label"])
        try:
            return self._fields.read(stored, label)
        except DamagedSample as error:
            raise DamagedSample(
                f"{self.describe(place)}: {error.given}", allowed=error.allowed, todo=error.todo
            ) from None

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
    def read_ahead(self, ranks: int = 1, batches: Sequence[range] | None = None) -> Iterator[Callable[[int], None]]:
        """Fetch ahead of reading the split from end to end; call what this gives with each place that is reached.

        Args:
            ranks: Processes of this machine that evaluate, and share the cache.
            batches: Places that this one reads, ascending; None: all. A range of others alone would be passed, and
                given up, on its way.
        """
        if self.fetcher is None:
            yield lambda place: None
            return
        plan = ReadPlan(self.grid, self._split)
        budget = evaluation_bytes(self.fetcher.cache.limit_bytes, self.data.range_bytes, ranks)
        with Prefetcher(self.fetcher, plan.from_end_to_end(batches), budget) as prefetcher:
            yield prefetcher.advance

    def origin_of(self, place: int) -> tuple[int, str]:
        """Return the shard of the sample at `place`, as its place in the manifest, and its key there."""
        record = self._record(place)
        return int(record["shard"]), key_of(record)

    def _record(self, place: int) -> Any:
        if not 0 <= place < self._count:
            raise IndexError(f"sample {place} of {self._count}")
        return self.index[self._first + place]

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
        """Return how errors call the sample at `place`: by its shard and key, and its file or row."""
        record, source = self._record(place), self._source_of(place)
        of = f"shard {self._manifest.shards[int(record['shard'])].relative_path}, sample {key_of(record)}"
        return f"{of} ({source})" if source else of

    def describe_some(self, places: Sequence[int]) -> str:
        """Return the files or rows of the first of some samples, and how many more there are."""
        named = [self._source_of(place) or f"sample {self.origin_of(place)[1]}" for place in places[:_NAMED]]
        more = f" and {len(places) - len(named)} more" if len(places) > len(named) else ""
        return ", ".join(named) + more

    def _source_of(self, place: int) -> str:
        """Return the path of a sample in its source, or how its row begins; empty: not known, or not to be shown."""
        manifest, record = self._manifest, self._record(place)
        shard = manifest.shards[int(record["shard"])].uri(self._shards_uri)
        try:
            path = read_path(shard, record, whole_format=manifest.format if manifest.whole_samples else None) or ""
            if not path.startswith(ROW_PREFIX):
                return path
            return self._begin_of_row(place) if self.shows_rows else ""
        except (OSError, ShardlineError):
            # It is told in an error, which must not become another one.
            return ""

    def _begin_of_row(self, place: int) -> str:
        stored, label = self._shards.read(self._first + place), int(self._record(place)["label"])
        fields = self._fields.read(stored, label).items()
        words = ", ".join(f"{name} {value!r}" for name, value in fields if name != self._manifest.label_field)
        return f"row {words[:_ROW_CHARACTERS]}{'...' if len(words) > _ROW_CHARACTERS else ''}"

    def next_of_class(self, place: int) -> int:
        """Return the place of the next sample with the label of `place`, in the order of the index.

        It goes on from the end at the start, and is `place` itself where it is the only one.
        """
        label = self._record(place)["label"]
        at_a_time = _LABELS_AT_A_TIME if not isinstance(self.index, FetchedRows) else _LABELS_FETCHED
        for first, end in ((place + 1, self._count), (0, place)):
            for start in range(first, end, at_a_time):
                same = self.index.labels(self._first + start, min(at_a_time, end - start)) == label
                if same.any():
                    return start + int(same.argmax())
        return place


def open_local_index(shards_uri: str, manifest: ShardManifest) -> SampleIndex:
    """Return the samples of local shards, read from the files of the index where they lie.

    Raises:
        DataError: A file is missing, or is not as long as the manifest says.
    """
    if manifest.index is not None:
        path = storage.local_path(manifest.index.uri(shards_uri))
        return _checked_index(IndexFile(path), path, manifest)
    if damage := find_damage(shards_uri, manifest.index_parts, checksums=False):
        raise DataError(
            f"the index in {storage.display(shards_uri)} is damaged: {damage}",
            allowed="the index that the shard stage wrote",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )
    return PartedIndex(manifest, PartFiles(partial(_local_part, shards_uri, manifest)).read)


def open_bucket_index(shards_uri: str, manifest: ShardManifest, folder: CacheFolder) -> SampleIndex:
    """Return the samples of shards in a bucket: version 1 is fetched whole, of version 2 the rows that are needed.

    Raises:
        DataError: The index is missing in the bucket, or has other bytes than the manifest says.
        StorageError: There is no room for it.
    """
    if manifest.index is None:
        return folder.rows(shards_uri, manifest)
    # The user may do anything to the cache's files: whatever is wrong with this one, it is taken anew.
    index_path = partial(folder.index_path, shards_uri, manifest.index)
    path = index_path()
    return _checked_index(IndexFile(path, index_path), path, manifest)


def _local_part(shards_uri: str, manifest: ShardManifest, number: int) -> Path:
    return storage.local_path(manifest.index_parts[number].uri(shards_uri))


def _fetched_part(folder: CacheFolder, shards_uri: str, manifest: ShardManifest, number: int) -> Path:
    return folder.index_path(shards_uri, manifest.index_parts[number])


def _checked_index(index: IndexFile, path: Path, manifest: ShardManifest) -> IndexFile:
    """Return the index, having seen to it that it has the records that the manifest counts."""
    samples = count_samples(manifest)
    if len(index) != samples:
        raise DataError(
            f"the index {path} has {len(index)} samples, the manifest {samples}",
            allowed="the index that the shard stage wrote",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )
    return index
