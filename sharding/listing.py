"""The listing of a source: its samples in the order of their paths, as Parquet files ("parts") and their hash.

    SOURCE/CLASS/.../FILE        class folders, on this machine or in a bucket (folders.py)
    SOURCE/SPLIT/CLASS/.../FILE  folders of splits: every folder directly below the source has the name of one
    .csv, .jsonl, .parquet       a manifest (manifests.py, tables.py), or a folder of its parts

The files of a split without a folder are drawn by hash from the folder of the training split.

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
from typing import NamedTuple

from contracts import storage
from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from records.classes import sort_classes
from sharding.file_versions import FileVersions
from sharding.folders import BucketFolders, LocalFolders
from sharding.limits import check_training_classes, check_training_samples
from sharding.listing_warnings import describe_drawn, describe_listing, describe_outside
from sharding.manifests import list_manifest
from sharding.names import encode_name, is_ignored, join_names
from sharding.reference import Listing, Reference, SourceFile, hash_source, make_key
from sharding.splits import Splitter, check_exact, make_group_finder, split_exactly
from sharding.tables import SUFFIXES, check_has_columns, find_parts

_FOLDERS = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"
_ALLOWED = f"{_FOLDERS}; or a manifest ({', '.join(SUFFIXES)}), or a folder of its parts"
# Names of folders of splits, in lower case; places in SPLITS.
_SPLIT_NAMES = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "test": 2,
    "testing": 2,
}
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
    if section.stratify == "exact":
        check_exact(section, shown, splits_given=listing.splits_given, multi_label=listing.multi_label)
        references = _divide_exactly(references, listing.fractions)
    listing = _fill(listing, references, shown)
    if not listing.num_files:
        problem = f"{shown} is empty: {len(listing.classes)} class folders without a file"
        raise DataError(problem, allowed=_FOLDERS, todo="add images")
    if not listing.classes:
        check_training_samples(listing.split_files[0], shown)
    if not section.incremental:
        # Increments are checked later, since classes of the parent may have vanished.
        check_training_classes(listing.classes, listing.counts[0], shown)
    listing.warnings += [*versions.save(), *describe_listing(listing, section.splits)]
    return listing


def _fill(listing: Listing, references: Iterable[Reference], shown: str) -> Listing:
    """Hash the references of a source and write them to parts; return the listing, without empty classes."""
    head = b"%d\0%d\0" % (listing.multi_label, listing.splits_given)
    for name, names in listing.vocabularies.items():
        head += b"%b\0%d\0%b\0" % (name.encode(), len(names), b"\0".join(names))
    sha256 = hashlib.sha256(head)
    for reference in references:
        sha256.update(_to_hashed(listing, reference))
        listing.add(reference)
    listing = _drop_empty(listing, shown)
    sha256.update(b"\0".join(listing.classes))
    listing.sha256 = sha256.hexdigest()
    return listing


def _drop_empty(listing: Listing, shown: str) -> Listing:
    """Return the listing of a bucket without classes that have no file: a bucket has no empty folders."""
    used = [label for label in range(len(listing.classes)) if any(counts[label] for counts in listing.counts)]
    if storage.is_local(listing.uri) or len(used) == len(listing.classes):
        return listing
    classes = tuple(listing.classes[label] for label in used)
    _check_classes(classes, shown)
    trimmed = dataclasses.replace(
        listing,
        classes=classes,
        folder=listing.folder / "used",
        counts=(),
        split_bytes=[0] * len(SPLITS),
        split_files=[0] * len(SPLITS),
        written=[],
        packed=[],
        last=[],
        cell_bytes=0,
    )
    for reference in listing.references():
        trimmed.add(reference._replace(labels=tuple(map(used.index, reference.labels))))
    return trimmed


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


# --- class folders ----------------------------------------------------------------------------------------------------


class _ClassFolder(NamedTuple):
    path: bytes
    """Relative to the source."""
    name: bytes
    split: int | None
    """Split of its files, an index into SPLITS; None: the splits are drawn by hash."""


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

    split_folders = _find_split_folders(list_inner, shown)
    drawn = _divide_training(section.splits, split_folders) if split_folders else None
    class_folders = [
        _ClassFolder(parent + b"/" + name, name, split if split or drawn is None else None)
        for parent, split in split_folders.items()
        for name in list_inner(parent)
    ]
    if not split_folders:
        class_folders = [_ClassFolder(name, name, None) for name in list_inner(b"")]
    gives_splits = any(class_folder.split is not None for class_folder in class_folders)
    if section.group_by and gives_splits:
        raise ConfigError(
            f"sharding.group_by is set, but {shown} holds the folders {_show(split_folders)}, which give the splits",
            allowed="groups where splits are drawn: class folders directly below the source, or a manifest",
            todo="unset sharding.group_by, or write a manifest with a column for the group",
        )
    classes = tuple(sort_classes(class_folder.name for class_folder in class_folders))
    listing = Listing(
        uri, classes, folder, drawn or section.splits, splits_given=gives_splits, names_splits=gives_splits
    )
    outside = []
    for parent in (b"", *split_folders):
        for name in names(parent):
            path = parent + b"/" + name if parent else name
            is_outside = not name.endswith(b"/") and not is_ignored(name)
            if is_outside:
                outside.append(path)
            if is_outside or is_ignored(name.rstrip(b"/")):
                listing.ignore(path)
    _check_classes(classes, shown, f" and {len(outside)} files outside of class folders" if outside else "")
    listing.warnings += [*describe_drawn(drawn), *describe_outside(outside)]
    splitter = Splitter(listing.fractions)
    find_group = make_group_finder(section.group_by) if section.group_by else None

    def make_references() -> Iterator[Reference]:
        labels = {name: label for label, name in enumerate(classes)}
        # With the slash, since "a.b/" sorts before "a/".
        ordered = sorted(class_folders, key=lambda class_folder: class_folder.path + b"/")
        walks = ((class_folder, folders.walk(class_folder.path)) for class_folder in ordered)
        for (_, name, folder_split), (path, size, version, content_hash, _) in _read_ahead(walks):
            if size < 0:
                listing.ignore(path)
                continue
            split = splitter.choose(path, find_group(path) if find_group else None, folder_split)
            source = hash_source(size, version, content_hash, (name,), b"")
            yield Reference(path, make_key(path), split, (labels[name],), size, version, content_hash, source)

    return listing, make_references()


def _check_classes(classes: tuple[bytes, ...], shown: str, more: str = "") -> None:
    if len(classes) < 2:
        found = f"a single class ({_show(classes)})" if classes else "no class folder"
        raise DataError(
            f"{shown} holds {found}{more}",
            allowed=_FOLDERS + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )


def _find_split_folders(list_inner: Callable[[bytes], list[bytes]], shown: str) -> dict[bytes, int]:
    """Return the folders of splits and the split of each; empty where class folders are directly in the source.

    Args:
        list_inner: Returns the names of the folders directly below one (empty: the source), without ignored ones.
        shown: The source, as errors name it.

    Raises:
        DataError: Some have the name of a split and others have not, or those of splits hold no class folders.
    """
    splits = {name: _SPLIT_NAMES.get(name.decode("utf-8", "replace").lower()) for name in sorted(list_inner(b""))}
    folders = {name: split for name, split in splits.items() if split is not None}
    unmatched = [name for name in splits if name not in folders]
    if not unmatched and any(map(list_inner, folders)):
        return folders
    if len(folders) >= 2:
        todo = f"move {_show(unmatched)} out of the source" if unmatched else "put class folders into each of them"
        raise DataError(
            f"{shown} holds the folders {_show(folders)}, which are called like splits, "
            + (f"beside {_show(unmatched)}, which are not" if unmatched else "without class folders in them"),
            allowed="one folder of images per class directly below the source; or folders of splits alone (train, "
            "validation or val, test), with one folder per class in each",
            todo=f"if they are splits, {todo}; if they are classes, rename {_show(folders)}",
        )
    return {}


def _divide_training(fractions: SplitFractions, split_folders: dict[bytes, int]) -> SplitFractions | None:
    """Return the shares that divide the training folder between training and the splits without a folder, or None."""
    present = {SPLITS[split] for split in split_folders.values()}
    shares = {name: getattr(fractions, name) for name in SPLITS if name == SPLITS[0] or name not in present}
    total = sum(shares.values())
    if SPLITS[0] not in present or total == shares[SPLITS[0]]:
        return None
    return SplitFractions(**{name: shares.get(name, 0.0) / total for name in SPLITS})


def _read_ahead(
    walks: Iterable[tuple[_ClassFolder, Iterator[SourceFile]]],
) -> Iterator[tuple[_ClassFolder, SourceFile]]:
    """Yield the files of folders in order, while threads list the first `_FILES_AHEAD` files of the next folders."""
    waiting: deque[tuple[_ClassFolder, Iterator[SourceFile], Future[list[SourceFile]]]] = deque()
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


def _show(names: Iterable[bytes]) -> str:
    return join_names([encode_name(name) for name in names])
