"""`shardline data index`: index and manifest for shards that others wrote, so that they train as they are.

The shards are never changed. Each image's header is read (or the image decoded), and the pixels of at most 10,000
training images are summed up for their mean. The manifest is written last, and only where there is none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
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
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import combine, fingerprint
from records.decode import UndecodableImage, decode, read_header
from records.foreign_tar import Found, scan_tar
from records.foreign_tfrecord import scan_tfrecord
from records.index import INDEX_NAME, RECORD, Index, read_payload, write_index
from records.statistics import ChannelSums, Counter, channel_statistics, is_summed, summed_share

# Where names of files say their split, and nothing else is asked for.
DEFAULT_PATTERNS = {"train": "train*", "validation": "val*", "test": "test*"}
_SCANNERS = {".tar": scan_tar, ".tfrecord": scan_tfrecord, ".tfrecords": scan_tfrecord}
_FORMATS: dict[str, Literal["webdataset", "tfrecord"]] = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


def parse_patterns(texts: Sequence[str]) -> dict[str, str]:
    """Return the pattern of each split from `NAME=PATTERN`; the default ones when there is none.

    Raises:
        ConfigError: One is of another form, or names no split.
    """
    patterns = {}
    for text in texts:
        name, _, pattern = text.partition("=")
        if name not in SPLITS or not pattern:
            raise ConfigError(
                f"--split {text}", allowed=f"NAME=PATTERN, NAME out of {', '.join(SPLITS)}", todo="correct it"
            )
        patterns[name] = pattern
    return patterns or DEFAULT_PATTERNS


def read_classes(path: Path) -> list[str]:
    """Return the lines of a file of class names.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--classes {path} cannot be read: {error}", allowed="a text file, one name a line", todo="check the path"
        ) from None


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
        class_names: Names of the classes, by label; None: those in the shards, or the numbers.
        verify: How images are checked.
        progress: Called with the number of shards done, and of all.

    Raises:
        ConfigError: There is a manifest, or a file belongs to no split or to several.
        DataError: The folder has no shards, or one is damaged or of another kind.
        StorageError: It is not local.
    """
    folder = storage.local_path(folder_uri)
    if (folder / MANIFEST_NAME).exists():
        raise ConfigError(
            f"{storage.display(folder_uri)} has a {MANIFEST_NAME} already",
            allowed="a folder of shards without one",
            todo="train on it as it is, or delete the manifest to write it again",
        )
    shards = _find_shards(folder, patterns)
    shard_format = _FORMATS[shards[0][1].suffix]
    collected = _Collected(verify)
    labels: list[list[int | str]] = []
    entries: list[ShardEntry] = []
    parts: list[Index] = []
    for done, (split, path) in enumerate(shards):
        progress(done, len(shards))
        part, part_labels = collected.add(path, _SCANNERS[path.suffix](path))
        labels.append(part_labels)
        parts.append(part)
        first = sum(map(len, parts[:-1]))
        entry = FileEntry.of(folder_uri, path.name).model_dump()
        entries.append(ShardEntry(**entry, split=split, first=first, samples=len(part)))
    progress(len(shards), len(shards))
    classes = _name_classes(labels, class_names, collected.names)
    places = {name: place for place, name in enumerate(classes)}
    for number, (part, part_labels) in enumerate(zip(parts, labels, strict=True)):
        part["shard"] = number
        part["label"] = [one if isinstance(one, int) else places[one] for one in part_labels]
    scratch = folder / f"{storage.TEMPORARY_PREFIX}index"
    write_index(scratch, parts)
    # Without a manifest nothing speaks for an index that is there.
    scratch.replace(folder / INDEX_NAME)

    sums = _sum_pixels(folder, entries, parts)
    mean, std = channel_statistics(sums) if sums.pixels else (None, None)
    made_from = {
        "shards": fingerprint([[entry.name, entry.bytes, entry.crc32c, entry.split] for entry in entries]),
        "classes": fingerprint(classes),
    }
    tally = collected.counter.total()
    manifest = ShardManifest(
        fingerprint=combine(made_from),
        made_from=made_from,
        format=shard_format,
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

    def add(self, path: Path, samples: Iterable[Found]) -> tuple[Index, list[int | str]]:
        """Take in a shard; return its part of the index, without labels, and its labels."""
        rows = []
        labels = []
        for sample in samples:
            try:
                self._look_at(sample.content)
            except UndecodableImage as reason:
                self.rejected.append(Rejected(path=f"{path.name}/{sample.name}", reason=str(reason)))
                continue
            if isinstance(sample.label, int) and sample.class_name is not None:
                self._learn(sample.label, sample.class_name, path.name)
            key = hashlib.blake2b(f"{path.name}/{sample.name}".encode(), digest_size=16).digest()
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


def _sum_pixels(folder: Path, entries: Sequence[ShardEntry], parts: Sequence[Index]) -> ChannelSums:
    """Return the sums over training images, drawn as sharding draws them."""
    training = [(entry, part) for entry, part in zip(entries, parts, strict=True) if entry.split == SPLITS[0]]
    share = summed_share(sum(len(part) for _, part in training))
    sums = ChannelSums()
    for entry, part in training:
        for record in part:
            if not is_summed(record["key"].tobytes(), share):
                continue
            try:
                sums += ChannelSums.of(decode(read_payload(folder / entry.name, record)).pixels)
            except UndecodableImage as reason:
                raise DataError(
                    f"{entry.name}, image at {int(record['offset'])}: {reason}",
                    allowed="images that decode",
                    todo="run it with --decode, which leaves such images out",
                ) from None
    return sums


def _find_shards(folder: Path, patterns: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Return (split, file) of every shard, in the order of the index."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _SCANNERS) if folder.is_dir() else []
    if not files:
        raise DataError(
            f"{folder} holds no shards", allowed=f"a folder of {', '.join(_SCANNERS)} files", todo="check the path"
        )
    if len({_FORMATS[path.suffix] for path in files}) > 1:
        raise DataError(f"{folder} holds tars and TFRecords", allowed="shards of one format", todo="separate them")
    found = []
    for path in files:
        splits = [split for split in SPLITS if split in patterns and fnmatchcase(path.name, patterns[split])]
        if len(splits) != 1:
            raise ConfigError(
                f"{path.name} belongs to {' and '.join(splits) or 'no split'}",
                allowed="file names that one pattern fits: " + ", ".join(f"{s}={p}" for s, p in patterns.items()),
                todo="give patterns, e.g. --split 'train=part-0*' --split 'test=part-1*', or rename the file",
            )
        found.append((splits[0], path))
    if all(split != SPLITS[0] for split, _ in found):
        raise ConfigError("no shard is for training", allowed="at least one", todo="give --split train=PATTERN")
    return sorted(found, key=lambda one: (SPLITS.index(one[0]), one[1].name))


def _name_classes(
    labels: Iterable[Iterable[int | str]], given: Sequence[str] | None, learned: Mapping[int, str]
) -> list[str]:
    """Return the names of the classes, by label."""
    seen = {label for part in labels for label in part}
    texts = sorted(label for label in seen if isinstance(label, str))
    numbers = sorted(label for label in seen if isinstance(label, int))
    if texts and numbers:
        raise DataError(
            f"labels of mixed types: the number {numbers[0]} and the text {texts[0]!r}",
            allowed="all numbers or all text",
            todo="write the shards again with labels of one type",
        )
    if not seen:
        raise DataError("no usable image in these shards", allowed="shards with images", todo="check their content")
    if given is not None:
        unknown = [str(one) for one in seen if (one >= len(given) if isinstance(one, int) else one not in given)]
        if unknown:
            raise ConfigError(
                f"label {min(unknown)} is not among the {len(given)} classes of --classes",
                allowed="a name for every label, a line each, in the order of the labels",
                todo="correct the file",
            )
        return list(given)
    return texts or [learned.get(number, str(number)) for number in range(numbers[-1] + 1)]


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
