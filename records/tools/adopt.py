"""`shardline data adopt`: indices and a manifest for shards that other programs wrote, so that they train as they are.

The shards are never changed. Every image is decoded as training does it; what does not decode is left out. The manifest
is written last, and only where there is none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    FileEntry,
    Rejected,
    ShardEntry,
    ShardManifest,
    Shards,
    SplitEntry,
)
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError, TryAgain
from contracts.fingerprint import combine, fingerprint
from contracts.process import available_cores
from records import tar, tfrecord
from records.classes import sort_classes
from records.decode import UndecodableImage, decode
from records.index import ROW, Index, pack_index
from records.statistics import ChannelSums, Tally, channel_statistics

# Patterns of file names by split, unless others are given.
DEFAULT_PATTERNS = {"train": "train*", "validation": "val*", "test": "test*"}
# Labels without names are places in a list of classes; larger numbers are hashes or identifiers.
_MAX_CLASSES = 1_000_000
# A stream from a bucket takes up to three chunks of 16 MiB.
_MOST_STREAMS, _MOST_BUCKET_STREAMS = 16, 4
_FORMATS: dict[str, Literal["webdataset", "tfrecord"]] = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_SCANNERS = {"webdataset": tar.scan, "tfrecord": tfrecord.scan}


class _ForeignShard(NamedTuple):
    split: str
    format: Literal["webdataset", "tfrecord"]
    info: storage.ObjectInfo


class _Scan(NamedTuple):
    """What one shard holds."""

    rows: Index
    """Rows of its index, without labels."""
    labels: list[int | str]
    """Label of each row."""
    names: set[tuple[int | str, str]]
    """Labels, and the class names that the shard gives them."""
    rejected: list[Rejected]
    tally: Tally
    sums: ChannelSums


def adopt(
    folder_uri: str,
    *,
    patterns: Mapping[str, str],
    class_names: Sequence[str] | None,
    progress: Callable[[int, int], None],
) -> ShardManifest:
    """Write an index beside each shard of a folder, and the manifest.

    Args:
        folder_uri: Folder with .tar or .tfrecord files.
        patterns: Pattern of the file names of each split.
        class_names: Names of the classes, by label; or, where labels are no places in it, the labels themselves in the
            order of the classes. None: the names in the shards, or the numbers.
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
    shards = _find_shards(folder_uri, patterns)
    scans: list[_Scan] = []
    progress(0, len(shards))
    # Decoders release the interpreter's lock.
    most = _MOST_STREAMS if storage.is_local(folder_uri) else _MOST_BUCKET_STREAMS
    with ThreadPoolExecutor(min(available_cores(), most)) as threads:
        for scan in threads.map(lambda shard: _scan(folder_uri, shard), shards):
            scans.append(scan)
            progress(len(scans), len(shards))
    names: dict[int | str, str] = {}
    for label, name in sorted(set().union(*(scan.names for scan in scans)), key=str):
        if (other := names.setdefault(label, name)) != name:
            raise DataError(
                f"label {label} is class {other} in one sample and {name} in another",
                allowed="one name for each label",
                todo="write the shards again, with one list of classes",
            )
    classes, places = _place_labels({label for scan in scans for label in scan.labels}, class_names, names)
    indices: list[bytes] = []
    entries: list[ShardEntry] = []
    first = 0
    for shard, scan in zip(shards, scans, strict=True):
        scan.rows["label"] = [places[label] for label in scan.labels]
        index = pack_index(scan.rows)
        indices.append(index)
        entries.append(
            ShardEntry(
                name=shard.info.name,
                bytes=shard.info.size,
                # That of the version that was read, where a bucket keeps it.
                crc32c=shard.info.crc32c or storage.crc32c_of(storage.join(folder_uri, shard.info.name)),
                split=shard.split,
                first=first,
                samples=len(scan.rows),
                index=FileEntry(name=index_name(shard.info.name), bytes=len(index), crc32c=storage.crc32c(index)),
            )
        )
        first += len(scan.rows)
    made_from = {
        "shards": fingerprint([[entry.name, entry.bytes, entry.crc32c, entry.split] for entry in entries]),
        "classes": fingerprint(classes),
    }
    sums = sum((scan.sums for scan in scans), ChannelSums())
    mean, std = channel_statistics(sums) if sums.pixels else (None, None)
    manifest = ShardManifest(
        fingerprint=combine(made_from),
        made_from=made_from,
        format=shards[0].format,
        seed=0,
        classes=classes,
        splits=_describe_splits(shards, scans, len(classes)),
        shards=Shards.of(entries),
        rejected=[rejected for scan in scans for rejected in scan.rejected],
        images=sum((scan.tally for scan in scans), Tally()).describe(),
        mean=mean,
        std=std,
        code_version=importlib.metadata.version("shardline"),
    )
    for entry, content in zip(entries, indices, strict=True):
        try:
            storage.publish(entry.index.uri(folder_uri), content)
        except storage.AlreadyPublished:
            raise ConfigError(
                f"{storage.display(folder_uri)} has {entry.index.name} with other content, and no {MANIFEST_NAME}",
                allowed="a folder of shards without indices, or with those that these shards give",
                todo="delete it, unless another command is writing there",
            ) from None
    storage.publish(storage.join(folder_uri, MANIFEST_NAME), manifest.to_json())
    return manifest


