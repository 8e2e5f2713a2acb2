"""Samples by their place: bytes from a shard, checked against the index, and decoded as strictly as while sharding."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError
from records.decode import UndecodableImage, decode_rgb
from records.index import key_of, open_index, read_payload

Pixels = npt.NDArray[np.uint8]

# Shards held open by one reader: far below the usual limit of 1,024 files a process, and opening one costs little.
MAX_OPEN_SHARDS = 64


class ShardReader:
    """Reads samples of one split by their place, from local shards of either format."""

    def __init__(self, shards_uri: str, manifest: ShardManifest, split: str) -> None:
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        folder = storage.local_path(shards_uri)
        entry = manifest.splits[split]
        self._paths = [storage.local_path(shard.uri(shards_uri)) for shard in manifest.shards]
        self._index = open_index(folder / manifest.index.name)[entry.first : entry.first + entry.samples]

    def __len__(self) -> int:
        return len(self._index)

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to a spawned process; it opens its own.
        return {**self.__dict__, "_descriptors": OrderedDict()}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, place: int) -> tuple[Pixels, int]:
        """Return the image [H, W, 3] and the label at `place`.

        Raises:
            DataError: The bytes are damaged, or are no image.
        """
        record = self._index[place]
        number = int(record["shard"])
        content = read_payload(self._descriptor(number), record)
        try:
            return decode_rgb(content), int(record["label"])
        except UndecodableImage as error:
            raise DataError(
                f"{self._paths[number].name}: sample {key_of(record)} cannot be decoded: {error}",
                allowed="images that were decoded when they were sharded",
                todo="shard again with --fresh",
            ) from None

    def _descriptor(self, number: int) -> int:
        """Return an open shard; the least recently used one is closed when there are many."""
        if number in self._descriptors:
            self._descriptors.move_to_end(number)
            return self._descriptors[number]
        if len(self._descriptors) >= MAX_OPEN_SHARDS:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[number] = self._open(number)
        return self._descriptors[number]

    def _open(self, number: int) -> int:
        try:
            return os.open(self._paths[number], os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"shard {self._paths[number].name} cannot be read ({error.strerror})",
                allowed="shards as the shard stage left them",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            ) from None
