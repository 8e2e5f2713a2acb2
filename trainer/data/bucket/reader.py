"""Samples of shards in a bucket, by way of the cache: whole ranges where they are needed soon, else single samples.

Every sample is compared with the index when it is read, whoever has put it into the cache.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from records.index import DamagedSample, find_damage_of
from trainer.data.bucket.cache import CachedRange
from trainer.data.bucket.fetch import Fetcher
from trainer.data.bucket.plan import ReadPlan
from trainer.data.bucket.rows import FetchedRows
from trainer.data.order.cursor import SlotRequest

# Share of the split's bytes that all processes together may read sample by sample although their ranges are coming, so
# that the first batches need not wait for whole blocks. It is paid twice.
EARLY_SHARE = 0.02


class BucketShards:
    """Reads samples by their place in the index.

    Args:
        fetcher: Of this process.
        plan: What is read.
        readers: Processes that share the bound on early reads.
    """

    def __init__(self, fetcher: Fetcher, plan: ReadPlan, readers: int = 1) -> None:
        self.fetcher, self.plan = fetcher, plan
        columns = plan.grid.columns
        total = int(columns.bytes[columns.of_split(plan.split)].sum())
        # A sample that is fetched alone comes at once anyway.
        self._early_bytes = int(EARLY_SHARE * total / readers) if plan.order is not None and not plan.one_by_one else 0
        self._firsts = columns.first
        self._known: dict[int, list[CachedRange]] = {}
        self._ready: dict[int, bytes] = {}

    def prepare(self, places: Sequence[int], request: SlotRequest | None) -> None:
        """Fetch what is missing of samples that will be read, side by side.

        Raises:
            DataError: A shard is missing.
            StorageError: No permission.
            TryAgain: The bucket does not answer.
        """
        self._ready = {}
        if self.plan.one_by_one:
            # What was there is gone after its batch.
            self._known = {}
        missing = self._missing(places)
        if not missing:
            return
        alone: list[int] = []
        ranges: dict[tuple[int, int, int], None] = {}
        shards = [self._shard_of(place) for place in missing]
        samples = [(shard, place - self._first_of(shard)) for shard, place in zip(shards, missing, strict=True)]
        if isinstance(rows := self.fetcher.index, FetchedRows):
            self.fetcher.side_by_side(rows.load, [(shard,) for shard in dict.fromkeys(shards)])
        for place, piece in zip(missing, self.plan.pieces_of(request, samples), strict=True):
            size = int(self.fetcher.index[place]["size"])
            if piece is None:
                alone.append(place)
            elif size <= self._early_bytes:
                self._early_bytes -= size
                alone.append(place)
            else:
                ranges[piece] = None
        self.fetcher.side_by_side(self._fetch, [*((piece, None) for piece in ranges), *((None, p) for p in alone)])
        if ranges:
            # Where the cache cannot hold them, or the bucket lacks some.
            left = [place for place in self._missing(places) if place not in self._ready]
            self.fetcher.side_by_side(self._fetch, [(None, place) for place in left])

    def read(self, place: int) -> bytes:
        """Return the bytes of one sample.

        Raises:
            DataError: The shard is missing or shorter than the index says, or the bytes have another crc32c.
        """
        if (content := self._ready.pop(place, None)) is not None:
            return content
        held, cached = self._find(place), None
        begin = 0 if held is None else self._begin_of(held, place)
        # Last: it is asked for again, for its label, and the last record is kept.
        record = self.fetcher.index[place]
        if held is not None:
            cached = _pread(held, int(record["offset"]) - begin, int(record["size"]))
            if cached is not None and find_damage_of(cached, record) is None:
                return cached
        content = self.fetcher.sample(int(record["shard"]), record)
        # The bucket has it right. Where it has not, the range stays for the samples beside this one.
        if held is not None:
            with suppress(ValueError):
                self._known[self._shard_of(place)].remove(held)
            # What is gone may have come again under the same name meanwhile.
            if cached is not None:
                self.fetcher.cache.discard(held)
        return content

    def _fetch(self, piece: tuple[int, int, int] | None, place: int | None) -> None:
        if piece is not None:
            self.fetcher.ensure(*piece)
        else:
            assert place is not None
            record = self.fetcher.index[place]
            # Whoever reads it decides what becomes of a damaged one.
            with suppress(DamagedSample):
                self._ready[place] = self.fetcher.sample(int(record["shard"]), record)

    def _missing(self, places: Sequence[int]) -> list[int]:
        """Return the places that no known range holds, after looking for new ranges once."""
        missing = [place for place in places if self._find(place) is None]
        for shard in {self._shard_of(place) for place in missing}:
            self._known[shard] = self.fetcher.held(shard)
        return [place for place in dict.fromkeys(missing) if self._find(place) is None]

    def _shard_of(self, place: int) -> int:
        """Return the shard of a sample by the manifest alone: the index is a file."""
        return int(np.searchsorted(self._firsts, place, side="right")) - 1

    def _first_of(self, shard: int) -> int:
        return int(self._firsts[shard])

    def _find(self, place: int) -> CachedRange | None:
        shard = self._shard_of(place)
        known = self._known.get(shard)
        if not known:
            return None
        sample = place - self._first_of(shard)
        held = known[bisect_right(known, sample, key=lambda held: held.first) - 1]
        return held if held.first <= sample < held.end else None

    def _begin_of(self, held: CachedRange, place: int) -> int:
        """Return where a range of the shard of `place` begins in it."""
        return int(self.fetcher.index[self._first_of(self._shard_of(place)) + held.first]["offset"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_ready": {}}


def _pread(held: CachedRange, offset: int, size: int) -> bytes | None:
    # Opened for each sample: a file kept open would take memory after it was evicted, and opening takes 10 us.
    try:
        descriptor = os.open(held.path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.pread(descriptor, size, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
