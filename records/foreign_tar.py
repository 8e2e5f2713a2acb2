"""Reading WebDataset tars that others wrote: which image lies where, and what its label is.

A sample is a run of members with the same name up to the first dot. Its image is the member whose content is one; its
label is in KEY.cls (a number or a name), or in KEY.json as `label` or `class`.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

from contracts.errors import DataError
from records.decode import image_format

# More digits are a name: int() refuses thousands of them.
_NUMBER = re.compile(r"-?[0-9]{1,19}")
# What image_format looks at.
_MAGIC_BYTES = 16


class Found(NamedTuple):
    """One sample of a shard."""

    name: str
    """What tells it apart in its shard."""
    offset: int
    """Of the image bytes in the file."""
    content: bytes
    """The image file."""
    label: int | str
    class_name: str | None
    """Name of the class, where the shard says it besides a number."""


def scan_tar(stream: BinaryIO, name: str) -> Iterator[Found]:
    """Yield the samples of a tar.

    Args:
        stream: The file, seekable; it is read once, from front to back.
        name: Its name, for errors.

    Raises:
        DataError: It is no plain tar, or a sample has no image or no label.
    """
    try:
        # "r:" reads plain tars only: in a compressed one, no image lies anywhere.
        with tarfile.open(name, "r:", stream) as archive:
            members = (member for member in archive if member.isfile())
            for key, group in groupby(members, lambda member: _split_name(member.name)[0]):
                yield _read_sample(name, archive, key, list(group))
    except tarfile.TarError as error:
        raise DataError(
            f"{name} cannot be read as a tar: {error}", allowed="plain tars, not compressed", todo="unpack it once"
        ) from None


def _split_name(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return folder + slash + stem, extension.lower()


def _read_sample(name: str, archive: tarfile.TarFile, key: str, members: list[tarfile.TarInfo]) -> Found:
    label: Any = None
    class_name = None
    image = None
    for member in members:
        extension = _split_name(member.name)[1]
        file = archive.extractfile(member)
        assert file is not None, member.name
        content = file.read()
        if extension == "cls":
            label = _parse_label(content)
        elif extension == "json" and label is None:
            label, class_name = _parse_description(content)
        elif image is None and image_format(content[:_MAGIC_BYTES]) is not None:
            image = member.offset_data, content
    if image is None or label is None:
        raise DataError(
            f"{name}, sample {key}: no {'image' if image is None else 'label'}"
            f" among {', '.join(member.name for member in members)}",
            allowed="an image, and a label in .cls, or in .json as label or class",
            todo="write these shards again, or shard the source with `shardline shard`",
        )
    return Found(key, *image, label, class_name)


def _parse_label(content: bytes) -> int | str | None:
    text = content.decode("utf-8", "replace").strip()
    return int(text) if _NUMBER.fullmatch(text) else text or None


def _parse_description(content: bytes) -> tuple[int | str | None, str | None]:
    try:
        values = json.loads(content)
    except ValueError:
        return None, None
    if not isinstance(values, dict):
        return None, None
    label, name = values.get("label"), values.get("class")
    name = name if isinstance(name, str) else None
    return (label if isinstance(label, int | str) and not isinstance(label, bool) else name), name
