"""Class folders in a bucket: gs://BUCKET/PREFIX/CLASS/.../OBJECT, known from the listing without reading a byte."""

from __future__ import annotations

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from sharding.limits import encode_name
from sharding.sources.folders import ALLOWED
from sharding.sources.names import is_ignored
from sharding.sources.reference import Listing, Reference
from sharding.sources.splitting import Splitter, make_group_finder


def list_bucket(section: ShardingSection, uri: str) -> Listing:
    """List the images below class folders of a bucket.

    Args:
        section: Decides about splits.
        uri: A gs:// folder.

    Raises:
        ConfigError: `sharding.group_by` is no pattern.
        DataError: It is empty, or has fewer than two classes.
        StorageError: The bucket does not exist, or may not be listed.
    """
    shown = f"sharding.source {uri}"
    find_group = make_group_finder(section.group_by) if section.group_by else None
    found: dict[bytes, list[tuple[bytes, storage.ObjectInfo]]] = {}
    ignored = []
    for entry in storage.list_objects(uri):
        path = entry.name.encode()
        folder, slash, _ = path.partition(b"/")
        if path.endswith(b"/"):
            # A folder that some tool has made; it has no content.
            continue
        if not slash or any(is_ignored(name) for name in path.split(b"/")):
            ignored.append(path)
        else:
            found.setdefault(folder, []).append((path, entry))
    if not found and not ignored:
        raise DataError(f"{shown} holds no object", allowed=ALLOWED, todo="check the bucket and the path")
    classes = sorted(found)
    if len(classes) < 2:
        names = ", ".join(encode_name(name) for name in classes)
        raise DataError(
            f"{shown} holds {f'a single class ({names})' if classes else 'no class folder'}",
            allowed=ALLOWED + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )
    splitter = Splitter(section.splits)
    references = []
    for label, name in enumerate(classes):
        for path, entry in found[name]:
            split = splitter.choose(path, find_group(path) if find_group else None, None)
            references.append(Reference(path, label, split, entry.size, entry.generation or 0, hash_of(entry)))
    references.sort()
    return Listing(uri, tuple(classes), tuple(references), tuple(sorted(ignored)))


def hash_of(entry: storage.ObjectInfo) -> bytes:
    """Return what the listing knows of the content: md5 where there is one, since crc32c alone collides."""
    if entry.md5:
        return f"md5:{entry.md5}".encode()
    return f"crc32c:{entry.crc32c}".encode() if entry.crc32c else b""
