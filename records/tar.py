"""WebDataset shards: tar files whose members KEY.<ext>, KEY.cls and KEY.json follow each other, sample by sample.

With named fields: the first image is KEY.<ext>, a further one KEY.<field>.<ext>, bytes KEY.<field>.bin, text
KEY.<field>.txt; all others are below "fields" in KEY.json, a class as its index and its name. The first field of kind
class is KEY.cls too.

Headers are packed by hand from one prepared block, since tarfile builds each in dozens of calls. Time, owner and mode
of the members are fixed, so equal samples are equal bytes. The key is hexadecimal: it holds no dot (which WebDataset
would take for the start of the extension) and nothing that DALI's index would split on; the original path is in the
JSON member. Layout: POSIX.1-1988 ustar, https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import json

from records.sample import ChecksumStream, Piece, Place, Sample

BLOCK_BYTES = 512
SUFFIX = ".tar"
# Extensions that WebDataset's and DALI's decoders go by; what is not here is its own extension.
EXTENSIONS = {"jpeg": "jpg", "tiff": "tif"}
# The size field holds eleven octal digits.
MAX_MEMBER_BYTES = 8**11 - 1

_NAME_BYTES = 100


def _prepare_header() -> bytes:
    """Return a header block without name, size and checksum (whose place holds blanks, as its sum demands)."""
    fields = (
        (b"", _NAME_BYTES),  # name
        (b"0000644\0", 8),  # mode
        (b"0000000\0", 8),  # uid
        (b"0000000\0", 8),  # gid
        (b"", 12),  # size
        (b"00000000000\0", 12),  # mtime
        (b" " * 8, 8),  # checksum
        (b"0", 1),  # type: a regular file
        (b"", 100),  # link name
        (b"ustar\0", 6),
        (b"00", 2),  # version
    )
    return b"".join(value.ljust(width, b"\0") for value, width in fields).ljust(BLOCK_BYTES, b"\0")


_TEMPLATE = _prepare_header()
_TEMPLATE_SUM = sum(_TEMPLATE)
_SIZE_AT = 124
_CHECKSUM_AT = 148


def pack_header(name: bytes, size: int) -> bytes:
    """Return the 512-byte header of a member; `name` is ASCII and shorter than 100 bytes, `size` is in bytes."""
    assert len(name) < _NAME_BYTES and size <= MAX_MEMBER_BYTES, (name, size)
    size_field = b"%011o" % size
    # The checksum is the sum of all bytes; the template's share of it is known.
    checksum = _TEMPLATE_SUM + sum(name) + sum(size_field)
    return b"".join(
        (
            name,
            _TEMPLATE[len(name) : _SIZE_AT],
            size_field,
            _TEMPLATE[_SIZE_AT + 11 : _CHECKSUM_AT],
            b"%06o\0 " % checksum,
            _TEMPLATE[_CHECKSUM_AT + 8 :],
        )
    )


class TarWriter:
    """Writes samples as members of a tar file.

    Args:
        stream: Receives the bytes, from the start of the shard on.
    """

    def __init__(self, stream: ChecksumStream) -> None:
        self._stream = stream

    def write(self, sample: Sample) -> Place:
        """Append the members of a sample; return where they are, headers and padding included."""
        if sample.values:
            return self._write_fields(sample)
        key = sample.key.hex()
        extension = EXTENSIONS.get(sample.image_format, sample.image_format)
        offset = self._stream.position
        header = pack_header(f"{key}.{extension}".encode("ascii"), len(sample.content))
        small = [bytes(-len(sample.content) % BLOCK_BYTES)]
        for name, text in _describe(sample):
            small += (pack_header(f"{key}.{name}".encode("ascii"), len(text)), text, bytes(-len(text) % BLOCK_BYTES))
        # One call for a sample: the calls would cost more than what is small.
        piece = Piece.of(header, sample.content, b"".join(small))
        self._stream.write(piece)
        return Place(offset, piece.size, piece.crc32c)

    def _write_fields(self, sample: Sample) -> Place:
        key = sample.key.hex()
        offset = self._stream.position
        parts = []
        for name, content in _list_members(sample):
            header = pack_header(f"{key}.{name}".encode("ascii"), len(content))
            parts += [header, content, bytes(-len(content) % BLOCK_BYTES)]
        piece = Piece.of(*parts)
        self._stream.write(piece)
        return Place(offset, piece.size, piece.crc32c)

    def close(self) -> None:
        """Write the two empty blocks that end a tar file."""
        self._stream.write(Piece.of(bytes(2 * BLOCK_BYTES)))


def _list_members(sample: Sample) -> list[tuple[str, bytes]]:
    """Return extension and content of the members of a sample of named fields, first that of the file that names it."""
    images: list[tuple[str, bytes]] = []
    files: list[tuple[str, bytes]] = []
    texts: list[tuple[str, bytes]] = []
    labels: list[tuple[str, bytes]] = []
    described: dict[str, object] = {}
    for name, kind, value, image_format in sample.values:
        if kind == "image":
            extension = EXTENSIONS.get(image_format, image_format)
            images.append((f"{name}.{extension}" if images else extension, value))
        elif kind == "bytes":
            files.append((f"{name}.bin", value))
        elif kind == "text":
            texts.append((f"{name}.txt", value.encode()))
        elif kind in ("class", "classes"):
            described[name] = {"index": value[0], "name": value[1]}
            if kind == "class" and not labels:
                labels.append(("cls", str(value[0]).encode()))
        else:
            described[name] = value
    description: dict[str, object] = {"path": sample.path}
    if sample.width:
        description |= {"width": sample.width, "height": sample.height, "mode": sample.mode}
    described_json = json.dumps({**description, "fields": described}, ensure_ascii=True, allow_nan=False)
    return [*images, *files, *texts, *labels, ("json", described_json.encode())]


def _describe(sample: Sample) -> list[tuple[str, bytes]]:
    """Return extension and content of the members that follow the image."""
    description: dict[str, object] = {"path": sample.path}
    if sample.width:
        description |= {"width": sample.width, "height": sample.height, "mode": sample.mode}
    if sample.labels is None:
        description |= {"label": sample.label, "class": sample.class_name}
    else:
        description |= {"labels": list(sample.labels), "classes": list(sample.class_names)}
    members = [("json", json.dumps(description, ensure_ascii=True).encode())]
    # Decoders take .cls for one number: a list of labels is in the JSON member only.
    return members if sample.labels is not None else [("cls", str(sample.label).encode()), *members]
