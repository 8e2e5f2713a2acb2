"""WebDataset shards: tar files whose members KEY.<ext>, KEY.cls and KEY.json follow each other, sample by sample.

With named fields the first image is KEY.<ext>, a further one KEY.<field>.<ext>, bytes KEY.<field>.bin and text
KEY.<field>.txt. All others are below "fields" in KEY.json, a class as its index and its name. The first field of kind
class is KEY.cls too.

Time, owner and mode of the members are fixed, so equal samples are equal bytes. KEY is hexadecimal: it holds no dot,
which would begin the extension, and nothing that DALI's index splits on. The original path is in KEY.json. Headers are
POSIX.1-1988 ustar: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import functools
import json
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO

from contracts.errors import DataError
from records.decode import image_format
from records.sample import MAX_SAMPLE_BYTES, ForeignSample, Framed, Sample

SUFFIX = ".tar"
END = bytes(2 * tarfile.BLOCKSIZE)
"""The two empty blocks that end a tar file."""

# Extensions by which WebDataset and DALI choose a decoder; other formats are their own extension.
_EXTENSIONS = {"jpeg": "jpg", "tiff": "tif"}
_NO_IMAGES = ("cls", "json", "txt")
_KIND_ORDER = {"image": 0, "bytes": 1, "text": 2}
# The first bytes of a file are enough for image_format.
_MAGIC_BYTES = 16
_SUM_AT = 148
# Longer runs of digits are names, since int() refuses thousands of digits.
_NUMBER = re.compile(r"-?[0-9]{1,19}")


def frame(sample: Sample) -> Framed:
    """Return the members of a sample, padding included."""
    key = sample.key.hex()
    parts = []
    for extension, content in _list_fields(sample) if sample.values else _list_image(sample):
        parts += [_make_header(key, extension, len(content)), content, bytes(-len(content) % tarfile.BLOCKSIZE)]
    return Framed(b"", b"".join(parts), b"")


def _make_header(key: str, extension: str, size: int) -> bytes:
    name = f"{key}.{extension}".encode()
    tail, unnamed_sum = _header_after_name(len(name), size)
    # The checksum is the sum of all bytes.
    return name + tail[: _SUM_AT - len(name)] + b"%06o\0 " % (unnamed_sum + sum(name)) + tail[_SUM_AT + 8 - len(name) :]


@functools.lru_cache(4096)
def _header_after_name(name_bytes: int, size: int) -> tuple[bytes, int]:
    """Return the header after a name of `name_bytes` bytes, and its checksum without the name; it takes 30 µs."""
    member = tarfile.TarInfo("0" * name_bytes)
    member.size = size
    header = member.tobuf(tarfile.USTAR_FORMAT)
    return header[name_bytes:], int(header[_SUM_AT : _SUM_AT + 6], 8) - name_bytes * ord("0")


def members(body: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield extension, begin and end of each file among the members of a sample.

    Raises:
        ValueError: A header is damaged, or the sample ends within a member.
    """
    at = 0
    while at < len(body):
        # tarfile takes 20 times as long.
        name = body[at : at + 100].partition(b"\0")[0]
        size = int(body[at + 124 : at + 136].strip(b" \0"), 8)
        is_file = body[at + 156 : at + 157] in (b"0", b"\0")
        at += tarfile.BLOCKSIZE
        if not 0 <= size <= len(body) - at:
            raise ValueError("it ends within a member")
        if is_file:
            yield _split_name(name.decode("utf-8", "replace"))[1], at, at + size
        at += size + -size % tarfile.BLOCKSIZE


def find_image(body: bytes) -> bytes | None:
    """Return the first image file among the members of a sample; raises as `members`."""
    for extension, begin, end in members(body):
        if not extension.endswith(_NO_IMAGES) and image_format(body[begin : min(end, begin + _MAGIC_BYTES)]):
            return body[begin:end]
    return None


