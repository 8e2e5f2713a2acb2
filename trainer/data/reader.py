"""Samples by their place: bytes from a shard, checked against the index, and their fields."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.config.sharding import ROW_PREFIX
from contracts.errors import DataError, ShardlineError
from records.decode import UndecodableImage
from records.fields import FieldReader, path_in
from records.index import DamagedSample, SampleIndex, key_of, read_payload
from trainer.data.order.block_order import BlockOrder
from trainer.data.order.resolve import Order
from trainer.data.prefetch import NEVER, Need, Prefetcher
from trainer.data.shard_cache import ShardCache

# Local shards held open by one reader: far below the usual limit of 1,024 files a process.
MAX_OPEN_SHARDS = 64
# Ranged requests at a time, of samples that are read without their shards.
_REQUESTS = 32
# Labels looked at in one go for the next sample of a class, and places for the next shards of a full order.
_AT_A_TIME = 4096
# Samples that are named of a batch, and what is shown of a row.
_NAMED = 3
_ROW_CHARACTERS = 120


class ShardReader:
    """Reads samples of one split by their place, from shards of either format, on disk or in a bucket.

    From a bucket whole shards are fetched to this machine (trainer/data/shard_cache.py).

    Args:
        shards_uri: Folder of the shards.
        manifest: Their manifest.
        split: The split.
        data: Where shards of a bucket are kept; unset: by the defaults.
        fields: Names of the fields of a sample that are wanted; unset: all.
        scattered: Whether few samples of many shards are read: from a bucket each by a request of its own.

    Attributes:
        index: All samples of all splits.
        cache: Of a bucket's shards; None: they are local.
        scattered: As given; `set_order` sets it where the cache does not hold what the order reads from.
        shows_rows: Whether errors show how a row begins (inspect.samples).
    """

    def __init__(
        self,
        shards_uri: str,
        manifest: ShardManifest,
        split: str,
        data: DataSection | None = None,
        fields: Sequence[str] | None = None,
        *,
        scattered: bool = False,
    ) -> None:
        self.shows_rows, self.scattered = False, scattered
        self._fields = FieldReader(manifest, fields)
        self._shards_uri, self._manifest, self._split = shards_uri, manifest, split
        self._first, self._count = manifest.splits[split].first, manifest.splits[split].samples
        is_local = storage.is_local(shards_uri)
        self.cache = None if is_local else ShardCache(shards_uri, manifest, data or DataSection())
        self.index = SampleIndex(manifest, shards_uri, None if self.cache is None else self.cache.read_index)
        self._opened: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._ready: dict[int, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to a spawned process; it opens its own.
        return {**self.__dict__, "_opened": OrderedDict(), "_ready": {}}

    def __del__(self) -> None:
        for descriptor, _ in self.__dict__.get("_opened", {}).values():
            os.close(descriptor)

    def __len__(self) -> int:
        return self._count

    # --- reading ------------------------------------------------------------------------------------------------------

    def sample(self, place: int) -> dict[str, Any]:
        """Return the fields of the sample at `place` by name, its bytes checked against the index.

        Raises:
            DamagedSample: They are damaged, or a field cannot be read from them.
            DataError: The shard cannot be read.
            StorageError: The disk has no room for a shard of a bucket.
        """
        shard, row = self._locate(place)
        ready = self._ready.pop(place, None)
        stored = self._read(shard, row) if ready is None else ready
        try:
            return self._fields.read(stored, int(row["label"]))
        except DamagedSample as error:
            raise DamagedSample(
                f"{self.describe(place)}: {error.given}", allowed=error.allowed, todo=error.todo
            ) from None

    def prepare(self, places: Sequence[int]) -> None:
        """Read samples that come next side by side, where they are scattered over a bucket; else do nothing."""
        self._ready = {}
        if self.cache is None or not self.scattered:
            return
        # The index is not made for several threads.
        located = [(place, *self._locate(place)) for place in dict.fromkeys(places)]

        def read(place: int, shard: int, row: Any) -> None:
            # A damaged one is read again, and raised, in its turn.
            with contextlib.suppress(DamagedSample):
                self._ready[place] = self._read(shard, row)

        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="samples") as pool:
            list(pool.map(lambda item: read(*item), located))

    def _read(self, shard: int, row: Any) -> bytes:
        if self.cache is None:
            descriptor, name = self._open(shard, row)
            return read_payload(descriptor, row, name=name)
        if self.scattered:
            return read_payload(self._uri_of(shard), row)
        descriptor = self.cache.open(shard)
        try:
            return read_payload(descriptor, row)
        except DamagedSample:
            # Where the bucket has it right, the file is wrong; else the samples around it may be right.
            stored = read_payload(self._uri_of(shard), row)
            self.cache.discard(shard)
            return stored
        finally:
            os.close(descriptor)

    def _open(self, shard: int, row: Any) -> tuple[int, str]:
        """Return the open file of a local shard, and its name; the least recently used one is closed when many are."""
        if shard in self._opened:
            self._opened.move_to_end(shard)
            return self._opened[shard]
        if len(self._opened) >= MAX_OPEN_SHARDS:
            os.close(self._opened.popitem(last=False)[1][0])
        name = self._manifest.shards[shard].relative_path
        try:
            descriptor = os.open(storage.local_path(self._uri_of(shard)), os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"shard {name}, sample {key_of(row)}: the shard cannot be read ({error.strerror})",
                allowed="shards as the shard stage left them",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            ) from None
        self._opened[shard] = descriptor, name
        return descriptor, name

    def _locate(self, place: int) -> tuple[int, Any]:
        """Return the number of the shard of a sample, and its row of the index."""
        if not 0 <= place < self._count:
            raise IndexError(f"sample {place} of {self._count}")
        shard, row = self._manifest.shards.locate(self._first + place)
        return shard, self.index.rows(shard)[row]

    def _uri_of(self, shard: int) -> str:
        return self._manifest.shards[shard].uri(self._shards_uri)

    # --- what comes next ----------------------------------------------------------------------------------------------

    def set_order(self, order: Order) -> str | None:
        """Choose how a bucket is read, by whether the cache holds what the order reads from at a time.

        Returns:
            A warning where it does not: samples are then read one by one.
        """
        if self.cache is None:
            return None
        sizes = sorted(map(self.cache.bytes_of, self._manifest.shards.numbers_of(self._split)), reverse=True)
        if isinstance(order, BlockOrder):
            sizes = sizes[: order.window_shards]
        self.scattered = sum(sizes) > self.cache.limit_bytes
        if not self.scattered:
            return None
        return (
            f"the cache in {self.cache.folder} may hold {self.cache.limit_bytes} bytes, and the order reads from "
            f"{len(sizes)} shards at a time ({sum(sizes)} bytes): each sample is read from the bucket by a request of "
            f"its own; set data.cache_bytes to {2 * sum(sizes)} for speed"
        )

    def prefetcher(self, order: Order, position: int, *, epochs: int) -> Prefetcher:
        """Return what fetches shards ahead of training; where there is nothing to fetch, it does nothing.

        Args:
            order: Of the split.
            position: The global position to begin at.
            epochs: Of the whole training.
        """
        if self.cache is None or self.scattered:
            return Prefetcher(None)
        return Prefetcher(self.cache, self._needs(order, position, epochs))

    def _needs(self, order: Order, position: int, epochs: int) -> Iterator[Need]:
        first_epoch, offset = divmod(position, order.num_samples)
        if isinstance(order, BlockOrder):
            for epoch in range(first_epoch, epochs):
                for window in order.windows(epoch, offset):
                    until = epoch * order.num_samples + window.end
                    yield from (Need(until, shard) for shard in window.shards)
                offset = 0
            return
        # The cache holds the split (`set_order`), so each shard is fetched once.
        firsts, seen = np.array(self._manifest.shards.first), set[int]()
        for epoch in range(first_epoch, epochs):
            for start in range(offset, order.num_samples, _AT_A_TIME):
                places = order.places(epoch, start, min(_AT_A_TIME, order.num_samples - start))
                shards = np.searchsorted(firsts, places + self._first, side="right") - 1
                for shard in dict.fromkeys(shards.tolist()):
                    if shard not in seen:
                        seen.add(shard)
                        yield Need(NEVER, shard)
            offset = 0
            if len(seen) == len(self._manifest.shards.numbers_of(self._split)):
                return

    @contextmanager
    def read_ahead(self, batches: Sequence[Sequence[int]] | None = None) -> Iterator[Callable[[int], None]]:
        """Fetch ahead of reading the split from end to end; call what this gives with each place that is reached.

        Args:
            batches: Places that this process reads, ascending; None: all.
        """
        if self.cache is None or self.scattered:
            yield lambda place: None
            return
        every = [range(self._count)] if self._count else []
        with Prefetcher(self.cache, self._needs_of(every if batches is None else batches)) as prefetcher:
            yield prefetcher.advance

    def _needs_of(self, batches: Sequence[Sequence[int]]) -> Iterator[Need]:
        shards, after = self._manifest.shards, 0
        for batch in batches:
            first, last = (shards.locate(self._first + place)[0] for place in (batch[0], batch[-1]))
            for shard in range(max(first, after), last + 1):
                yield Need(shards.first[shard] + shards.samples[shard] - self._first, shard)
            after = last + 1

    # --- what samples are called --------------------------------------------------------------------------------------

    def origin_of(self, place: int) -> tuple[int, str]:
        """Return the number of the shard of the sample at `place`, and its key there."""
        shard, row = self._locate(place)
        return shard, key_of(row)

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
        shard, key = self.origin_of(place)
        of, source = f"shard {self._manifest.shards[shard].relative_path}, sample {key}", self._source_of(place)
        return f"{of} ({source})" if source else of

    def describe_some(self, places: Sequence[int]) -> str:
        """Return the files or rows of the first of some samples, and how many more there are."""
        named = [self._source_of(place) or f"sample {self.origin_of(place)[1]}" for place in places[:_NAMED]]
        more = f" and {len(places) - len(named)} more" if len(places) > len(named) else ""
        return ", ".join(named) + more

    def _source_of(self, place: int) -> str:
        """Return the path of a sample in its source, or how its row begins; empty: not known, or not to be shown."""
        try:
            shard, row = self._locate(place)
            # As it is: of a damaged one the path may still be right.
            stored = storage.read_range(self._uri_of(shard), int(row["offset"]), int(row["size"]))
            path = path_in(stored, self._manifest.format) or ""
            if not path.startswith(ROW_PREFIX):
                return path
            fields = self._fields.read(stored, int(row["label"])) if self.shows_rows else {}
        except (OSError, ShardlineError):
            # It is told in an error, which must not become another one.
            return ""
        words = ", ".join(f"{name} {value!r}" for name, value in fields.items() if name != self._manifest.label_field)
        shown = f"row {words[:_ROW_CHARACTERS]}{'...' if len(words) > _ROW_CHARACTERS else ''}"
        return shown if self.shows_rows else ""

    def next_of_class(self, place: int) -> int:
        """Return the place of the next sample with the label of `place`, in the order of the index.

        It goes on from the end at the start, and is `place` itself where it is the only one.
        """
        label = self._locate(place)[1]["label"]
        for first, end in ((place + 1, self._count), (0, place)):
            for start in range(first, end, _AT_A_TIME):
                same = self.index.labels(self._first + start, min(_AT_A_TIME, end - start)) == label
                if same.any():
                    return start + int(same.argmax())
        return place
