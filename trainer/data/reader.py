"""Samples by their place in a split: bytes from a shard, compared with the index, and their fields."""

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

# Local shards held open by one reader: far below the usual limit of 1,024 files per process.
MAX_OPEN_SHARDS = 64
# Labels read at a time in search of a class.
_CHUNK = 4096
# Samples of a batch that are named, and characters of a row that are shown.
_NAMED = 3
_ROW_CHARACTERS = 120


class Origin(NamedTuple):
    """Names of a sample."""

    shard: str
    """Path of its shard below the manifest's folder."""
    key: str
    path: str | None
    """In its source, or how its row begins; None: not known, or not to be shown."""


class ShardReader:
    """Reads samples of one split by their place, from shards of either format, on a disk or in a bucket.

    Attributes:
        index: All samples of all splits.
        cache: Of a bucket's shards, which are fetched whole to this machine; None: they are local.
        scattered: Few samples of many shards are read: from a bucket each by a request of its own.
        shows_rows: Whether errors and origins show how a row begins (inspect.samples).
        keeps_origins: Whether the origin of each sample that is read is kept for `take_origins`.
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
        """Return the fields of the sample at `place` by name, its bytes compared with the index.

        Raises:
            DamagedSample: They are damaged, or a field cannot be read from them.
            DataError, StorageError: The shard cannot be read, or kept on this machine.
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
        """Read the samples that come next in parallel, where they are scattered over a bucket; else do nothing."""
        self._prepared = {}
        if self.cache is not None and self.scattered:
            stored = read_samples(self.index, self._shards_uri, [self._first + place for place in places])
            # From a damaged one on they are read one by one, and it is raised in its turn.
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
            # Where the bucket has it right, the file is wrong; else the samples around it may be right.
            stored = read_payload(self._uri_of(shard), row)
            self.cache.discard(entry)
            return stored
        finally:
            os.close(descriptor)

    def _open(self, shard: int, row: Any) -> tuple[int, str]:
        """Return descriptor and name of a local shard; of many the least recently used one is closed."""
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

    # --- fetching ahead -----------------------------------------------------------------------------------------------

    def set_order(self, order: Order) -> str | None:
        """Read samples one by one, and return a warning, if the cache does not hold what an order reads at a time."""
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
        """Return what fetches shards ahead of training from a global position to the end of the last epoch."""
        return Prefetcher(None if self.scattered else self.cache, self._needs_of(order, position, epochs))

    def prefetcher_of_split(self) -> Prefetcher:
        """Return what fetches shards ahead of reading the split from end to end; a position is a place."""
        shards = self._manifest.shards
        ends = ((shards.first[shard] + shards.samples[shard], shard) for shard in shards.numbers_of(self._split))
        return Prefetcher(None if self.scattered else self.cache, (Need(end - self._first, n) for end, n in ends))

    def _needs_of(self, order: Order, position: int, epochs: int) -> Iterator[Need]:
        if isinstance(order, FullOrder):
            # Samples of all shards are read from the start on, and the cache holds them all (`set_order`).
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
        """Return the shard of the sample at `place`, by its path below the manifest's folder, and its key there."""
        shard, row = self._locate(place)
        return self._manifest.shards[shard].relative_path, key_of(row)

    def describe(self, place: int) -> str:
        """Return shard and key of the sample at `place`, and its file or row in the source."""
        shard, key = self.origin_of(place)
        source = self._source_of(place)
        return f"shard {shard}, sample {key}" + (f" ({source})" if source else "")

    def describe_some(self, places: Sequence[int]) -> str:
        """Return the files or rows of the first of some samples, and how many more there are."""
        named = [self._source_of(place) or f"sample {self.origin_of(place)[1]}" for place in places[:_NAMED]]
        more = f" and {len(places) - len(named)} more" if len(places) > len(named) else ""
        return ", ".join(named) + more

    def take_origins(self) -> tuple[Origin, ...]:
        """Return the origins of the samples that were read since the last call, in the order of reading."""
        origins, self._origins = tuple(self._origins), []
        return origins

    def _source_of(self, place: int) -> str:
        """Return the path of a sample in its source, or how its row begins; empty: not known, or not to be shown."""
        try:
            shard, row = self._locate(place)
            # Not verified: of a damaged sample the path may still be right.
            stored = storage.read_range(self._uri_of(shard), int(row["offset"]), int(row["size"]))
            return self._source_in(stored, row)
        except (OSError, ShardlineError):
            # It is part of an error, which must not become another one.
            return ""

    def _source_in(self, stored: bytes, row: Any, fields: dict[str, Any] | None = None) -> str:
        """Return the same out of a sample's bytes, and its fields where they have been read."""
        path = path_in(stored, self._manifest.format) or ""
        if not path.startswith(ROW_PREFIX) or not self.shows_rows:
            return "" if path.startswith(ROW_PREFIX) else path
        fields = fields or self._fields.read(stored, int(row["label"]))
        words = ", ".join(f"{name} {value!r}" for name, value in fields.items() if name != self._manifest.label_field)
        return f"row {words[:_ROW_CHARACTERS]}{'...' if len(words) > _ROW_CHARACTERS else ''}"

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

    def next_of_class(self, place: int) -> int:
        """Return the place of the next sample with the label of `place`, in the order of the index.

        It goes on from the end at the start, and is `place` itself where it is the only one.
        """
        label = self._locate(place)[1]["label"]
        for first, end in ((place + 1, self._count), (0, place)):
            for start in range(first, end, _CHUNK):
                same = self.index.labels(self._first + start, min(_CHUNK, end - start)) == label
                if same.any():
                    return start + int(same.argmax())
        return place
