"""The fields of a sample, taken out of the bytes that are stored for it; no Beam, no torch.

What a shard holds for each kind is written by records/tar.py and records/tfrecord.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contracts.artifacts import ShardManifest


class FieldReader:
    """Takes fields of samples out of their stored bytes.

    Args:
        manifest: Of the shards.
        wanted: Names of the fields; None: all.

    Raises:
        DataError: The samples have no such field.
    """

    def __init__(self, manifest: ShardManifest, wanted: Sequence[str] | None = None) -> None:
        self._manifest = manifest
        self._wanted = wanted

    def read(self, stored: bytes, label: int) -> dict[str, Any]:
        """Return the value of each wanted field by name.

        An image and bytes are the file (bytes), text is str, a class int, classes tuple[int, ...], a number float,
        numbers list[float], json the value.

        Args:
            stored: What the index points at: the whole sample, or in version 1 of the index the image alone.
            label: Of the sample, from the index.

        Raises:
            DamagedSample: A field is not in it, or cannot be read.
        """
        raise NotImplementedError