def scan(stream: BinaryIO, name: str) -> Iterator[ForeignSample]:
    """Yield the samples of a tar of another program, in one sequential pass.

    A sample is a run of members whose names are the same up to the first dot. Its label is in KEY.cls, a number or a
    name, or in KEY.json as `label` or `class`.

    Args:
        stream: The file.
        name: Its name, for errors.

    Raises:
        DataError: It is no plain tar, or a sample has no image or no label, or has 2 GiB or more.
    """
    recorder = _Recorder(stream)
    try:
        with tarfile.open(name, "r|", recorder) as archive:  # type: ignore[call-overload]
            files = (member for member in archive if member.isfile())
            for key, group in groupby(files, lambda member: _split_name(member.name)[0]):
                parts = []
                for member in group:
                    parts.append(member)
                    if member.offset_data + member.size - parts[0].offset > MAX_SAMPLE_BYTES:
                        raise _unusable(name, key, parts, "2 GiB or more")
                # Else tarfile's list of members grows with the file.
                archive.members.clear()
                end = parts[-1].offset_data + parts[-1].size
                yield _read_foreign(name, key, parts, recorder.take(parts[0].offset, end + -end % tarfile.BLOCKSIZE))
            # tarfile treats a damaged header as the end.
            if any(recorder.take(archive.offset, archive.offset + tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"the header at {archive.offset} is damaged")
    except tarfile.TarError as error:
        raise DataError(
            f"{name} cannot be read as a tar: {error}", allowed="plain tars, not compressed", todo="unpack it once"
        ) from None


class _Recorder:
    """Wraps a stream that is read sequentially, and buffers the bytes until they are taken."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._kept, self._first = stream, bytearray(), 0

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._kept += content
        return content

    def take(self, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer where the stream ends before; all bytes before `end` are dropped."""
        content = bytes(self._kept[begin - self._first : end - self._first])
        del self._kept[: end - self._first]
        self._first = end
        return content


def _read_foreign(name: str, key: str, parts: list[tarfile.TarInfo], body: bytes) -> ForeignSample:
    label: Any = None
    class_name = None
    first = parts[0].offset
    for member in parts:
        extension = _split_name(member.name)[1]
        content = body[member.offset_data - first :][: member.size] if extension in ("cls", "json") else b""
        if extension == "cls":
            text = content.decode("utf-8", "replace").strip()
            label = int(text) if _NUMBER.fullmatch(text) else text or None
        elif extension == "json" and label is None:
            label, class_name = _parse_description(content)
    names = [member.name for member in parts]
    if len(set(names)) < len(names):
        raise _unusable(name, key, parts, "a member twice")
    try:
        image = find_image(body)
    except ValueError as error:
        raise _unusable(name, key, parts, str(error)) from None
    if image is None or label is None:
        raise _unusable(name, key, parts, "no image" if image is None else "no label")
    return ForeignSample(key, first, body, image, label, class_name)


def _parse_description(content: bytes) -> tuple[int | str | None, str | None]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(values, dict):
        return None, None
    label, name = values.get("label"), values.get("class")
    name = name if isinstance(name, str) else None
    return (label if isinstance(label, int | str) and not isinstance(label, bool) else name), name


def _unusable(name: str, key: str, parts: list[tarfile.TarInfo], reason: str) -> DataError:
    return DataError(
        f"{name}, sample {key}: {reason} among {', '.join(member.name for member in parts)}",
        allowed="an image, and a label in .cls, or in .json as label or class; less than 2 GiB",
        todo="write these shards again, or shard the source with `shardline shard`",
    )


def _split_name(name: str) -> tuple[str, str]:
    """Return key and extension of a member: what is before and after the first dot of its file name."""
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return folder + slash + stem, extension.lower()


def _list_image(sample: Sample) -> list[tuple[str, bytes]]:
    image = (_EXTENSIONS.get(sample.image_format, sample.image_format), sample.content)
    if sample.labels is not None:
        # .cls is one number in WebDataset: several labels are in the JSON member only.
        return [image, _describe(sample, {"labels": list(sample.labels), "classes": list(sample.class_names)})]
    description = _describe(sample, {"label": sample.label, "class": sample.class_name})
    return [image, ("cls", b"%d" % sample.label), description]


def _list_fields(sample: Sample) -> list[tuple[str, bytes]]:
    """Return extension and content of the members of named fields: images, bytes, text, label, description."""
    files: list[tuple[str, bytes]] = []
    labels: list[tuple[str, bytes]] = []
    fields: dict[str, object] = {}
    for name, kind, value, kind_of_image in sorted(sample.values, key=lambda one: _KIND_ORDER.get(one.kind, 3)):
        if kind == "image":
            extension = _EXTENSIONS.get(kind_of_image, kind_of_image)
            files.append((f"{name}.{extension}" if files else extension, value))
        elif kind == "bytes":
            files.append((f"{name}.bin", value))
        elif kind == "text":
            files.append((f"{name}.txt", value.encode()))
        elif kind in ("class", "classes"):
            fields[name] = {"index": value[0], "name": value[1]}
            if kind == "class" and not labels:
                labels.append(("cls", b"%d" % value[0]))
        else:
            fields[name] = value
    return [*files, *labels, _describe(sample, {"fields": fields})]


def _describe(sample: Sample, more: dict[str, object]) -> tuple[str, bytes]:
    """Return the JSON member of a sample: its path, the size of its image, and more."""
    size = {"width": sample.width, "height": sample.height, "mode": sample.mode} if sample.width else {}
    return "json", json.dumps({"path": sample.path, **size, **more}, allow_nan=False).encode()
