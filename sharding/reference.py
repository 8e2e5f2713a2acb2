"""References to the samples of a source, as listed and as shuffled by Beam, and their Parquet files.

A listing is a sequence of Parquet files ("parts"), sorted by path, of `PART_ROWS` references each but the last. Paths
are bytes: file names need not be text. pyarrow is imported lazily: a stage that only reuses its result starts quickly.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from contracts import storage
from contracts.config import SPLITS, SplitFractions

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PART_ROWS = 1 << 15
# Bytes of cells that end a part, which a worker holds in memory.
PART_CELL_BYTES = 32 << 20
# References of a listing in memory as Python objects.
_TABLE_ROWS = 1 << 12
# Paths of ignored files that a listing holds; the others are counted.
MAX_IGNORED = 10_000


class SourceFile(NamedTuple):
    """One listed file of a sample."""

    path: bytes
    """As that of a `Reference`."""
    size: int
    version: int
    """As that of a `Reference`."""
    content_hash: bytes = b""
    is_image: bool = True
    """Whether only the first bytes are read of a large file that is no image."""


class Reference(NamedTuple):
    """One sample of the source. The fields are the columns of a part, in their order."""

    path: bytes
    """Path of its (first image) file: relative to `Listing.uri`, or a URI or an absolute path outside of it; for a row
    without files, `row:` and a hash of its content."""
    key: bytes
    """16 bytes: `make_key(path)`."""
    split: int
    """Index into contracts.config.SPLITS."""
    labels: tuple[int, ...]
    """Indices of its classes in `Listing.classes`, ascending; empty: of no class."""
    size: int
    """Bytes of the file; for a row without files, of `cells`."""
    version: int
    """Modification time in ns, crc32c (sharding.compare=content), or generation of the object."""
    content_hash: bytes = b""
    """`crc32c:HEX` or `md5:HEX` where the listing knows it."""
    source: int = 0
    """64-bit hash of all inputs of the sample (`hash_source`)."""
    cells: bytes = b""
    """JSON object of the other fields of a sample of named fields (sharding/fields.py)."""
    more_bytes: int = 0
    """Bytes of the other files and of `cells`, where there is a file."""

    @property
    def source_bytes(self) -> int:
        """Bytes of all inputs of the sample."""
        return self.size + self.more_bytes


def make_key(path: bytes) -> bytes:
    """Return the key of a sample: a 16-byte hash of its path, independent of the seed."""
    return hashlib.blake2b(path, digest_size=16, person=b"shardline key").digest()


def hash_source(size: int, version: int, content_hash: bytes, class_names: Iterable[bytes], cells: bytes) -> int:
    """Return a 64-bit hash of the inputs of a sample; classes enter by name, since their indices may change."""
    content = b"%d\0%d\0%b\0%b\0%b" % (size, version, content_hash, b"\0".join(sorted(class_names)), cells)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=b"shardline source").digest(), "little")


def part_schema() -> pa.Schema:
    """Return the schema of a part."""
    import pyarrow as pa

    return pa.schema(
        [
            ("path", pa.binary()),
            ("key", pa.binary(16)),
            ("split", pa.uint8()),
            ("labels", pa.list_(pa.int32())),
            ("size", pa.int64()),
            ("version", pa.int64()),
            ("content_hash", pa.binary()),
            ("source", pa.uint64()),
            ("cells", pa.binary()),
            ("more_bytes", pa.int64()),
        ]
    )


def to_table(references: Sequence[Reference]) -> pa.Table:
    """Return references as a table with the columns of `part_schema`."""
    import pyarrow as pa

    columns = zip(*references, strict=True) if references else [()] * len(Reference._fields)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, part_schema(), strict=True)], part_schema()
    )


def to_references(table: pa.Table) -> list[Reference]:
    """Return the references of a table."""
    columns = [column.to_pylist() for column in table.columns]
    labels = Reference._fields.index("labels")
    columns[labels] = list(map(tuple, columns[labels]))
    return [Reference(*row) for row in zip(*columns, strict=True)]


def write_part(path: Path, references: Sequence[Reference] | pa.Table) -> None:
    """Write a part; equal references give equal bytes."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    table = to_table(references) if isinstance(references, Sequence) else references
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)


