"""What all workers of a job share: what decides the bytes of the shards, and the names of their files.

Every file of a job carries a key in its name: a hash of the fingerprint and of the versions of what decides bytes. So a
name decides its bytes: whoever writes a name, in whichever attempt or run, writes the same content, and what is there
already is done. The key is made where the bytes are made, by the worker: a late worker with other libraries writes under
other names, which no manifest of this job lists.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from contracts import storage
from contracts.fingerprint import fingerprint
from records.convert import library_versions
from records.index_parts import ROW
from records.statistics import ChannelSums, Tally
from sharding.write.check import Checks

# Counts up when the same fingerprint would give other bytes: the plan, the order, the framing, what is rejected.
REVISION = 2
KEY_DIGITS = 8
# In the output's folder: what a job needs until its manifest is there.
WORK_NAME = ".work"


@functools.cache
def made_with() -> dict[str, str]:
    """Return the versions of what decides bytes in this process."""
    return {"sharding": str(REVISION), **library_versions()}


def make_work_key(output_fingerprint: str) -> str:
    """Return the key of a job's files, as this process would write them."""
    return fingerprint({"fingerprint": output_fingerprint, **made_with()})[:KEY_DIGITS]


@dataclass(frozen=True)
class Job:
    """What every worker needs to know."""

    fingerprint: str
    source_uri: str
    output_uri: str
    classes: tuple[bytes, ...]
    shard_format: str
    seed: int = 0
    multi_label: bool = False
    """Whether the labels of an image are a list."""
    checks: Checks = field(default_factory=Checks)
    """What is looked at in every image, and what is done to it."""
    summed_share: float = 1.0
    """Share of the training images whose pixels are summed up (records/statistics.py)."""
    read_threads: int = 0
    """Files, or requests to a bucket, that are under way at a time; 0: each when it is needed."""
    file_timeout_s: int = 120
    """Seconds that looking at one file may take."""
    beats: bool = False
    """Whether workers show signs of life (sharding/runners/heartbeat.py)."""

    @property
    def key(self) -> str:
        """Part of the names of all files that this process writes."""
        return make_work_key(self.fingerprint)

    @property
    def work_uri(self) -> str:
        """Folder of what the job needs until its manifest is there."""
        return storage.join(self.output_uri, WORK_NAME)


@dataclass(frozen=True)
class ShardRecord:
    """What is known about one planned shard after it was written."""

    shard: int
    """Number in the plan."""
    name: str
    """File name; no such file is there when every image was rejected."""
    shard_bytes: int
    crc32c: str
    rows: bytes
    """[n] of records.index_parts.ROW: where each sample lies in the file."""
    labels: bytes
    """[n] of <i4; NO_LABEL where an image may have several."""
    sources: bytes
    """[n] of <u8: what each sample was made of (Reference.identity)."""
    contents: bytes
    """[n] of <u8: crc32c (upper half) and size (lower half) of each image as it is stored."""
    source_bytes: int
    rejected: tuple[tuple[bytes, str], ...]
    """Path and reason of each file that was left out."""
    channel_sums: ChannelSums
    """Over the pixels of its images, or of some of them; only of the training split."""
    tally: Tally = field(default_factory=Tally)
    """Its images, counted."""
    label_counts: tuple[int, ...] = ()
    """Number of its images of each class; only where an image may have several."""

    @property
    def num_samples(self) -> int:
        """Number of its samples."""
        return len(self.rows) // ROW.itemsize
