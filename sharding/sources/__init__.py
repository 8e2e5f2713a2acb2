"""The source: a deterministic listing of images, checked before anything is spent.

    a folder                  class folders (folders.py), in a bucket (buckets.py); layout.py says which are classes
    .csv, .jsonl, .parquet    a manifest (manifests.py, tables.py), or a folder of its parts

All give the same listing (listing.py): files of references (reference.py, parts.py), sorted by path. Nothing here reads
the content of an image.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from contracts import storage
from contracts.config import ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from contracts.process import available_cores
from sharding.limits import check_training_classes, check_training_samples
from sharding.sources.buckets import list_bucket, list_few, names_at_top
from sharding.sources.folders import list_folders, list_layout
from sharding.sources.layout import ALLOWED
from sharding.sources.listing import (
    Found,
    Listing,
    assemble,
    describe_gaps,
    describe_lookalikes,
    describe_shares,
)
from sharding.sources.manifests import list_manifest
from sharding.sources.parts import Stretch
from sharding.sources.pool import open_pool
from sharding.sources.reference import Reference, absolute_path, remote_uri
from sharding.sources.tables import SUFFIXES, check_has_columns, find_parts, list_top, require_source

__all__ = ["Listing", "Reference", "absolute_path", "describe_gaps", "list_source", "remote_uri"]

_ALLOWED = f"{ALLOWED}; or a manifest ({', '.join(SUFFIXES)}), or a folder of its parts"
# A page of a bucket's listing is waited for about as long as it is worked on.
_PROCESSES_PER_CORE = 2
_MAX_PROCESSES = 64


def list_source(section: ShardingSection, folder: Path, *, processes: int | None = None) -> Listing:
    """List the samples of `sharding.source`.

    Args:
        section: What is listed, and what decides about splits.
        folder: An empty folder of this machine; the references are left there, 70 bytes each. The caller deletes it.
        processes: Processes that list where there is much; None: by the number of cores.

    Raises:
        ConfigError: No source is set, or `sharding.group_by` does not fit it.
        DataError: It is missing, not readable, empty, has fewer than two classes, a class has no image in the training
            split (unless it is sharded in increments), or a manifest is wrong.
        StorageError: It is of a scheme that cannot be read.
        TryAgain: It changed while it was listed.
    """
    if not section.source.strip():
        raise ConfigError(
            "sharding.source is not set",
            allowed=_ALLOWED,
            todo="set sharding.source to the folder of your images, or to a manifest",
        )
    uri = storage.normalise(section.source)
    shown = f"sharding.source {storage.display(uri)}"
    require_source(section, uri)
    entries: list[storage.ObjectInfo] | None = None
    if storage.is_local(uri) or uri.lower().endswith(SUFFIXES):
        top = list_top(uri)
    else:
        # Of more objects than these, none is looked at as the part of a table.
        entries = list_few(uri)
        top = names_at_top(entries or ())
    parts = find_parts(uri, top)
    is_table = bool(parts) or uri.lower().endswith(SUFFIXES)
    if not parts:
        check_has_columns(section, uri)
    folder.mkdir(parents=True, exist_ok=True)
    if storage.is_local(uri) and storage.local_path(uri).is_dir() and not parts:
        listing = _list_folders(section, uri, folder, processes or available_cores())
    elif is_table:
        found = list_manifest(section, uri, folder, parts=parts)
        with open_pool(1) as pool:
            listing = assemble(found, folder, pool, fractions=_stratified(section, found))
    elif not storage.is_local(uri):
        most = min(_MAX_PROCESSES, _PROCESSES_PER_CORE * available_cores())
        listing = _list_bucket(section, uri, folder, processes or most, entries)
    else:
        raise DataError(
            f"{shown} is a file, but no manifest", allowed=_ALLOWED, todo="give the folder above the classes"
        )
    if not listing.num_files:
        raise DataError(
            f"{shown} is empty: {len(listing.classes)} class folders without a file", allowed=ALLOWED, todo="add images"
        )
    if not listing.classes:
        check_training_samples(listing.split_files[0], shown)
    if not section.incremental:
        # An increment allows for classes of its parent that have vanished: it is checked against that.
        check_training_classes(listing.classes, listing.counts[0], shown)
    warnings = [*listing.warnings, *describe_gaps(listing.classes, listing.counts, section.splits)]
    for names in (listing.classes, *listing.vocabularies.values()):
        warnings += describe_lookalikes(names)
    warnings += describe_shares(listing, section.splits)
    return dataclasses.replace(listing, warnings=tuple(warnings))


def _list_folders(section: ShardingSection, uri: str, folder: Path, processes: int) -> Listing:
    top = Stretch()
    layout = list_layout(section, uri, top)
    stretches = list_folders(section, uri, layout, folder, None, 1)
    with open_pool(processes if stretches is None else 1) as pool:
        if stretches is None:
            stretches = list_folders(section, uri, layout, folder, pool, processes)
            assert stretches is not None
        found = Found(
            uri,
            layout.classes,
            [top, *stretches],
            splits_given=layout.gives_splits,
            names_splits=layout.gives_splits,
            warnings=layout.warnings,
        )
        return assemble(found, folder, pool, fractions=_stratified(section, found))


def _list_bucket(
    section: ShardingSection, uri: str, folder: Path, processes: int, entries: list[storage.ObjectInfo] | None
) -> Listing:
    with open_pool(processes if entries is None else 1) as pool:
        layout, stretches = list_bucket(section, uri, folder, entries, pool, processes)
        found = Found(
            uri,
            layout.classes,
            stretches,
            splits_given=layout.gives_splits,
            names_splits=layout.gives_splits,
            is_remote=True,
            keeps_empty=False,
            warnings=layout.warnings,
        )
        return assemble(found, folder, pool, fractions=_stratified(section, found))


def _stratified(section: ShardingSection, found: Found) -> SplitFractions | None:
    """Return the shares of the splits where each class is to get a sample in all of them."""
    # What was trained on in a parent must not move; groups stay whole.
    if not section.stratify or found.splits_given or section.group_by:
        return None
    return section.splits
