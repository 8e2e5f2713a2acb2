"""What a run would write, and what it would cost on Dataflow: `--dry-run`. The listing is read, no file of it.

Arithmetic, not measurement. Shards are those that the run plans; their bytes are the sources' and the framing, where
only the digits of an image's width and height are guessed. On Dataflow a vCPU is taken to do what one process does on
the machine where `BYTES_PER_S` was measured, and every reference crosses the shuffle once: written and read.
"""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from contracts.artifacts import Document
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.resolve import read_yaml
from records.sample import ChecksumStream, Sample
from records.tar import BLOCK_BYTES
from sharding.limits import encode_name, encode_path
from sharding.plan import Plan, make_key, place
from sharding.references import PART_REFERENCES, pack
from sharding.runners.work import BYTES_PER_S
from sharding.sources import Listing, Reference
from sharding.write.shard import SUFFIXES, WRITERS

# GB of memory a vCPU: https://cloud.google.com/compute/docs/machine-resource
GB_PER_VCPU = {"n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9, "n2-highmem": 8.0, "e2-highcpu": 1.0}
_USUAL_GB_PER_VCPU = 4.0
# Width and height of an image that nobody has looked at.
_GUESSED_PIXELS = 1000


class Prices(Document):
    """A price file: what the user pays, in a currency of his own."""

    vcpu_hour: float
    gb_hour: float
    shuffle_gib: float
    """For each GiB that the shuffle processes."""
    currency: str = "USD"


@dataclass(frozen=True)
class Estimate:
    """What a run would write."""

    shard_bytes: dict[str, int]
    """Size of each shard, by file name."""
    num_samples: int
    source_bytes: int
    shuffle_bytes: int
    """Written to the shuffle and read from it."""


def estimate(listing: Listing, plan: Plan, config: RunConfig) -> Estimate:
    """Return what a run with this plan would write, if no file is rejected."""
    section = config.sharding
    suffix = SUFFIXES[section.format]
    frame = _Frame(listing, config)
    sizes = {plan.name_of(shard) + suffix: frame.end_bytes for shard in range(plan.total_shards)}
    names = list(sizes)
    shuffled = 0
    remaining = iter(listing.references)
    while part := list(islice(remaining, PART_REFERENCES)):
        by_shard: dict[int, list[Reference]] = defaultdict(list)
        for reference in part:
            shard = place(plan, reference.path, reference.split)
            by_shard[shard].append(reference)
            sizes[names[shard]] += frame.bytes_of(reference)
        shuffled += 2 * sum(len(pack(references)) for references in by_shard.values())
    source_bytes = sum(reference.size for reference in listing.references)
    return Estimate(sizes, len(listing.references), source_bytes, shuffled)


def describe(found: Estimate, config: RunConfig, prices: Prices | None) -> str:
    """Return an estimate in words."""
    lines = [f"{name}  {size} bytes" for name, size in found.shard_bytes.items()]
    total = sum(found.shard_bytes.values())
    lines.append(
        f"{len(found.shard_bytes)} shards, {total} bytes, from {found.num_samples} files of {found.source_bytes} bytes"
    )
    rate = BYTES_PER_S[config.sharding.verify == "decode"]
    machine = config.vertex.dataflow.machine_type
    gb_per_vcpu = GB_PER_VCPU.get(machine.rpartition("-")[0], _USUAL_GB_PER_VCPU)
    vcpu_hours = found.source_bytes / rate / 3600
    gb_hours = vcpu_hours * gb_per_vcpu
    shuffle_gib = found.shuffle_bytes / 2**30
    lines += [
        "on Dataflow, without the start of its machines:",
        f"  {vcpu_hours:.4f} vCPU-hours: {found.source_bytes} bytes / {rate / 1e6:g} MB/s a vCPU",
        f"  {gb_hours:.4f} GB-hours: {gb_per_vcpu:g} GB a vCPU of {machine}",
        f"  {shuffle_gib:.4f} GiB shuffled: references only, written and read",
    ]
    if prices is None:
        lines.append("  no price: give --prices FILE with vcpu_hour, gb_hour and shuffle_gib")
    else:
        cost = vcpu_hours * prices.vcpu_hour + gb_hours * prices.gb_hour + shuffle_gib * prices.shuffle_gib
        lines.append(f"  {cost:.4f} {prices.currency} by the prices given")
    return "\n".join(lines)


def read_prices(path: str) -> Prices:
    """Read a price file.

    Raises:
        ConfigError: It cannot be read, or a price is missing.
    """
    values = read_yaml(Path(path))
    try:
        return Prices.model_validate(values)
    except ValueError as error:
        raise ConfigError(
            f"price file {path}: {error}",
            allowed="vcpu_hour, gb_hour and shuffle_gib, each a number; currency",
            todo="take the prices of your region from https://cloud.google.com/dataflow/pricing",
        ) from None


class _Frame:
    """The bytes that the format of the shards adds: those of a sample without content, written to nowhere."""

    def __init__(self, listing: Listing, config: RunConfig) -> None:
        self._listing = listing
        self._format = config.sharding.format
        self._looks = config.sharding.verify != "none"
        stream = ChecksumStream(io.BytesIO())
        WRITERS[self._format](stream).close()
        self.end_bytes = stream.position

    def bytes_of(self, reference: Reference) -> int:
        pixels = _GUESSED_PIXELS if self._looks else 0
        sample = Sample(
            key=make_key(reference.path),
            content=b"",
            image_format="jpeg",
            label=reference.label,
            class_name=encode_name(self._listing.classes[reference.label]),
            path=encode_path(reference.path),
            width=pixels,
            height=pixels,
            mode="RGB" if self._looks else "",
            labels=reference.labels if self._listing.multi_label else None,
            class_names=tuple(encode_path(self._listing.classes[label]) for label in reference.labels)
            if self._listing.multi_label
            else (),
        )
        stream = ChecksumStream(io.BytesIO())
        WRITERS[self._format](stream).write(sample)
        content = reference.size
        if self._format == "webdataset":
            content += -content % BLOCK_BYTES
        return stream.position + content
