"""Bytes of samples from shards that are files of this machine."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError
from records.index import key_of, read_payload
from records.samples import SampleIndex
from trainer.data.order.cursor import SlotRequest

# Shards held open by one reader: far below the usual limit of 1,024 files a process, and opening one costs little.
MAX_OPEN_SHARDS = 64


class LocalShards:
    """Reads from the files of this machine."""

    def __init__(self, shards_uri: str, manifest: ShardManifest, index: SampleIndex) -> None:
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
