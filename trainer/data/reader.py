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
from records.index import DamagedSample, key_of, open_index, read_payload

Pixels = npt.NDArray[np.uint8]

# Shards held open by one reader: far below the usual limit of 1,024 files a process, and opening one costs little.
MAX_OPEN_SHARDS = 64
# Labels looked at in one go for the next sample of a class: more than most collections have classes.
_LABELS_AT_A_TIME = 4096


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
        record = self._index[place]
        return read_payload(self._descriptor(int(record["shard"])), record), int(record["label"])

    def undecodable(self, place: int, error: UndecodableImage) -> DamagedSample:
        """Return the error of a sample whose bytes are as they were sharded, but are no image."""
        record = self._index[place]
        return DamagedSample(
            f"{self._paths[int(record['shard'])].name}: sample {key_of(record)} cannot be decoded: {error}",
            allowed="images that were decoded when they were sharded",
            todo="shard again with --fresh, or set data.on_bad_sample=replace",
        )

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
