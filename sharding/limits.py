"""Limits on a set of samples for training, and the error for a full disk.

They are checked on the listing, on the results before the manifest is published, and on finished shards before reuse.
Imports neither Beam nor NumPy: a stage that only reuses its result must start quickly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError, StorageError
from sharding.names import MAX_NAMED, encode_name, join_names


def check_training_classes(
    classes: Sequence[bytes], training_samples: Sequence[int], shown: str, vanished: Collection[int] = ()
) -> None:
    """Raise DataError, naming the classes, when a class has no sample in the training split.

    Args:
        classes: Names of all classes.
        training_samples: Number of training samples of each.
        shown: How the error calls the source.
        vanished: Labels of classes that need none: the source of an increment has no sample of them any more.
    """
    absent = [
        encode_name(name)
        for label, (name, count) in enumerate(zip(classes, training_samples, strict=True))
        if count == 0 and label not in vanished
    ]
    if absent:
        raise DataError(
            f"{shown}: no training sample of class {join_names(absent)}",
            allowed="at least one usable sample of each class in the training split",
            todo="add samples of that class, remove its folder or its rows, or raise sharding.splits.train",
        )


def check_training_samples(num_samples: int, shown: str) -> None:
    """Raise DataError when the training split is empty."""
    if not num_samples:
        raise DataError(
            f"{shown}: no sample in the training split",
            allowed="at least one usable sample in the training split",
            todo="add some, raise sharding.splits.train, or correct the column of splits",
        )


@dataclass(frozen=True)
class Limits:
    """Limits of the configuration that are not part of the fingerprint."""

    max_rejected_fraction: float
    duplicates: str
    """As `sharding.duplicates`."""

    def check(self, manifest: ShardManifest, shown: str) -> None:
        """Check a manifest against the limits; errors name the source as `shown`.

        Raises:
            DataError: Too large a share of the files was rejected, or there are copies and `duplicates` is fail.
            ConfigError: The shards were written without the search for copies.
        """
        count = manifest.count_rejected
        total = count + sum(split.samples for split in manifest.splits.values())
        if count > self.max_rejected_fraction * total:
            named = "".join(f"\n    {entry.path}: {entry.reason}" for entry in manifest.rejected[:MAX_NAMED])
            more = f"\n    ... and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
            raise DataError(
                f"{shown}: {count} of {total} files cannot be used as images:{named}{more}",
                allowed=f"at most a share of {self.max_rejected_fraction:g} (sharding.max_rejected_fraction)",
                todo="repair or remove these files, or raise sharding.max_rejected_fraction",
            )
        if self.duplicates == "fail":
            from sharding.duplicates import check_duplicates

            check_duplicates(manifest.duplicates, shown)


@contextlib.contextmanager
def space_needed(uri: str) -> Iterator[None]:
    """Convert ENOSPC, EDQUOT and EFBIG in the block to a StorageError.

    Raises:
        StorageError: The disk, a quota or a limit on the size of files is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _disk_full(uri, os.strerror(error.errno)) from None
    except RuntimeError as error:
        # Errors of a worker process arrive as the text of a traceback.
        if f"[Errno {errno.ENOSPC}]" not in str(error):
            raise
        raise _disk_full(uri, os.strerror(errno.ENOSPC)) from None


def _disk_full(uri: str, reason: str) -> StorageError:
    if not storage.is_local(uri):
        return StorageError(
            f"{tempfile.gettempdir()} cannot be written: {reason}",
            allowed=f"room there for one shard per worker, before the upload to {storage.display(uri)}",
            todo="free some, or set TMPDIR to a folder on another disk; nothing half-written looks finished",
        )
    return StorageError(
        f"{storage.display(uri)} cannot be written: {reason}",
        allowed="room for the shards, about the size of the source",
        todo="free some, or set run.root or --output to another disk; nothing half-written looks finished",
    )
