"""`shardline data adopt`: index and manifest for shards that others wrote, so that they train as they are.

The shards are never changed. Each image's header is read (or the image decoded), and the pixels of at most 10,000
training images are summed up for their mean. The manifest is written last, and only where there is none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal

import numpy as np

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    FileEntry,
    ImageStatistics,
    Rejected,
    ShardEntry,
    ShardManifest,
    SplitEntry,
)
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError, TryAgain
from contracts.fingerprint import combine, fingerprint
from data_tools.foreign import ForeignShard, find_shards
from records.classes import sort_classes
from records.decode import UndecodableImage, decode, read_header
from records.foreign_tar import Found, scan_tar
from records.foreign_tfrecord import scan_tfrecord
from records.index import INDEX_NAME, RECORD, Index, write_index
from records.payloads import read_payloads
from records.statistics import ChannelSums, Counter, channel_statistics, is_summed, summed_share

# Labels without names are places in a list of classes; larger numbers are hashes or identifiers.
_MAX_CLASSES = 1_000_000
_SCANNERS = {"webdataset": scan_tar, "tfrecord": scan_tfrecord}


def adopt(
    folder_uri: str,
    *,
    patterns: Mapping[str, str],
    class_names: Sequence[str] | None,
    verify: Literal["decode", "header"],
    progress: Callable[[int, int], None],
) -> ShardManifest:
    """Write index and manifest beside the shards of a folder.

    Args:
        folder_uri: Folder with .tar or .tfrecord files.
        patterns: Pattern of the file names of each split.
        class_names: Names of the classes, by label; or, where labels are no places in it, the labels themselves in the
            order of the classes. None: the names in the shards, or the numbers.
        verify: How images are checked.
        progress: Called with the number of shards done, and of all.

    Raises:
        ConfigError: There is a manifest or an index of other content, or a file belongs to no split or to several.
        DataError: The folder has no shards, one is damaged or of another kind, or labels are negative or huge.
        TryAgain: A shard was replaced in the meantime, or a bucket does not answer.
    """
    if storage.exists(storage.join(folder_uri, MANIFEST_NAME)):
        raise ConfigError(
            f"{storage.display(folder_uri)} has a {MANIFEST_NAME} already",
            allowed="a folder of shards without one",
            todo="train on it as it is, or delete the manifest to write it again",
        )
    shards = find_shards(folder_uri, patterns)
    collected = _Collected(verify)
    labels: list[list[int | str]] = []
    entries: list[ShardEntry] = []
    parts: list[Index] = []
    for done, shard in enumerate(shards):
        progress(done, len(shards))
        part, part_labels = _scan(folder_uri, shard, collected)
        labels.append(part_labels)
        parts.append(part)
        first = sum(map(len, parts[:-1]))
        entries.append(_describe_shard(folder_uri, shard, first=first, samples=len(part)))
    progress(len(shards), len(shards))
    classes, places = _name_classes(labels, class_names, collected.names)
    for number, (part, part_labels) in enumerate(zip(parts, labels, strict=True)):
        part["shard"] = number
        part["label"] = [places[label] for label in part_labels]
    sums = _sum_pixels(folder_uri, entries, parts)
    _publish_index(folder_uri, parts)
    mean, std = channel_statistics(sums) if sums.pixels else (None, None)
    made_from = {
        "shards": fingerprint([[entry.name, entry.bytes, entry.crc32c, entry.split] for entry in entries]),
        "classes": fingerprint(classes),
    }
    tally = collected.counter.total()
    manifest = ShardManifest(
        fingerprint=combine(made_from),
        made_from=made_from,
        format=shards[0].format,
        seed=0,
        classes=classes,
        splits=_describe_splits(entries, parts, len(classes)),
        shards=entries,
        index=FileEntry.of(folder_uri, INDEX_NAME),
        rejected=collected.rejected,
        mean=mean,
        std=std,
        verify=verify,
        images=ImageStatistics(
            formats=dict(tally.formats),
            modes=dict(tally.modes),
            width=list(tally.widths) if tally.widths else None,
            height=list(tally.heights) if tally.heights else None,
        ),
        code_version=importlib.metadata.version("shardline"),
    )
    storage.publish(storage.join(folder_uri, MANIFEST_NAME), manifest.to_json())
    return manifest


class _Collected:
    """What the samples of all shards add up to."""

    def __init__(self, verify: str) -> None:
        self._verify = verify
        self.names: dict[int, str] = {}
        """Class names that shards give to numbers."""
        self.rejected: list[Rejected] = []
        self.counter = Counter()

    def add(self, shard_name: str, samples: Iterable[Found]) -> tuple[Index, list[int | str]]:
        """Take in a shard; return its part of the index, without labels, and its labels."""
        rows = []
        labels = []
        for sample in samples:
            try:
                self._look_at(sample.content)
            except UndecodableImage as reason:
                self.rejected.append(Rejected(path=f"{shard_name}/{sample.name}", reason=str(reason)))
                continue
            if isinstance(sample.label, int) and sample.class_name is not None:
                self._learn(sample.label, sample.class_name, shard_name)
            key = hashlib.blake2b(f"{shard_name}/{sample.name}".encode(), digest_size=16).digest()
            crc = int(storage.crc32c(sample.content), 16)
            rows.append((0, 0, sample.offset, len(sample.content), crc, key))
            labels.append(sample.label)
        return np.array(rows, RECORD), labels

    def _look_at(self, content: bytes) -> None:
        if self._verify == "decode":
            image = decode(content)
            height, width, _ = image.pixels.shape
            self.counter.add(image.image_format, image.mode, (), width, height)
        else:
            header = read_header(content)
            self.counter.add(header.image_format, header.mode, (), header.width, header.height)

    def _learn(self, label: int, name: str, where: str) -> None:
        known = self.names.setdefault(label, name)
        if known != name:
            raise DataError(
                f"{where}: label {label} is class {name}, elsewhere it is {known}",
                allowed="one name for each label",
                todo="write the shards again, with one list of classes",
            )


def _scan(folder_uri: str, shard: ForeignShard, collected: _Collected) -> tuple[Index, list[int | str]]:
    """Read a shard from front to back, in the version that was listed."""
    try:
        with storage.open_read(storage.join(folder_uri, shard.name), shard.info.generation) as stream:
            return collected.add(shard.name, _SCANNERS[shard.format](stream, shard.name))
    except FileNotFoundError:
        raise TryAgain(f"{shard.name} vanished or was replaced while it was read; start again") from None


def _describe_shard(folder_uri: str, shard: ForeignShard, *, first: int, samples: int) -> ShardEntry:
    # What the bucket keeps is that of the version that was read.
    crc32c = shard.info.crc32c or storage.crc32c_of(storage.join(folder_uri, shard.name))
    return ShardEntry(
        name=shard.name, bytes=shard.info.size, crc32c=crc32c, split=shard.split, first=first, samples=samples
    )


def _publish_index(folder_uri: str, parts: Sequence[Index]) -> None:
    """Write the index, create-only: two that index the same folder at a time must not mix."""
    place = storage.local_path(folder_uri) if storage.is_local(folder_uri) else Path(tempfile.gettempdir())
    scratch = place / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        write_index(scratch, parts)
        storage.publish_file(scratch, storage.join(folder_uri, INDEX_NAME))
    except storage.AlreadyPublished:
        raise ConfigError(
            f"{storage.display(folder_uri)} has an {INDEX_NAME} of other content, and no {MANIFEST_NAME}",
            allowed=f"a folder of shards without {INDEX_NAME}, or with the one that these shards give",
            todo="delete it, unless another command is writing there",
        ) from None
    finally:
        scratch.unlink(missing_ok=True)


def _sum_pixels(folder_uri: str, entries: Sequence[ShardEntry], parts: Sequence[Index]) -> ChannelSums:
    """Return the sums over training images, drawn as sharding draws them."""
    training = [(entry, part) for entry, part in zip(entries, parts, strict=True) if entry.split == SPLITS[0]]
    share = summed_share(sum(len(part) for _, part in training))
    drawn = [
        (entry, record) for entry, part in training for record in part if is_summed(record["key"].tobytes(), share)
    ]
    sums = ChannelSums()
    wanted = ((storage.join(folder_uri, entry.name), record) for entry, record in drawn)
    for (entry, record), content in zip(drawn, read_payloads(wanted), strict=True):
        try:
            sums += ChannelSums.of(decode(content).pixels)
        except UndecodableImage as reason:
            raise DataError(
                f"{entry.name}, image at {int(record['offset'])}: {reason}",
                allowed="images that decode",
                todo="run it with --decode, which leaves such images out",
            ) from None
    return sums


def _name_classes(
    labels: Iterable[Iterable[int | str]], given: Sequence[str] | None, learned: Mapping[int, str]
) -> tuple[list[str], dict[int | str, int]]:
    """Return the names of the classes, and the place of each label among them."""
    seen = {label for part in labels for label in part}
    texts = [label for label in seen if isinstance(label, str)]
    numbers = sorted(label for label in seen if isinstance(label, int))
    if texts and numbers:
        raise DataError(
            f"labels of mixed types: the number {numbers[0]} and the text {min(texts)!r}",
            allowed="all numbers or all text",
            todo="write the shards again with labels of one type",
        )
    if not seen:
        raise DataError("no usable image in these shards", allowed="shards with images", todo="check their content")
    if given is not None:
        return list(given), _place_labels(seen, given)
    if texts:
        ordered = sort_classes(text.encode("utf-8", "surrogatepass") for text in texts)
        classes = [name.decode("utf-8", "surrogatepass") for name in ordered]
        places: dict[int | str, int] = {name: place for place, name in enumerate(classes)}
        return classes, places
    if numbers[0] < 0 or numbers[-1] >= _MAX_CLASSES:
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise DataError(
            f"the label {wrong} is no place in a list of classes",
            allowed=f"whole numbers from 0 to {_MAX_CLASSES - 1}, or names",
            todo=f"pass --classes FILE with the labels themselves, one per line in the order of the classes "
            f"({len(numbers)} labels: {', '.join(map(str, numbers[:3]))}{', ...' if len(numbers) > 3 else ''})",
        )
    classes = [learned.get(number, str(number)) for number in range(numbers[-1] + 1)]
    return classes, {number: number for number in numbers}


def _place_labels(seen: Set[int | str], given: Sequence[str]) -> dict[int | str, int]:
    """Return the place of each label in --classes: numbers are places, or all of them are lines of it."""
    names = {name: place for place, name in enumerate(given)}
    if all(isinstance(label, int) and 0 <= label < len(given) for label in seen):
        return {label: int(label) for label in seen}
    if all(str(label) in names for label in seen):
        return {label: names[str(label)] for label in seen}
    unknown = [label for label in seen if not (0 <= label < len(given) if isinstance(label, int) else label in names)]
    raise ConfigError(
        f"label {min(map(str, unknown))} is not among the {len(given)} classes of --classes",
        allowed="a name for every label, a line each, in the order of the labels; or the labels themselves",
        todo="correct the file",
    )


def _describe_splits(entries: Sequence[ShardEntry], parts: Sequence[Index], num_classes: int) -> dict[str, SplitEntry]:
    splits = {}
    first = 0
    for split in SPLITS:
        own = [part for entry, part in zip(entries, parts, strict=True) if entry.split == split]
        labels = np.concatenate([part["label"] for part in own] or [np.empty(0, np.int32)])
        splits[split] = SplitEntry(
            first=first,
            samples=len(labels),
            source_bytes=int(sum(part["size"].sum(dtype=np.int64) for part in own)),
            samples_by_class=np.bincount(labels, minlength=num_classes).tolist(),
        )
        first += len(labels)
    return splits
