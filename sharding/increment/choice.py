"""What a run is to do: a full reshard, an increment on what an earlier run left, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.errors import ConfigError
from contracts.fingerprint import increment_inputs, shard_inputs
from contracts.stage import Stage
from sharding.increment.chain import find_parents
from sharding.limits import check_training_classes, encode_name, name_some
from sharding.sources import Listing

if TYPE_CHECKING:
    from sharding.increment.append import Growth


@dataclass
class Choice:
    """What is to be written, and on what it is built."""

    made_from: dict[str, str]
    listing: Listing
    """What is written; empty where the work is done already."""
    growth: Growth | None = None
    """None for a full reshard, and where the work is done already."""
    parent_uri: str = ""
    """Folder of what an increment is built on, or of what holds this state of the source already."""


def choose(stage: Stage, listing: Listing, scratch: Path) -> Choice:
    """Decide between a full reshard, an increment, and what is there already.

    Args:
        stage: Its configuration and root.
        listing: Of the source.
        scratch: Folder for the listing of what an increment writes.

    Raises:
        ConfigError: An increment is asked for where no parent can be.
        DataError: A class has no training image, or an old sample moved to another split.
    """
    section = stage.config.sharding
    full = Choice(shard_inputs(stage.config, listing.sha256), listing)
    if not section.incremental:
        if stage.compact:
            raise ConfigError(
                "compacting needs sharding.incremental",
                allowed="a configuration whose shards are written in increments",
                todo="set sharding.incremental=true; a full reshard needs no compacting",
            )
        return full
    if stage.root is None:
        raise ConfigError(
            "sharding.incremental is set, but --output names a single folder",
            allowed="a root: shards of earlier states of the source are looked for beside the new ones",
            todo="leave --output out, or set sharding.incremental=false",
        )
    parents = find_parents(
        stage.root, full.made_from, fresh=stage.fresh, multi_label=listing.multi_label, warn=stage.log
    )
    for parent in parents:
        if parent.listing == listing.sha256 and not stage.compact:
            return Choice(parent.manifest.made_from, listing, parent_uri=parent.uri)
        if stage.locate:
            # What is looked for is not there, whatever it would be built on.
            return full
        from sharding.increment.append import plan_growth

        growth = plan_growth(listing, parent, scratch, compacts=stage.compact)
        if growth is not None:
            _check_classes(stage, listing, growth)
            made_from = increment_inputs(full.made_from, parent=parent.manifest.fingerprint, compacts=stage.compact)
            return Choice(made_from, growth.listing, growth, parent.uri)
        stage.log(f"{storage.display(parent.uri)} has no sample in common with the source: nothing is built on it")
    shown = f"sharding.source {storage.display(listing.uri)}"
    check_training_classes(listing.classes, listing.count_by_class(0), shown)
    return full


def _check_classes(stage: Stage, listing: Listing, growth: Growth) -> None:
    """Raise DataError when a class has no training image; one that the source has no image of at all keeps its place.

    Labels are places in the list of classes, and those in reused shards must stay right.
    """
    vanished = {growth.listing.classes[label] for label in growth.append.vanished}
    counted = [
        (name, count)
        for name, count in zip(listing.classes, listing.count_by_class(0), strict=True)
        if name not in vanished
    ]
    shown = f"sharding.source {storage.display(listing.uri)}"
    check_training_classes(tuple(name for name, _ in counted), [count for _, count in counted], shown)
    if vanished:
        names = name_some(sorted(encode_name(name) for name in vanished))
        stage.log(f"warning: the source has no image of class {names} any more: it stays in the list, without samples")
