"""The finished shards that an increment is built on: the newest sound manifest of the same configuration in its root.

Folders of one root that differ in nothing but the state of the source form chains: a manifest names its parent, and
lists the parent's shards where they are. Only manifests are read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.errors import DataError
from contracts.stage import find_output_damage

# What may differ between two manifests of a chain.
_CHANGES_PER_LISTING = {"listing", "parent"}
_FOLDER = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Parent:
    """A finished manifest that an increment may be built on."""

    uri: str
    """Its folder."""
    manifest: ShardManifest

    @property
    def listing(self) -> str:
        """Hash of the listing that it was made from."""
        return self.manifest.made_from["listing"]


def find_parents(
    root: str, made_from: dict[str, str], *, fresh: bool, multi_label: bool, warn: Callable[[str], None]
) -> Iterator[Parent]:
    """Yield what an increment may be built on: first what was made from exactly this listing, then the newest.

    Args:
        root: Folder of the stage's outputs.
        made_from: Hashes that decide a full reshard.
        fresh: Pass over what was made from exactly this listing: it is to be made again.
        multi_label: Whether the labels of the source are lists.
        warn: Told about manifests that cannot be used, and why.
    """
    wanted = {name: value for name, value in made_from.items() if name not in _CHANGES_PER_LISTING}
    found = []
    for name in storage.list_names(root):
        if not _FOLDER.fullmatch(name.rstrip("/")):
            continue
        uri = storage.join(root, name.rstrip("/"))
        values = _read_head(uri)
        inputs = values.get("made_from", {})
        if {name: value for name, value in inputs.items() if name not in _CHANGES_PER_LISTING} != wanted:
            continue
        is_other = inputs.get("listing") != made_from["listing"]
        if is_other or not fresh:
            found.append((is_other, -_finished_at(uri), uri))
    for *_, uri in sorted(found):
        parent, problem = _open(uri, made_from["listing"], multi_label)
        if parent is not None:
            yield parent
        else:
            warn(f"warning: nothing is built on {storage.display(uri)}: {problem}")


def _read_head(uri: str) -> dict[str, Any]:
    """Return the document of a folder as it is; empty where none can be read."""
    try:
        values = json.loads(storage.read_bytes(storage.join(uri, MANIFEST_NAME)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    is_ours = isinstance(values, dict) and values.get("kind") == "shards" and isinstance(values.get("made_from"), dict)
    return values if is_ours else {}


def _finished_at(uri: str) -> float:
    """Return when a manifest was published, in seconds since 1970; 0 when it was deleted since it was read."""
    try:
        return storage.info(storage.join(uri, MANIFEST_NAME)).updated_s
    except FileNotFoundError:
        return 0


def _open(uri: str, listing: str, multi_label: bool) -> tuple[Parent | None, str]:
    """Return a parent, or why it is none."""
    try:
        manifest = ShardManifest.load(uri)
    except DataError as error:
        return None, str(error)
    damage = find_output_damage(uri, manifest)
    if damage is not None:
        return None, damage
    # What is reused as it is needs no more.
    if manifest.made_from["listing"] != listing and manifest.multi_label != multi_label:
        return None, "the source now gives its labels in another form (lists, or single ones)"
    return Parent(uri, manifest), ""
