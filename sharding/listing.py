"""The listing of a source: its samples in the order of their paths, as Parquet files ("parts") and their hash.

    a folder                  class folders (layout.py), on this machine or in a bucket (folders.py)
    .csv, .jsonl, .parquet    a manifest (manifests.py, tables.py), or a folder of its parts

Threads list several class folders ahead; at most some thousand files of each, and one part, are in memory. No image is
read, except with sharding.compare=content. `list_source` is the entry point.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from contracts import storage
from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from records.classes import sort_classes
from sharding.file_versions import FileVersions
from sharding.folders import BucketFolders, LocalFolders
from sharding.layout import ALLOWED, ClassFolder, check_class_folders, find_layout
from sharding.limits import check_training_classes, check_training_samples
from sharding.listing_warnings import describe_drawn, describe_listing, describe_outside
from sharding.manifests import list_manifest
from sharding.names import is_ignored
from sharding.reference import Listing, Reference, SourceFile, hash_source, make_key
from sharding.splits import Splitter, check_exact, make_group_finder, split_exactly
from sharding.tables import SUFFIXES, check_has_columns, find_parts

_ALLOWED = f"{ALLOWED}; or a manifest ({', '.join(SUFFIXES)}), or a folder of its parts"
# Class folders that are listed concurrently: at 0.15 s per page of 1,000 objects, eight keep one core busy. Files of
# each that are listed ahead.
_THREADS, _FILES_AHEAD = 8, 2048


def list_source(section: ShardingSection, folder: Path) -> Listing:
    """List the samples of `sharding.source`.

    Args:
        section: The source, and how its samples are split.
        folder: An empty local folder for the parts, which the caller deletes.

    Raises:
        ConfigError: No source is set, or `sharding.group_by` or `sharding.stratify` does not fit it.
        DataError: The source is missing, unreadable, empty, has fewer than two classes, a class has no image in the
            training split (unless it is sharded in increments), or a manifest is invalid.
        StorageError: The scheme of its URI is not supported.
        TryAgain: The source changed while it was listed.
    """
    if not section.source.strip():
        raise ConfigError(
            "sharding.source is not set",
            allowed=_ALLOWED,
            todo="set sharding.source to the folder of your images, or to a manifest",
        )
    uri = storage.normalise(section.source)
    shown = f"sharding.source {storage.display(uri)}"
    if not storage.exists(uri):
        raise DataError(
            f"{shown} does not exist",
            allowed=_ALLOWED,
            todo="check the path: one without / at its start is below the folder that the command runs in",
        )
    versions = FileVersions(section, uri)
    folders = LocalFolders(uri, versions) if storage.is_local(uri) else BucketFolders(uri)
    names = functools.cache(folders.names)
    is_folder = not storage.is_local(uri) or storage.local_path(uri).is_dir()
    top = names(b"") if is_folder else []
    parts = find_parts(uri, top)
    if not parts:
        check_has_columns(section, uri)
    if parts or (uri.lower().endswith(SUFFIXES) and not top):
        listing, references = list_manifest(section, uri, parts, versions, folder)
    elif is_folder:
        listing, references = _list_folders(section, uri, folders, names, folder)
    else:
        raise DataError(
            f"{shown} is a file, but no manifest", allowed=_ALLOWED, todo="give the folder above the classes"
        )
    listing = _complete(section, listing, references, shown)
    if not listing.num_files:
        problem = f"{shown} is empty: {len(listing.classes)} class folders without a file"
        raise DataError(problem, allowed=ALLOWED, todo="add images")
    if not listing.classes:
        check_training_samples(listing.split_files[0], shown)
    if not section.incremental:
        # Increments are checked later, since classes of the parent may have vanished.
        check_training_classes(listing.classes, listing.counts[0], shown)
    listing.warnings += [*versions.save(), *describe_listing(listing, section.splits)]
    return listing


def _list_folders(
    section: ShardingSection,
    uri: str,
    folders: LocalFolders | BucketFolders,
    names: Callable[[bytes], list[bytes]],
    folder: Path,
) -> tuple[Listing, Iterator[Reference]]:
    """Return the class folders of a source, and an iterator that lists their files lazily."""
    shown = f"sharding.source {storage.display(uri)}"

    def list_inner(parent: bytes) -> list[bytes]:
        return [name[:-1] for name in names(parent) if name.endswith(b"/") and not is_ignored(name[:-1])]

    layout = find_layout(section, list_inner, shown)
    classes = tuple(sort_classes(class_folder.name for class_folder in layout.folders))
    listing = Listing(
        uri,
        classes,
        folder,
        layout.drawn or section.splits,
        splits_given=layout.gives_splits,
        names_splits=layout.gives_splits,
        is_remote=not storage.is_local(uri),
    )
    outside = []
    for parent in (b"", *layout.split_folders):
        for name in names(parent):
            path = parent + b"/" + name if parent else name
            is_outside = not name.endswith(b"/") and not is_ignored(name)
            if is_outside:
                outside.append(path)
            if is_outside or is_ignored(name.rstrip(b"/")):
                listing.ignore(path)
    check_class_folders(classes, shown, f" and {len(outside)} files outside of class folders" if outside else "")
    listing.warnings += [*describe_drawn(layout.drawn), *describe_outside(outside)]
    splitter = Splitter(listing.fractions)
    find_group = make_group_finder(section.group_by) if section.group_by else None

    def make_references() -> Iterator[Reference]:
        labels = {name: label for label, name in enumerate(classes)}
        # With the slash, since "a.b/" sorts before "a/".
        ordered = sorted(layout.folders, key=lambda class_folder: class_folder.path + b"/")
        walks = ((class_folder, folders.walk(class_folder.path)) for class_folder in ordered)
        for (_, name, folder_split), (path, size, version, content_hash, _) in _read_ahead(walks):
            if size < 0:
                listing.ignore(path)
                continue
            split = splitter.choose(path, find_group(path) if find_group else None, folder_split)
            source = hash_source(size, version, content_hash, (name,), b"")
            yield Reference(path, make_key(path), split, (labels[name],), size, version, content_hash, source)

    return listing, make_references()


def _read_ahead(
    walks: Iterable[tuple[ClassFolder, Iterator[SourceFile]]],
) -> Iterator[tuple[ClassFolder, SourceFile]]:
    """Yield the files of folders in order, while threads list the first `_FILES_AHEAD` files of the next folders."""
    waiting: deque[tuple[ClassFolder, Iterator[SourceFile], Future[list[SourceFile]]]] = deque()
    remaining = iter(walks)
    with ThreadPoolExecutor(_THREADS) as threads:

        def read(files: Iterator[SourceFile]) -> Future[list[SourceFile]]:
            return threads.submit(list, itertools.islice(files, _FILES_AHEAD))

        while True:
            for folder, files in itertools.islice(remaining, _THREADS - len(waiting)):
                waiting.append((folder, files, read(files)))
            if not waiting:
                return
            folder, files, batch = waiting.popleft()
            listed = batch.result()
            if len(listed) == _FILES_AHEAD:
                waiting.appendleft((folder, files, read(files)))
            for file in listed:
                yield folder, file


def _complete(section: ShardingSection, listing: Listing, references: Iterable[Reference], shown: str) -> Listing:
    """Count the references of a source, hash them and write them to parts."""
    if section.stratify == "exact":
        check_exact(section, shown, splits_given=listing.splits_given, multi_label=listing.multi_label)
        references = _divide_exactly(references, listing.fractions)
    head = b"%d\0%d\0" % (listing.multi_label, listing.splits_given)
    for name, names in listing.vocabularies.items():
        head += b"%b\0%d\0%b\0" % (name.encode(), len(names), b"\0".join(names))
    sha256 = hashlib.sha256(head)
    listing.counts = tuple([0] * len(listing.classes) for _ in SPLITS)
    for reference in references:
        listing.split_files[reference.split] += 1
        listing.split_bytes[reference.split] += reference.source_bytes
        for label in reference.labels:
            listing.counts[reference.split][label] += 1
        sha256.update(_to_hashed(listing, reference))
        listing.add(reference)
    listing = _drop_empty(listing, shown)
    sha256.update(b"\0".join(listing.classes))
    listing.sha256 = sha256.hexdigest()
    return listing


def _divide_exactly(references: Iterable[Reference], fractions: SplitFractions) -> Iterator[Reference]:
    """Return references with exact shares of the splits in each class; 10^7 of them take 5 GB of memory."""
    in_memory = list(references)
    paths: dict[tuple[int, ...], list[bytes]] = {}
    for reference in in_memory:
        paths.setdefault(reference.labels, []).append(reference.path)
    splits: dict[bytes, int] = {}
    for class_paths in paths.values():
        splits |= split_exactly(class_paths, fractions)
    return (reference._replace(split=splits[reference.path]) for reference in in_memory)


def _to_hashed(listing: Listing, reference: Reference) -> bytes:
    """Return the bytes of a reference for the listing's hash: paths, names and JSON contain no zero byte."""
    path, _, split, labels, size, version, _, _, cells, _ = reference
    # Labels enter by name, since a new class changes their indices.
    names = b"\0".join([listing.classes[label] for label in labels])
    split_field = b"%d\0" % split if listing.splits_given else b""
    return b"%b\0%d\0%d\0%b\0%b%d\0%b\n" % (path, size, len(labels), names, split_field, version, cells)


def _drop_empty(listing: Listing, shown: str) -> Listing:
    """Remove classes without a file from the listing of a bucket, which has no empty folders."""
    used = [label for label in range(len(listing.classes)) if any(by_class[label] for by_class in listing.counts)]
    if not listing.is_remote or len(used) == len(listing.classes):
        return listing
    classes = tuple(listing.classes[label] for label in used)
    check_class_folders(classes, shown)
    counts = tuple([by_class[label] for label in used] for by_class in listing.counts)
    trimmed = dataclasses.replace(
        listing, classes=classes, counts=counts, folder=listing.folder / "used", written=[], packed=[], last=[]
    )
    for reference in listing.references():
        trimmed.add(reference._replace(labels=tuple(map(used.index, reference.labels))))
    return trimmed