def read_part(source: Path | bytes) -> Any:
    """Return the table of a part, from its path or its content."""
    import pyarrow as pa
    import pyarrow.parquet

    # read_table would import 30 MB for pyarrow.dataset.
    with pyarrow.parquet.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source) as file:
        return file.read(use_threads=False)


@dataclass
class Listing:
    """All samples of a source. The references are in files ("parts"), with at most one part in memory."""

    uri: str
    """Folder that paths are relative to."""
    classes: tuple[bytes, ...]
    """Names of the classes; a label is an index into it."""
    folder: Path
    """Folder for the parts."""
    fractions: SplitFractions
    """Shares of the splits drawn by hash."""
    multi_label: bool = False
    """Whether samples have lists of labels."""
    splits_given: bool = False
    """Whether the source determines splits, by name or by groups."""
    names_splits: bool = False
    """Whether the source names splits."""
    vocabularies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """Class names of each further field of classes."""
    ignored: list[bytes] = field(default_factory=list)
    """The first `MAX_IGNORED` paths that are ignored; a folder ends with a slash."""
    num_ignored: int = 0
    warnings: list[str] = field(default_factory=list)
    """Warnings: valid, but likely a mistake."""
    sha256: str = ""
    """Hash of path, size, version, labels, further fields and given split of every sample, without ignored files."""
    counts: tuple[list[int], ...] = ()
    """For each split, the number of samples of each class."""
    split_bytes: list[int] = field(default_factory=lambda: [0] * len(SPLITS))
    split_files: list[int] = field(default_factory=lambda: [0] * len(SPLITS))
    """For each split, the number of samples."""
    written: list[Path] = field(default_factory=list)
    """Written parts."""
    packed: list[Any] = field(default_factory=list)
    """Arrow tables of the next part, a fifth of the memory of the references."""
    last: list[Reference] = field(default_factory=list)
    """References of the next part after `packed`."""
    cell_bytes: int = 0
    """Bytes of the cells in the next part."""

    @property
    def num_files(self) -> int:
        """Number of samples."""
        return sum(self.split_files)

    @property
    def total_bytes(self) -> int:
        """Bytes of all inputs of the samples."""
        return sum(self.split_bytes)

    def __post_init__(self) -> None:
        """Start to count."""
        self.counts = self.counts or tuple([0] * len(self.classes) for _ in SPLITS)

    def ignore(self, path: bytes) -> None:
        """Record a path that is ignored."""
        self.num_ignored += 1
        if self.num_ignored <= MAX_IGNORED:
            self.ignored.append(path)

    def add(self, reference: Reference) -> None:
        """Append a reference, and count it."""
        self.split_files[reference.split] += 1
        self.split_bytes[reference.split] += reference.source_bytes
        for label in reference.labels:
            self.counts[reference.split][label] += 1
        if self.cell_bytes >= PART_CELL_BYTES or len(self.packed) * _TABLE_ROWS + len(self.last) == PART_ROWS:
            self.parts()
        elif len(self.last) == _TABLE_ROWS:
            self.packed.append(to_table(self.last))
            self.last = []
        self.last.append(reference)
        self.cell_bytes += len(reference.cells)

    def parts(self) -> list[Path]:
        """Write the last part and return the paths of all parts."""
        if self.packed or self.last:
            import pyarrow as pa

            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"references-{len(self.written):05d}.parquet"
            write_part(path, pa.concat_tables([*self.packed, to_table(self.last)]))
            self.written.append(path)
            self.packed, self.last, self.cell_bytes = [], [], 0
        return self.written

    def tables(self) -> Iterator[pa.Table]:
        """Yield the table of each part."""
        return map(read_part, self.parts())

    def references(self) -> Iterator[Reference]:
        """Yield all references in the order of their paths, one part in memory; writes nothing."""
        for table in itertools.chain(map(read_part, self.written), self.packed):
            yield from to_references(table)
        yield from self.last


def remote_uri(source_uri: str, path: bytes) -> str | None:
    """Return the URI of an object, None for a local file."""
    if path.startswith(b"gs://"):
        return path.decode()
    return None if storage.is_local(source_uri) else storage.join(source_uri, path.decode())


def absolute_path(source_uri: str, path: bytes) -> bytes:
    """Return the path of a local file of the source, in bytes."""
    return os.path.join(_folder(source_uri), path)  # noqa: PTH118


@functools.cache
def _folder(source_uri: str) -> bytes:
    return os.fsencode(storage.local_path(source_uri))
