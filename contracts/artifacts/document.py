"""The documents that pass between stages, and the rule that makes them trustworthy.

A document is the commit: data first, the manifest last and create-only. What has no manifest does not exist. Each
document carries a format version, the hashes of what it was made from, and size and crc32c of the files it speaks for.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from contracts import storage
from contracts.errors import DataError

MANIFEST_NAME = "manifest.json"
# From so many files in one folder of a bucket they are compared by a listing: a page of it tells of 1,000 objects.
_MANY_FILES = 20
_TODO = "pass the URI of the folder that the earlier stage printed"


class OtherVersion(DataError):
    """A document of another format version than this one."""


class Document(BaseModel):
    """Base of the models in a document: frozen and strict."""

    # Built when first used: a command uses few of them. pydantic does it under a lock since 2.14.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def _check_relative(name: str) -> str:
    """Refuse a name that is no path of a file below a folder: names become paths, and documents come from anywhere."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no path below the folder of the document")
    return name


FileName = Annotated[str, AfterValidator(_check_relative)]
Crc32c = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
SiblingName = Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]


class FileEntry(Document):
    """A file that a document speaks for."""

    name: FileName
    """Path relative to the folder that holds it."""
    bytes: NonNegativeInt
    """Size in bytes."""
    crc32c: Crc32c
    """crc32c of the content, eight hex digits."""
    folder: SiblingName = ""
    """Name of the sibling folder that holds the file, where an earlier one wrote it; empty: the document's own."""

    def uri(self, folder_uri: str) -> str:
        """Return where the file is.

        Args:
            folder_uri: Folder of the document.
        """
        if self.folder:
            folder_uri = storage.join(folder_uri.rstrip("/").rpartition("/")[0], self.folder)
        return storage.join(folder_uri, *self.name.split("/"))

    @property
    def relative_path(self) -> str:
        """Path of the file, seen from the document's folder: how other programs and messages name it."""
        return f"../{self.folder}/{self.name}" if self.folder else self.name

    @classmethod
    def of(cls, folder_uri: str, name: str) -> FileEntry:
        """Describe the file `name` below `folder_uri`; on a disk it is read once for its crc32c."""
        uri = storage.join(folder_uri, *name.split("/"))
        metadata = storage.info(uri)
        return cls(name=name, bytes=metadata.size, crc32c=metadata.crc32c or storage.crc32c_of(uri))


class Contract(Document):
    """Base of the documents that stages leave."""

    FORMAT_VERSION: ClassVar[int] = 1

    kind: str
    format_version: int = 1
    fingerprint: str
    """Hash of the configuration fields and inputs that decide the content; also the name of the folder."""
    made_from: dict[str, str] = {}
    """Hashes of what went into the fingerprint, by name: enough to see which input differs."""

    def to_json(self) -> bytes:
        """Return the document as JSON with sorted keys: equal documents are equal bytes."""
        # Raises for NaN, which is no JSON.
        return (json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    def owned_files(self) -> list[FileEntry]:
        """Return all files of the document's output."""
        return []

    def inconsistency(self) -> str | None:
        """Return the inconsistency of the document, or None; its files are not checked."""
        return None

    @property
    def sha256(self) -> str:
        """Hash of the document's bytes."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @classmethod
    def parse(cls, content: bytes, *, where: str) -> Self:
        """Read a document.

        Raises:
            DataError: It is no such document, or one of another format version.
        """
        try:
            values = json.loads(content)
        except ValueError:
            expected = cls.model_fields["kind"].default
            raise DataError(f"{where} is not JSON", allowed=f"a document of kind {expected}", todo=_TODO) from None
        return cls.of_values(values, where=where)

    @classmethod
    def of_values(cls, values: object, *, where: str) -> Self:
        """Return the document of parsed JSON; raises as `parse`."""
        expected, todo = cls.model_fields["kind"].default, _TODO
        if not isinstance(values, dict) or values.get("kind") != expected:
            kind = values.get("kind") if isinstance(values, dict) else type(values).__name__
            raise DataError(f"{where} is a {kind!r} document", allowed=f"a document of kind {expected}", todo=todo)
        version = values.get("format_version")
        if version != cls.FORMAT_VERSION:
            raise OtherVersion(
                f"{where} has format version {version}",
                allowed=f"version {cls.FORMAT_VERSION}",
                todo="use the version of shardline that wrote it, or run the stage that writes it again with --fresh",
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            finding = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in finding["loc"])
            raise DataError(
                f"{where} is damaged at {place}: {finding['msg']}", allowed=f"a document of kind {expected}", todo=todo
            ) from None

    @classmethod
    def load(cls, folder_uri: str) -> Self:
        """Read the manifest of a folder (or the document itself, when its own URI is given).

        Raises:
            DataError: There is no such document.
        """
        uri = folder_uri if folder_uri.endswith(".json") else storage.join(folder_uri, MANIFEST_NAME)
        try:
            content = storage.read_bytes(uri)
        except (FileNotFoundError, NotADirectoryError):
            expected = cls.model_fields["kind"].default
            raise DataError(
                f"{storage.display(folder_uri)} holds no {MANIFEST_NAME}: nothing finished there",
                allowed=f"the URI of a finished {expected} folder",
                todo="run the stage that writes it, or check the URI",
            ) from None
        return cls.parse(content, where=storage.display(uri))


def find_damage(
    folder_uri: str,
    files: Iterable[FileEntry],
    *,
    checksums: bool = True,
    read: bool = False,
    on_piece: Callable[[], object] = lambda: None,
) -> str | None:
    """Compare files with their entries; return the first damage, or None.

    Args:
        folder_uri: Folder of the document.
        files: Entries of the files.
        checksums: Compare checksums, not only sizes.
        read: In a bucket, read the bytes instead of using the stored checksum.
        on_piece: Called after each piece of a file that is read.
    """
    entries = [(entry.uri(folder_uri), entry) for entry in files]
    listed = _list_many([uri for uri, _ in entries])
    for uri, entry in entries:
        try:
            metadata = listed[uri] if uri in listed else storage.info(uri)
        except (FileNotFoundError, NotADirectoryError):
            metadata = None
        if metadata is None:
            return f"{entry.relative_path} is missing"
        if metadata.size != entry.bytes:
            return f"{entry.relative_path} has {metadata.size} bytes, its manifest says {entry.bytes}"
        if checksums:
            crc32c = None if read else metadata.crc32c
            crc32c = crc32c or storage.crc32c_of(uri, read=True, on_piece=on_piece)
            if crc32c != entry.crc32c:
                return f"{entry.relative_path} has crc32c {crc32c}, its manifest says {entry.crc32c}"
    return None


def _list_many(uris: Sequence[str]) -> dict[str, storage.ObjectInfo | None]:
    """Return the metadata of objects in folders of a bucket that have many of them, by one listing per folder.

    A missing object is None. Local files are not included, since a local listing needs a call per file too.
    """
    remote = [uri for uri in uris if not storage.is_local(uri)]
    by_folder = Counter(uri.rpartition("/")[0] for uri in remote)
    folders = {folder for folder, count in by_folder.items() if count >= _MANY_FILES}
    listed: dict[str, storage.ObjectInfo | None] = {uri: None for uri in remote if uri.rpartition("/")[0] in folders}
    for folder in sorted(folders):
        for entry in storage.list_objects(folder, recursive=False):
            uri = f"{folder}/{entry.name}"
            if uri in listed:
                listed[uri] = entry
    return listed
