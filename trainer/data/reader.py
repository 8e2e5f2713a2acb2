"""Read samples by position in a split, verified against the index."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.config.sharding import ROW_PREFIX
from contracts.errors import DataError, ShardlineError
from records.decode import UndecodableImage
from records.fields import FieldReader, path_in
from records.index import DamagedSample, SampleIndex, key_of, read_payload, read_samples
from trainer.data.order import BlockOrder, FullOrder, Order
from trainer.data.shard_cache import NEVER, Need, Prefetcher, ShardCache

# Maximum open local shards per reader: well below the usual limit of 1,024 files per process.
MAX_OPEN_SHARDS = 64
# Labels read at a time in `next_of_class`.
_CHUNK = 4096
# Samples named in an error, and characters shown of a row.
_NAMED = 3
_ROW_CHARACTERS = 120


class Origin(NamedTuple):
    """Origin of a sample."""

    shard: str
    """Shard path, relative to the manifest's folder."""
    key: str
    path: str | None
    """Path in its source, or the beginning of its row; None: unknown or hidden."""


class ShardReader:
    """Reads samples of one split by position, from local shards or a bucket, in either format.

    Attributes:
        index: Index of all splits.
        cache: Cache of whole shards from a bucket; None for local shards.
        scattered: Whether each sample is read from the bucket by a separate request.
        shows_rows: Whether errors and origins show the beginning of a row (inspect.samples).
        keeps_origins: Whether origins of read samples are kept for `take_origins`.
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
        self.shows_rows, self.keeps_origins, self.scattered = False, False, scattered
        self._origins: list[Origin] = []
        self._fields = FieldReader(manifest, fields)
        self._shards_uri, self._manifest, self._split = shards_uri, manifest, split
        self._first, self._count = manifest.splits[split].first, manifest.splits[split].samples
        is_local = storage.is_local(shards_uri)
        self.cache = None if is_local else ShardCache(shards_uri, manifest, data or DataSection())
        self.index = SampleIndex(manifest, shards_uri, None if self.cache is None else self.cache.read_index)
        self._opened: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._prepared: dict[int, bytes] = {}

    def __del__(self) -> None:
        for descriptor, _ in self.__dict__.get("_opened", {}).values():
            os.close(descriptor)

    def __len__(self) -> int:
        return self._count

    # --- reading ------------------------------------------------------------------------------------------------------

    def sample(self, place: int) -> dict[str, Any]:
        """Return the fields of the sample at `place` by name, verified against the index.

        Raises:
            DamagedSample: The sample is damaged, or a field cannot be read.
            DataError, StorageError: The shard cannot be read or cached.
        """
        shard, row = self._locate(place)
        stored = self._prepared.pop(place, None) or self._read(shard, row)
        try:
            fields = self._fields.read(stored, int(row["label"]))
            if self.keeps_origins:
                shard_path = self._manifest.shards[shard].relative_path
                self._origins.append(Origin(shard_path, key_of(row), self._source_in(stored, row, fields) or None))
            return fields
        except DamagedSample as error:
            raise DamagedSample(
                f"{self.describe(place)}: {error.given}", allowed=error.allowed, todo=error.todo
            ) from None

    def prepare(self, places: Sequence[int]) -> None:
        """Read the next samples in parallel if reads are `scattered`; otherwise do nothing."""
        self._prepared = {}
        if self.cache is not None and self.scattered:
            stored = read_samples(self.index, self._shards_uri, [self._first + place for place in places])
            # The rest is read one by one, and the error raised for its sample.
            with contextlib.suppress(DamagedSample):
                self._prepared.update(zip(places, stored, strict=True))

    def _read(self, shard: int, row: Any) -> bytes:
        if self.cache is None:
            descriptor, name = self._open(shard, row)
            return read_payload(descriptor, row, name=name)
        if self.scattered:
            return read_payload(self._uri_of(shard), row)
        entry = self._manifest.shards[shard]
        descriptor = self.cache.open(entry)
        try:
            return read_payload(descriptor, row)
        except DamagedSample:
            # Discard the cached file only if the bucket's copy is valid.
            stored = read_payload(self._uri_of(shard), row)
            self.cache.discard(entry)
            return stored
        finally:
            os.close(descriptor)

    def _open(self, shard: int, row: Any) -> tuple[int, str]:
        """Return descriptor and name of a local shard; close the least recently used one if too many are open."""
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
        """Return the shard number and the index row of a sample."""
        if not 0 <= place < self._count:
            raise IndexError(f"sample {place} of {self._count}")
        shard, row = self._manifest.shards.locate(self._first + place)
        return shard, self.index.rows(shard)[row]

    def _uri_of(self, shard: int) -> str:
        return self._manifest.shards[shard].uri(self._shards_uri)

    # --- fetching ahead -----------------------------------------------------------------------------------------------

    def set_order(self, order: Order) -> str | None:
        """Switch to `scattered` reads, and return a warning, if the cache is too small for an order."""
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
        """Return a prefetcher for training from a global position to the end of the last epoch."""
        return Prefetcher(None if self.scattered else self.cache, self._needs_of(order, position, epochs))

    def prefetcher_of_split(self) -> Prefetcher:
        """Return a prefetcher for reading the split once; positions are split positions."""
        shards = self._manifest.shards
        ends = ((shards.first[shard] + shards.samples[shard], shard) for shard in shards.numbers_of(self._split))
        return Prefetcher(None if self.scattered else self.cache, (Need(end - self._first, n) for end, n in ends))

    def _needs_of(self, order: Order, position: int, epochs: int) -> Iterator[Need]:
        if isinstance(order, FullOrder):
            # All shards are needed at once, and the cache has room for them (`set_order`).
            yield from (Need(NEVER, shard) for shard in self._manifest.shards.numbers_of(self._split))
            return
        first_epoch, offset = divmod(position, order.num_samples)
        for epoch in range(first_epoch, epochs):
            for window in order.windows(epoch, offset):
                until = epoch * order.num_samples + window.end
                yield from (Need(until, shard) for shard in window.shards)
            offset = 0

    # --- names of samples ---------------------------------------------------------------------------------------------

    def origin_of(self, place: int) -> tuple[str, str]:
        """Return the relative shard path and the key of the sample at `place`."""
        shard, row = self._locate(place)
        return self._manifest.shards[shard].relative_path, key_of(row)

    def describe(self, place: int) -> str:
        """Describe the sample at `place`: shard, key, and source file or row."""
        shard, key = self.origin_of(place)
        source = self._source_of(place)
        return f"shard {shard}, sample {key}" + (f" ({source})" if source else "")

    def describe_some(self, places: Sequence[int]) -> str:
        """Describe the first few samples, and the number of others."""
        named = [self._source_of(place) or f"sample {self.origin_of(place)[1]}" for place in places[:_NAMED]]
        more = f" and {len(places) - len(named)} more" if len(places) > len(named) else ""
        return ", ".join(named) + more

    def take_origins(self) -> tuple[Origin, ...]:
        """Return the origins of the samples read since the last call, in reading order."""
        origins, self._origins = tuple(self._origins), []
        return origins

    def _source_of(self, place: int) -> str:
        """Return the source path of a sample, or the beginning of its row; empty if unknown or hidden."""
        try:
            shard, row = self._locate(place)
            # Not verified: the path of a damaged sample may be intact.
            stored = storage.read_range(self._uri_of(shard), int(row["offset"]), int(row["size"]))
            return self._source_in(stored, row)
        except (OSError, ShardlineError):
            # Used in error messages: must not raise.
            return ""

    def _source_in(self, stored: bytes, row: Any, fields: dict[str, Any] | None = None) -> str:
        """Like `_source_of`, from a sample's bytes and, if already read, its fields."""
        path = path_in(stored, self._manifest.format) or ""
        if not path.startswith(ROW_PREFIX) or not self.shows_rows:
            return "" if path.startswith(ROW_PREFIX) else path
        fields = fields or self._fields.read(stored, int(row["label"]))
        text = ", ".join(f"{name} {value!r}" for name, value in fields.items() if name != self._manifest.label_field)
        return f"row {text[:_ROW_CHARACTERS]}{'...' if len(text) > _ROW_CHARACTERS else ''}"

    def undecodable(self, place: int, error: UndecodableImage) -> DamagedSample:
        """Return the error for an intact sample that cannot be decoded as an image."""
        in_training = self._split == "train"
        return DamagedSample(
            f"{self.describe(place)}: cannot be decoded: {error}",
            allowed="images that were decoded when they were sharded",
            todo="shard again with --fresh, or set data.on_bad_sample=replace"
            if in_training
            else "shard again with --fresh; data.on_bad_sample is for training samples, others are never replaced",
        )

    def next_of_class(self, place: int) -> int:
        """Return the position of the next sample with the same label, in index order.

        The search wraps around; the result is `place` if no other sample has the label.
        """
        label = self._locate(place)[1]["label"]
        for first, end in ((place + 1, self._count), (0, place)):
            for start in range(first, end, _CHUNK):
                same = self.index.labels(self._first + start, min(_CHUNK, end - start)) == label
                if same.any():
                    return start + int(same.argmax())
        return place
