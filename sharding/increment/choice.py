"""What a run is to do: a full reshard, an increment on what an earlier run left, or nothing."""

from __future__ import annotations

import dataclasses
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
from sharding.sources.tokenizer import hash_tokenizer, read_tokenizer

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
    tokenizer: bytes = b""
    """Content of `sharding.tokenizer.file`; empty where none is named."""

    @property
    def is_whole(self) -> bool:
        """Whether every sample of the source is written."""
        return self.growth is None

    @property
    def published(self) -> Listing:
        """The listing, followed by what new files may be copies of."""
        compared = self.growth.compared if self.growth is not None else ()
        return dataclasses.replace(self.listing, parts=(*self.listing.parts, *compared))


def choose(stage: Stage, listing: Listing, scratch: Path) -> Choice:
    """Decide between a full reshard, an increment, and what is there already.

    Args:
        stage: Its configuration and root.
        listing: Of the source.
        scratch: Folder for the listing of what an increment writes.

    Raises:
        ConfigError: An increment is asked for where no parent can be.
        DataError: A class has no training image, an old sample moved to another split, or `sharding.tokenizer.file`
            is no tokenizer.
    """
    section = stage.config.sharding
    tokenizer = read_tokenizer(section)
    full = Choice(shard_inputs(stage.config, listing.sha256, hash_tokenizer(tokenizer)), listing, tokenizer=tokenizer)
    if not section.incremental:
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
        there = Choice(parent.manifest.made_from, listing, parent_uri=parent.uri)
        if parent.listing == listing.sha256:
            return there
        from sharding.increment.append import plan_growth

        growth = plan_growth(listing, parent, scratch)
        if growth is not None:
            warnings = (*listing.warnings, *_check_classes(growth))
            if growth.append.is_empty and not stage.fresh:
                # The very samples, though not the very listing: the folder of a class without an image came or went.
                return there
            if stage.locate:
                # What is looked for is not there, whatever it would be built on.
                return full
            made_from = increment_inputs(full.made_from, parent=parent.manifest.fingerprint)
            written = dataclasses.replace(growth.listing, warnings=warnings)
            return Choice(made_from, written, growth, parent.uri, tokenizer)
        stage.log(f"{storage.display(parent.uri)} has no sample in common with the source: nothing is built on it")
    shown = f"sharding.source {storage.display(listing.uri)}"
    check_training_classes(listing.classes, listing.counts[0], shown)
    return full


def _check_classes(growth: Growth) -> list[str]:
    """Raise DataError when a class has no training sample; return a warning of those that have none any more.

    They keep their places: labels are places in the list of classes, and those in reused shards must stay right.
    """
    classes, vanished = growth.listing.classes, set(growth.append.vanished)
    kept = growth.append.samples_by_class[0]
    counts = [old + new for old, new in zip(kept, growth.listing.counts[0], strict=True)]
    here = [label for label in range(len(classes)) if label not in vanished]
    shown = f"sharding.source {storage.display(growth.listing.uri)}"
    check_training_classes(tuple(classes[label] for label in here), [counts[label] for label in here], shown)
    if not vanished:
        return []
    names = name_some([encode_name(classes[label]) for label in sorted(vanished)])
    return [f"the source has no sample of class {names} any more: it stays in the list, without samples"]
