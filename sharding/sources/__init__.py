"""What is to be sharded: a deterministic listing of images, checked before anything is spent.

    a folder                  class folders (folders.py), in a bucket (buckets.py)
    .csv, .jsonl, .parquet    a manifest (manifests.py), in our own simple form or in Vertex AI's (tables.py, vertex.py)

All give the same references (reference.py). Nothing here reads the content of an image.
"""

from __future__ import annotations

from contracts import storage
from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.limits import check_training_classes, encode_name, name_some
from sharding.sources.buckets import list_bucket
from sharding.sources.folders import ALLOWED, list_folders
from sharding.sources.manifests import list_manifest
from sharding.sources.reference import Listing, Reference, absolute_path, remote_uri
from sharding.sources.tables import SUFFIXES

__all__ = ["Listing", "Reference", "absolute_path", "describe_gaps", "list_source", "remote_uri"]

_ALLOWED = f"{ALLOWED}; or a manifest ({', '.join(SUFFIXES)})"


def list_source(section: ShardingSection) -> Listing:
    """List the images of `sharding.source`.

    Raises:
        ConfigError: No source is set, or `sharding.group_by` does not fit it.
        DataError: It is missing, not readable, empty, has fewer than two classes, a class has no image in the training
            split (unless it is sharded in increments), or a manifest is wrong.
        StorageError: It is of a scheme that cannot be read.
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
        raise DataError(f"{shown} does not exist", allowed=_ALLOWED, todo="check the path")
    is_local = storage.is_local(uri)
    if is_local and storage.local_path(uri).is_dir():
        listing = list_folders(section, uri)
    elif uri.lower().endswith(tuple(SUFFIXES)):
        listing = list_manifest(section, uri)
    elif not is_local:
        listing = list_bucket(section, uri)
    else:
        raise DataError(
            f"{shown} is a file, but no manifest", allowed=_ALLOWED, todo="give the folder above the classes"
        )
    if not section.incremental:
        # An increment allows for classes of its parent that have vanished: it is checked against that.
        check_training_classes(listing.classes, listing.count_by_class(0), shown)
    return listing


def describe_gaps(listing: Listing, fractions: SplitFractions) -> list[str]:
    """Return a warning for each thing that is allowed but probably not meant."""
    warnings = []
    for split, name in enumerate(SPLITS):
        counts = listing.count_by_class(split)
        if split == 0 or (getattr(fractions, name) == 0 and not any(counts)):
            continue
        absent = [encode_name(listing.classes[label]) for label, count in enumerate(counts) if count == 0]
        if absent:
            warnings.append(f"warning: the {name} split has no image of class {name_some(absent)}")
    by_lower: dict[bytes, bytes] = {}
    for class_name in listing.classes:
        # Letters outside of ASCII have case as well; names that are no text are compared as they are.
        folded = class_name.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")
        other = by_lower.setdefault(folded, class_name)
        if other != class_name:
            names = f"{encode_name(other)} and {encode_name(class_name)}"
            warnings.append(f"warning: classes {names} differ only in upper and lower case")
    return warnings
