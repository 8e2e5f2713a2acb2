"""From the bucket: ranges into the cache, single samples into memory; several at a time.

One Fetcher a process; ranks and loader processes of a machine share its cache, where claims see to it that no range is
fetched twice. Whatever goes wrong with the cache, a sample still comes from the bucket.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.errors import DataError
from records.index import DamagedSample, find_damage_of, key_of
from records.samples import SampleIndex
from trainer.data.bucket.cache import CachedRange, RangeCache, RangeClaim, shard_key

# Ranges received at a time: at first, and at most.
FIRST_STREAMS, MAX_STREAMS = 4, 32
# More streams are kept when together they are faster by this much.
GROWTH = 1.15
# Long enough for a stream to pass several MiB; shorter ones measure the start of the streams.
WINDOW_S = 1.0
# Single samples fetched at a time: their latency, not their bytes, is what threads hide.
SAMPLE_STREAMS = 32
# How long another process may fetch a range before a sample is read past it.
WAIT_S = 120.0
# After a full disk or a folder that cannot be written: how long the cache is left alone.
REST_S = 5.0
# What changed on its way comes right the second time.
_ATTEMPTS = 2

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Streams:
    """How many ranges are received at a time: doubled for as long as the total grows by GROWTH.

    As many requests more are on their way to the bucket as hide its latency: ranges that take as long to come as their
    first bytes are asked for in pairs.
    """

    def __init__(self, first: int = FIRST_STREAMS, most: int = MAX_STREAMS) -> None:
        self.limit, self._most = first, most
        self._changed = threading.Condition()
        self._turns: deque[object] = deque()
        self._requests = 0
        self._receiving = 0
        self._settled = first >= most
        self._best: float | None = None
        self._bytes = 0
        self._since: float | None = None
        self._latency_share = 0.0
        """Time to the first bytes over time from them to the last: the mean of latest requests."""

    @property
    def most_requests(self) -> int:
        """Requests on their way, those being received among them."""
        return self.limit + min(self.limit, max(1, math.ceil(self.limit * self._latency_share)))

    @contextlib.contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Wait for a turn, and take it; call what this gives with the number of bytes whenever some came.

        Turns come in the order in which they were waited for, which is the order of need.
        """
        received = False
        asked = first = 0.0

        def count(num_bytes: int) -> None:
            nonlocal received, first
            with self._changed:
                if not received:
                    first = time.monotonic()
                    self._changed.wait_for(lambda: self._receiving < self.limit)
                    self._receiving += 1
                    received = True
                if not self._settled:
                    self._measure(num_bytes)

        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                self._changed.wait_for(lambda: self._turns[0] is turn and self._requests < self.most_requests)
                self._requests += 1
            finally:
                # Also where the wait is interrupted: those behind would wait for ever.
                self._turns.remove(turn)
                self._changed.notify_all()
        asked = time.monotonic()
        try:
            yield count
        finally:
            with self._changed:
                if received:
                    share = (first - asked) / max(1e-3, time.monotonic() - first)
                    self._latency_share += (min(1.0, share) - self._latency_share) / 8
                self._requests -= 1
                self._receiving -= received
                self._changed.notify_all()

    def _measure(self, num_bytes: int) -> None:
        """Take note of bytes that came, and decide anew when enough is known."""
        self._bytes += num_bytes
        if self._receiving < self.limit - 1:
            # Not all are at work: that says nothing about more of them.
            self._since = None
        elif self._since is None:
            self._since, self._bytes = time.monotonic(), 0
        elif (seconds := time.monotonic() - self._since) >= WINDOW_S:
            self._decide(self._bytes / seconds)

    def _decide(self, rate: float) -> None:
        if self._best is not None and rate < GROWTH * self._best:
            self.limit //= 2
            self._settled = True
            return
        self._best = rate
        self.limit = min(2 * self.limit, self._most)
        self._settled = self.limit == self._most
        self._since = None
        self._changed.notify_all()


class _GivenUp(Exception):
    """Who asked for the range does not want it any more; another process that does claims it anew."""


