"""Dry run of the stage: classes, splits, shards and bytes by the listing, and a check of a random subset of samples."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from contracts.config import SPLITS, ShardingSection
from records.decode import UndecodableImage
from sharding.fields import Fields
from sharding.images import Checks
from sharding.names import MAX_NAMED, count_of, encode_path
from sharding.plan import Plan
from sharding.reading import read_samples
from sharding.reference import Listing, Reference
from sharding.samples import accept

# Samples that are read and checked, in a few seconds.
CHECKED = 200


def describe(listing: Listing, plan: Plan, section: ShardingSection) -> Iterator[str]:
    """Yield lines about what a run would write.

    Args:
        listing: The samples that would be written.
        plan: Their shards.
        section: The configuration.
    """
    if listing.classes:
        yield f"{len(listing.classes)} classes"
    counts = zip(SPLITS, plan.num_shards, listing.split_files, listing.split_bytes, strict=True)
    for name, shards, samples, num_bytes in counts:
        yield f"{name}: {samples} samples in {count_of(shards, 'shard')}, {num_bytes} bytes of source files"
    yield f"{count_of(plan.total_shards, 'shard')}, from {listing.num_files} samples of {listing.total_bytes} bytes"
    yield from _check_sample_files(listing, section)


def _check_sample_files(listing: Listing, section: ShardingSection) -> Iterator[str]:
    """Check a random subset of samples as the stage does and yield the findings; none where samples have no files."""
    fields = Fields(section)
    if fields.file is None:
        return
    chosen = _draw_samples(listing)
    rejected: list[tuple[Reference, UndecodableImage]] = []
    samples = read_samples(listing.uri, chosen, fields, by_content=section.compare == "content")
    with contextlib.closing(samples):
        for reference, contents in samples:
            try:
                accept(reference, contents, fields, Checks.of(section))
            except UndecodableImage as reason:
                rejected.append((reference, reason))
    yield f"{len(chosen)} of {listing.num_files} samples were checked: {len(rejected)} cannot be used"
    yield from (f"  {encode_path(reference.path)}: {reason}" for reference, reason in rejected[:MAX_NAMED])
    if len(rejected) > section.max_rejected_fraction * listing.num_files:
        limit = f"{section.max_rejected_fraction:g}"
        yield f"warning: that is more than sharding.max_rejected_fraction {limit} of all: the stage would fail"


def _draw_samples(listing: Listing) -> list[Reference]:
    """Return a random subset of the samples, seeded by the listing's hash."""
    places = set(random.Random(listing.sha256).sample(range(listing.num_files), min(CHECKED, listing.num_files)))
    return [reference for place, reference in enumerate(listing.references()) if place in places]