def parse_patterns(texts: Sequence[str]) -> dict[str, str]:
    """Return the pattern of each split from `NAME=PATTERN`; the default ones when there is none.

    Raises:
        ConfigError: One is of another form, or names no split.
    """
    patterns = dict(text.partition("=")[::2] for text in texts)
    for name, pattern in patterns.items():
        if name not in SPLITS or not pattern:
            allowed = f"NAME=PATTERN, NAME out of {', '.join(SPLITS)}"
            raise ConfigError(f"--split {name}={pattern}", allowed=allowed, todo="correct it")
    return patterns or DEFAULT_PATTERNS


def read_classes(path: Path) -> list[str]:
    """Return the lines of a file of class names.

    Raises:
        ConfigError: It cannot be read, or a name is empty or there twice.
    """
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"--classes {path} cannot be read: {error}"
        raise ConfigError(problem, allowed="a text file, one name per line", todo="check the path") from None
    for number, name in enumerate(names):
        if not name.strip() or name in names[:number]:
            raise ConfigError(
                f"--classes {path}, line {number + 1}: {name!r}",
                allowed="one name per line, each once",
                todo="correct the line: the classes are numbered by it",
            )
    return names


def _find_shards(folder_uri: str, patterns: Mapping[str, str]) -> list[_ForeignShard]:
    shards = []
    for info in storage.list_objects(folder_uri, recursive=False):
        shard_format = _FORMATS.get(PurePosixPath(info.name).suffix)
        if shard_format is None:
            continue
        splits = [split for split in SPLITS if split in patterns and fnmatchcase(info.name, patterns[split])]
        if len(splits) != 1:
            raise ConfigError(
                f"{info.name} belongs to {' and '.join(splits) or 'no split'}",
                allowed="file names that one pattern fits: " + ", ".join(f"{s}={p}" for s, p in patterns.items()),
                todo="give patterns, e.g. --split 'train=part-0*' --split 'test=part-1*', or rename the file",
            )
        shards.append(_ForeignShard(splits[0], shard_format, info))
    formats = {shard.format for shard in shards}
    if len(formats) != 1:
        raise DataError(
            f"{storage.display(folder_uri)} holds {'tars and TFRecords' if formats else 'no shards'}",
            allowed=f"a folder of {', '.join(_FORMATS)} files of one format",
            todo="check the path, and put shards of each format into a folder of their own",
        )
    if all(shard.split != SPLITS[0] for shard in shards):
        raise ConfigError("no shard is for training", allowed="at least one", todo="give --split train=PATTERN")
    return sorted(shards, key=lambda shard: (SPLITS.index(shard.split), shard.info.name))