class Fetcher:
    """Fetches from the shards of a bucket.

    Args:
        shards_uri: Their folder.
        manifest: Their manifest.
        index: All samples.
        cache: Where ranges go.
    """

    def __init__(self, shards_uri: str, manifest: ShardManifest, index: SampleIndex, cache: RangeCache) -> None:
        self.cache = cache
        self.index = index
        self.streams = Streams()
        self._shards_uri, self._shards = shards_uri, manifest.shards
        self._firsts = shard_columns(manifest.shards).first
        self._resting_until = 0.0
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "streams": Streams(), "_pool": None}

    def _uri_of(self, shard: int) -> str:
        return self._shards[shard].uri(self._shards_uri)

    def _key_of(self, shard: int) -> str:
        return shard_key(self._shards[shard])

    def extent(self, shard: int, first: int, count: int) -> tuple[int, int]:
        """Return offset and bytes of samples [first, first + count) of a shard."""
        place = int(self._firsts[shard]) + first
        last = self.index[place + count - 1]
        offset = int(self.index[place]["offset"])
        return offset, int(last["offset"]) + int(last["size"]) - offset

    def held(self, shard: int) -> list[CachedRange]:
        """Return what the cache has of a shard."""
        return self.cache.held(self._key_of(shard))

    def done(self, shard: int, first: int, count: int) -> None:
        """Say that samples of a shard are not needed for now."""
        self.cache.done(self._key_of(shard), first, count)

    def drop(self, shard: int, first: int, count: int) -> None:
        """Take samples of a shard out of the cache."""
        self.cache.drop(self._key_of(shard), first, count)

    def ensure(
        self, shard: int, first: int, count: int, *, wait: bool = True, given_up: Callable[[], bool] = lambda: False
    ) -> bool:
        """Fetch what the cache lacks of samples [first, first + count) of a shard.

        Args:
            shard: Place in the manifest's shards.
            first: First sample, counted in the shard.
            count: Number of samples.
            wait: Until other processes have fetched what they are at.
            given_up: Asked whenever bytes come: whether to end without them.

        Returns:
            False where the cache cannot hold them now, the shard is missing, or they were given up: read them one by
            one. A sample that is wrong in the bucket lies in the cache as it is: whoever reads it compares it anyway.

        Raises:
            StorageError: No permission.
            TryAgain: The bucket does not answer.
        """
        if time.monotonic() < self._resting_until:
            return False
        deadline, pause = time.monotonic() + WAIT_S, 0.001
        while True:
            try:
                claims, others = self.cache.claim(self._key_of(shard), first, count)
            except OSError as error:
                return self._rest(error)
            if not self._fill_all(shard, claims, given_up):
                return False
            if not (others and wait):
                break
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        for held in self.held(shard):
            if held.first < first + count and first < held.end:
                self.cache.touch(held)
        return True

    def sample(self, shard: int, record: Any) -> bytes:
        """Return the bytes of one sample, from the bucket, checked.

        Raises:
            DataError: The shard is missing.
            DamagedSample: It is shorter than the index says, or the bytes have another crc32c.
        """
        uri = self._uri_of(shard)
        kind: type[DataError] = DamagedSample
        damage = None
        for _ in range(_ATTEMPTS):
            pieces: list[bytes] = []
            try:
                storage.copy_range(uri, int(record["offset"]), int(record["size"]), pieces.append)
            except FileNotFoundError:
                kind, damage = DataError, "the shard is not there"
                break
            content = b"".join(pieces)
            damage = find_damage_of(content, record)
            if damage is None:
                return content
        raise kind(
            f"shard {uri}, sample {key_of(record)} at offset {int(record['offset'])}: {damage}",
            allowed="shards that agree with their index",
            todo="run the shard stage again with --fresh, or copy the folder of shards again",
        )

    def side_by_side(self, work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]]) -> list[Result]:
        """Return the results of `work`, run in threads, in order; the first error is raised."""
        items = list(arguments)
        if len(items) < 2:
            return [work(*item) for item in items]
        if self._pool is None or self._pool[0] != os.getpid():
            # A forked child has the object, and none of its threads.
            self._pool = (os.getpid(), ThreadPoolExecutor(SAMPLE_STREAMS, thread_name_prefix="samples"))
        return list(self._pool[1].map(lambda item: work(*item), items))

    def _fill_all(self, shard: int, claims: list[RangeClaim], given_up: Callable[[], bool]) -> bool:
        for number, claim in enumerate(claims):
            filled = False
            try:
                filled = self._fill(shard, claim, given_up)
            except (FileNotFoundError, _GivenUp):
                # The shard is missing, which the reader of a sample says; or the folder is, which is made again then.
                pass
            except OSError as error:
                self._rest(error)
            finally:
                if not filled:
                    for left in claims[number:]:
                        with contextlib.suppress(OSError):
                            left.abandon()
            if not filled:
                return False
        return True

    def _fill(self, shard: int, claim: RangeClaim, given_up: Callable[[], bool]) -> bool:
        """Fetch one range into its file, and look at its bytes before anyone else does."""
        offset, size = self.extent(shard, claim.first, claim.count)
        if not self.cache.reserve(claim, size):
            return False

        uri = self._uri_of(shard)

        def receive(start: int, end: int) -> None:
            os.lseek(claim.descriptor, start - offset, os.SEEK_SET)
            with self._turn(claim) as count:
                write = partial(_write, claim.descriptor, count, given_up)
                storage.copy_range(uri, start, end - start, write)

        receive(offset, offset + size)
        if damaged := self._damaged(shard, claim, offset):
            # What changed on its way is right the second time. What is wrong in the bucket is not, and is named when
            # its turn comes: the samples beside it are none the worse.
            receive(int(damaged[0]["offset"]), int(damaged[-1]["offset"]) + int(damaged[-1]["size"]))
        claim.publish()
        return True

    def _turn(self, claim: RangeClaim) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Wait for a turn; single samples have none, since it is their latency that takes time."""
        return self.streams.request() if claim.count > 1 else contextlib.nullcontext(lambda num_bytes: None)

    def _damaged(self, shard: int, claim: RangeClaim, offset: int) -> list[Any]:
        """Return the records whose bytes in a claim's file are not what the index says."""
        place = int(self._firsts[shard]) + claim.first
        return [
            record
            for record in self.index[place : place + claim.count]
            if find_damage_of(os.pread(claim.descriptor, int(record["size"]), int(record["offset"]) - offset), record)
        ]

    def _rest(self, error: OSError) -> bool:
        """Leave the cache alone for a while; what is missing is read sample by sample."""
        if time.monotonic() >= self._resting_until:
            _log.warning("the cache in %s cannot be written (%s): reading past it", self.cache.folder, error)
        self._resting_until = time.monotonic() + REST_S
        return False


def _write(descriptor: int, count: Callable[[int], None], given_up: Callable[[], bool], content: bytes) -> None:
    if given_up():
        raise _GivenUp
    count(len(content))
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
