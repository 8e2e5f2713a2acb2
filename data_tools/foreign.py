"""The files of a folder of foreign shards: which are shards, of which format, and of which split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from contracts import storage
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError

# Where names of files say their split, and nothing else is asked for.
DEFAULT_PATTERNS = {"train": "train*", "validation": "val*", "test": "test*"}
_FORMATS: dict[str, Literal["webdataset", "tfrecord"]] = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


class ForeignShard(NamedTuple):
    """A shard that others wrote."""

    split: str
    info: storage.ObjectInfo
    format: Literal["webdataset", "tfrecord"]

    @property
    def name(self) -> str:
        """Name of its file."""
        return self.info.name


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


def find_shards(folder_uri: str, patterns: Mapping[str, str]) -> list[ForeignShard]:
    """Return every shard directly in a folder, in the order of the index.

    Args:
        folder_uri: Folder with .tar or .tfrecord files.
        patterns: Pattern of the file names of each split.

    Raises:
        ConfigError: A file belongs to no split or to several, or none is for training.
        DataError: There are no shards, or of two formats.
    """
    shown = storage.display(folder_uri)
    listed = (info for info in storage.list_objects(folder_uri) if "/" not in info.name)
    files = [(info, _FORMATS.get(PurePosixPath(info.name).suffix)) for info in listed]
    found = []
    for info, shard_format in files:
        if shard_format is None:
            continue
        splits = [split for split in SPLITS if split in patterns and fnmatchcase(info.name, patterns[split])]
        if len(splits) != 1:
            raise ConfigError(
                f"{info.name} belongs to {' and '.join(splits) or 'no split'}",
                allowed="file names that one pattern fits: " + ", ".join(f"{s}={p}" for s, p in patterns.items()),
                todo="give patterns, e.g. --split 'train=part-0*' --split 'test=part-1*', or rename the file",
            )
        found.append(ForeignShard(splits[0], info, shard_format))
    if not found:
        raise DataError(
            f"{shown} holds no shards", allowed=f"a folder of {', '.join(_FORMATS)} files", todo="check the path"
        )
    if len({shard.format for shard in found}) > 1:
        raise DataError(f"{shown} holds tars and TFRecords", allowed="shards of one format", todo="separate them")
    if all(shard.split != SPLITS[0] for shard in found):
        raise ConfigError("no shard is for training", allowed="at least one", todo="give --split train=PATTERN")
    return sorted(found, key=lambda shard: (SPLITS.index(shard.split), shard.name))
