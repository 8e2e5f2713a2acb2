"""What the records of all shards add up to: the entries of the manifest and the rows of the index, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np

from contracts import storage
from contracts.artifacts import FileEntry, ImageStatistics, ShardEntry, SplitEntry
from contracts.config import SPLITS
from records.index import RECORD, Index
from records.statistics import ChannelSums, Tally
from sharding.increment.reuse import Increment, Reused, ReusedShards, without_tombstones
from sharding.write.shard import Job, ShardRecord, neighbour_name


class Collected:
    """What the records of all shards add up to, without holding the records.

    Args:
        job: The plan of what was written.
        increment: Counts of the samples that are reused.
        reused: The shards of the parent that stay.
        sources: Receives what each sample of the index was made of.
    """

    def __init__(self, job: Job, increment: Increment | None, reused: ReusedShards | None, sources: BinaryIO) -> None:
        self._job = job
        self._reused = reused
        self._sources = sources
        self._samples_by_class = np.zeros((len(SPLITS), len(self._job.classes)), np.int64)
        self._samples = [0] * len(SPLITS)
        self._source_bytes = [0] * len(SPLITS)
        if increment is not None:
            self._samples_by_class += np.array(increment.samples_by_class)
            self._source_bytes = list(increment.source_bytes)
        self._num_samples = 0
        self.buried: list[Index] = []
        self.rejected: list[tuple[bytes, str]] = []
        self.shards: list[ShardEntry] = []
        self.neighbours: list[FileEntry] = []
        self.channel_sums = ChannelSums()
        self.tally = Tally()

    def add_all(self, records: Iterable[ShardRecord]) -> Iterator[Index]:
        """Take the records, in the order of their shards; yield the part of each in the index."""
        numbered = enumerate(records)
        for split, num_shards in enumerate(self._job.plan.num_shards):
            # What a split reuses comes before what it writes: it stays a contiguous range of the index.
            for shard in self._reused.of_split(split) if self._reused else ():
                yield self._add_reused(shard, split)
            for expected, record in islice(numbered, num_shards):
                assert record.shard == expected, "a shard is missing or double"
                self.rejected += record.rejected
                # A planned shard may have lost all its images: places in the manifest are counted without it.
                if record.rows:
                    yield self._add(record)

    def _add_reused(self, shard: Reused, split: int) -> Index:
        rows, buried = shard.rows, shard.buried
        rows["shard"] = buried["shard"] = len(self.shards)
        self.shards.append(shard.entry.model_copy(update={"first": self._num_samples}))
        self._num_samples += len(rows)
        self._samples[split] += len(rows)
        self._sources.write(shard.sources)
        if len(buried):
            self.buried.append(buried)
        if shard.neighbour is not None:
            self.neighbours.append(self._renew(shard.neighbour, shard))
        self.tally += _read_tally(shard.entry)
        return rows

    def _renew(self, neighbour: FileEntry, shard: Reused) -> FileEntry:
        """Return the index of a reused shard that other libraries read; written anew when more of it is gone."""
        if not shard.newly_gone:
            return neighbour
        output_uri = self._job.output_uri
        whole = storage.read_bytes(neighbour.uri(output_uri))
        content = without_tombstones(whole, shard.buried, self._job.shard_format)
        storage.publish(storage.join(output_uri, neighbour.name), content)
        return FileEntry(name=neighbour.name, bytes=len(content), crc32c=storage.crc32c(content))

    def _add(self, record: ShardRecord) -> Index:
        part = np.frombuffer(record.rows, RECORD).copy()
        part["shard"] = len(self.shards)
        split = self._job.plan.split_of(record.shard)
        self.shards.append(
            ShardEntry(
                name=record.name,
                bytes=record.shard_bytes,
                crc32c=record.crc32c,
                split=SPLITS[split],
                first=self._num_samples,
                samples=len(part),
                images=describe_images(record.tally),
                changed=dict(record.tally.changes),
            )
        )
        self._num_samples += len(part)
        if self._job.multi_label:
            self._samples_by_class[split] += record.label_counts
        else:
            self._samples_by_class[split] += np.bincount(part["label"], minlength=len(self._job.classes))
        self._samples[split] += len(part)
        self._source_bytes[split] += record.source_bytes
        self._sources.write(record.sources)
        self.neighbours.append(
            FileEntry(name=neighbour_name(record.name), bytes=record.neighbour_bytes, crc32c=record.neighbour_crc32c)
        )
        self.channel_sums += record.channel_sums
        self.tally += record.tally
        return part

    def describe_splits(self) -> dict[str, SplitEntry]:
        """Return the splits, each a contiguous range of the index."""
        splits = {}
        first = 0
        for split, name in enumerate(SPLITS):
            splits[name] = SplitEntry(
                first=first,
                samples=self._samples[split],
                source_bytes=self._source_bytes[split],
                samples_by_class=self._samples_by_class[split].tolist(),
            )
            first += self._samples[split]
        return splits


def _read_tally(entry: ShardEntry) -> Tally:
    """Return what was counted when a shard was written."""
    images = entry.images
    assert images is not None, "no parent"
    width, height = ((one[0], one[1]) if one else None for one in (images.width, images.height))
    return Tally(images.formats, images.modes, entry.changed, width, height)


def describe_images(tally: Tally) -> ImageStatistics:
    """Return counts and sizes of images as the manifest has them."""
    return ImageStatistics(
        formats=dict(tally.formats),
        modes=dict(tally.modes),
        width=list(tally.widths) if tally.widths else None,
        height=list(tally.heights) if tally.heights else None,
    )