def _scan(folder_uri: str, shard: _ForeignShard) -> _Scan:
    """Read one shard and decode its images.

    Raises:
        DataError: It is damaged or of another kind.
        TryAgain: It was replaced since it was listed.
    """
    name, rows = shard.info.name, []
    scan = _Scan(np.empty(0, ROW), [], set(), [], Tally(), ChannelSums())
    sums = ChannelSums()
    try:
        with storage.open_read(storage.join(folder_uri, name), shard.info.generation) as stream:
            for sample in _SCANNERS[shard.format](stream, name):
                path = f"{name}/{sample.name}"
                try:
                    image = decode(sample.image)
                except UndecodableImage as reason:
                    scan.rejected.append(Rejected(path=path, reason=str(reason)))
                    continue
                height, width, _ = image.pixels.shape
                scan.tally.add(image.image_format, image.mode, (), width, height)
                if shard.split == SPLITS[0]:
                    sums += ChannelSums.of(image.pixels)
                scan.labels.append(sample.label)
                if sample.class_name is not None:
                    scan.names.add((sample.label, sample.class_name))
                crc32c = int(storage.crc32c(sample.body), 16)
                key = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).digest()
                content = int.from_bytes(hashlib.blake2b(sample.image, digest_size=8).digest(), "big")
                rows.append((sample.offset, len(sample.body), crc32c, 0, key, 0, content))
    except FileNotFoundError:
        raise TryAgain(f"{name} vanished or was replaced while it was read; start again") from None
    return scan._replace(rows=np.array(rows, ROW), sums=sums)


def _place_labels(
    labels: set[int | str], class_names: Sequence[str] | None, learned: Mapping[int | str, str]
) -> tuple[list[str], dict[int | str, int]]:
    """Return the names of the classes, and the place of each label among them.

    Args:
        labels: All labels.
        class_names: Content of --classes: numbers are places in it, or all labels are lines of it.
        learned: Class names that the shards give to numbers.
    """
    texts = sorted(label for label in labels if isinstance(label, str))
    numbers = sorted(label for label in labels if isinstance(label, int))
    if not labels:
        raise DataError("no usable image in these shards", allowed="shards with images", todo="check their content")
    if texts and numbers:
        raise DataError(
            f"labels of mixed types: the number {numbers[0]} and the text {texts[0]!r}",
            allowed="all numbers or all text",
            todo="write the shards again with labels of one type",
        )
    if class_names is None and texts:
        encoded = sort_classes(text.encode("utf-8", "surrogatepass") for text in texts)
        class_names = [name.decode("utf-8", "surrogatepass") for name in encoded]
    elif class_names is None:
        if not 0 <= numbers[0] <= numbers[-1] < _MAX_CLASSES:
            raise DataError(
                f"the label {numbers[0] if numbers[0] < 0 else numbers[-1]} is no place in a list of classes",
                allowed=f"whole numbers from 0 to {_MAX_CLASSES - 1}, or names",
                todo="pass --classes FILE with the labels themselves, one per line in the order of the classes "
                f"({len(numbers)} labels: {', '.join(map(str, numbers[:3]))}, ...)",
            )
        class_names = [learned.get(number, str(number)) for number in range(numbers[-1] + 1)]
    if numbers and 0 <= numbers[0] <= numbers[-1] < len(class_names):
        return list(class_names), {number: number for number in numbers}
    places = {name: place for place, name in enumerate(class_names)}
    if unknown := [str(label) for label in labels if str(label) not in places]:
        raise ConfigError(
            f"{', '.join(unknown[:10])}: not among the {len(class_names)} classes of --classes",
            allowed="a name for every label, a line each, in the order of the labels; or the labels themselves",
            todo="correct the file",
        )
    return list(class_names), {label: places[str(label)] for label in labels}


def _describe_splits(
    shards: Sequence[_ForeignShard], scans: Sequence[_Scan], num_classes: int
) -> dict[str, SplitEntry]:
    splits = {}
    first = 0
    for split in SPLITS:
        tables = [scan.rows for shard, scan in zip(shards, scans, strict=True) if shard.split == split]
        rows = np.concatenate([np.empty(0, ROW), *tables])
        splits[split] = SplitEntry(
            first=first,
            samples=len(rows),
            source_bytes=int(rows["size"].sum(dtype=np.int64)),
            samples_by_class=np.bincount(rows["label"], minlength=num_classes).tolist(),
        )
        first += len(rows)
    return splits
