"""What a run would write, and how much of Dataflow it would take: `--dry-run`.

Arithmetic on the listing. Shards are those that the run plans; their bytes are the sources' and the framing, where only
the digits of an image's width and height are guessed. What a probe has found (sharding/probe.py) is taken for the whole
source: the share of files that is left out, and the bytes that changes make of an image. On Dataflow a vCPU is taken to
do what one process does on the machine where `BYTES_PER_S` was measured, and every reference crosses the shuffle once:
written and read.
"""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from contracts.config import RunConfig
from records.sample import ChecksumStream, Sample
from records.tar import BLOCK_BYTES
from sharding.limits import encode_name, encode_path
from sharding.plan import Plan, count_shards, make_key
from sharding.probe import ProbeResult, describe_probe
from sharding.runners.work import BYTES_PER_S
from sharding.sources import Reference
from sharding.sources.fields import Fields
from sharding.sources.parts import PART_REFERENCES, pack
from sharding.write.sample import make_values
from sharding.write.shard import SUFFIXES, WRITERS

# GB of memory a vCPU: https://cloud.google.com/compute/docs/machine-resource
GB_PER_VCPU = {"n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9, "n2-highmem": 8.0, "e2-highcpu": 1.0}
_USUAL_GB_PER_VCPU = 4.0
# Of a source that was not listed in words: names of usual lengths, and what the shuffle holds, compressed: so much for
# a reference with a path of 30 bytes and an md5, and for each blob of them (docs/sharding.md, "What grows").
_GUESSED_PATH_BYTES = 40
_GUESSED_CLASS_BYTES = 10
_REFERENCE_BYTES, _BLOB_BYTES = 50, 68
# Shards whose names and sizes are printed.
_MOST_NAMED = 100
# Width and height of an image that nobody has looked at.
_GUESSED_PIXELS = 1000


@dataclass(frozen=True)
class Estimate:
    """What a run would write."""

    shard_bytes: dict[str, int]
    """Size of each shard, by file name."""
    num_samples: int
    source_bytes: int
    shuffle_bytes: int
    """Written to the shuffle and read from it."""


def estimate(
    references: Iterable[Reference],
    classes: Sequence[bytes],
    plan: Plan,
    config: RunConfig,
    *,
    multi_label: bool,
    key: str,
    vocabularies: Mapping[str, Sequence[bytes]] | None = None,
) -> Estimate:
    """Return what a run with this plan would write, if no file is rejected.

    Args:
        references: The listing; it is read once.
        classes: Names of the classes.
        plan: Its shards.
        config: The configuration.
        multi_label: Whether the labels of an image are a list.
        key: Part of the names of the files (sharding/job.py), as this process would write them.
        vocabularies: Names of the classes of further fields of classes.
    """
    suffix = SUFFIXES[config.sharding.shard_format]
    frame = _Frame(classes, config, multi_label=multi_label, vocabularies=vocabularies or {})
    sizes = [frame.end_bytes] * plan.total_shards
    num_samples = source_bytes = shuffled = 0
    remaining = iter(references)
    while part := list(islice(remaining, PART_REFERENCES)):
        by_shard: dict[int, list[Reference]] = defaultdict(list)
        for reference in part:
            shard = plan.place(reference.path, reference.split)
            by_shard[shard].append(reference)
            sizes[shard] += frame.bytes_of(reference)
            source_bytes += reference.source_bytes
        num_samples += len(part)
        shuffled += 2 * sum(len(pack(references)) for references in by_shard.values())
    named = {plan.name_of(shard, key) + suffix: size for shard, size in enumerate(sizes)}
    return Estimate(named, num_samples, source_bytes, shuffled)


def describe(found: Estimate, config: RunConfig, probed: ProbeResult | None = None) -> str:
    """Return an estimate in words, and what a probe of the same source has found."""
    lines = [f"{name}  {size} bytes" for name, size in islice(found.shard_bytes.items(), _MOST_NAMED)]
    if (more := len(found.shard_bytes) - _MOST_NAMED) > 0:
        lines.append(f"... and {more} more")
    total = sum(found.shard_bytes.values())
    lines.append(
        f"{len(found.shard_bytes)} shards, {total} bytes, from {found.num_samples} files of {found.source_bytes} bytes"
    )
    if probed is not None and probed.accepted:
        # The framing of a file that is left out goes with it; that of one that is changed stays.
        framing = total - found.source_bytes
        stored = found.source_bytes * probed.stored_bytes / probed.accepted_bytes
        share = probed.accepted / probed.probed
        lines.append(f"{round((stored + framing) * share)} bytes of shards, if all files are like those that were read")
        lines += describe_probe(probed)
    lines += _describe_work(found.source_bytes, found.shuffle_bytes, config)
    return "\n".join(lines)


def describe_probed(found: ProbeResult, config: RunConfig) -> str:
    """Return in words what a probe has found, and what a run would then write and cost, before anything is planned."""
    section = config.sharding
    lines = describe_probe(found)
    num_shards = sum(
        count_shards(
            math.ceil(found.total_files * part),
            math.ceil(found.total_bytes * part),
            target_shard_bytes=section.target_shard_bytes,
            min_shards=section.min_shards,
        )
        for part in section.splits.model_dump().values()
        if part
    )
    if found.accepted:
        share = found.accepted / found.probed
        typical = Reference(b"." * _GUESSED_PATH_BYTES, 0, 0, found.stored_bytes // found.accepted, 0)
        plain = config.model_copy(update={"sharding": section.model_copy(update={"fields": {}})})
        frame = _Frame([b"." * _GUESSED_CLASS_BYTES], plain, multi_label=False, vocabularies={})
        total = round(found.total_files * share * frame.bytes_of(typical))
        lines.append(f"about {num_shards} shards, {total} bytes, from {found.total_files} files")
    # All references of a part that go into one shard are a blob.
    num_blobs = min(found.total_files, math.ceil(found.total_files / PART_REFERENCES) * num_shards)
    shuffle_bytes = 2 * (_REFERENCE_BYTES * found.total_files + _BLOB_BYTES * num_blobs)
    return "\n".join([*lines, *_describe_work(found.total_bytes, shuffle_bytes, config)])


def _describe_work(source_bytes: int, shuffle_bytes: int, config: RunConfig) -> list[str]:
    rate = BYTES_PER_S[config.sharding.verify == "decode"]
    machine = config.dataflow.machine_type
    gb_per_vcpu = GB_PER_VCPU.get(machine.rpartition("-")[0], _USUAL_GB_PER_VCPU)
    vcpu_hours = source_bytes / rate / 3600
    gb_hours = vcpu_hours * gb_per_vcpu
    shuffle_gib = shuffle_bytes / 2**30
    lines = [
        "on Dataflow, without the start of its machines:",
        f"  {vcpu_hours:.4f} vCPU-hours: {source_bytes} bytes / {rate / 1e6:g} MB/s a vCPU",
        f"  {gb_hours:.4f} GB-hours: {gb_per_vcpu:g} GB a vCPU of {machine}",
        f"  {shuffle_gib:.4f} GiB shuffled: references only, written and read",
    ]
    return lines


class _Frame:
    """The bytes that the format of the shards adds: those of a sample without content, written to nowhere."""

    def __init__(
        self,
        classes: Sequence[bytes],
        config: RunConfig,
        *,
        multi_label: bool,
        vocabularies: Mapping[str, Sequence[bytes]],
    ) -> None:
        self._classes = classes
        self._fields = Fields.of(config.sharding)
        self._places = {
            name: {encode_name(one): place for place, one in enumerate(names)} for name, names in vocabularies.items()
        }
        self._names = [encode_name(name) for name in classes]
        self._is_multi_label = multi_label
        self._format = config.sharding.shard_format
        self._looks = config.sharding.verify != "none"
        stream = ChecksumStream(io.BytesIO())
        WRITERS[self._format](stream).close()
        self.end_bytes = stream.position

        self._bytes: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def bytes_of(self, reference: Reference) -> int:
        if self._fields is not None:
            return self._measure_fields(reference, self._fields)
        path = encode_path(reference.path)
        # All that the frames of two samples differ in, but for a few digits; making one takes longer than the rest.
        kind = (len(path), len(json.dumps(path)), reference.labels)
        if (frame := self._bytes.get(kind)) is None:
            frame = self._bytes[kind] = self._measure(reference, path)
        padding = -reference.size % BLOCK_BYTES if self._format == "webdataset" else 0
        return frame + reference.size + padding

    def _measure_fields(self, reference: Reference, fields: Fields) -> int:
        """Return the bytes of a sample of named fields: cells are written as they are, files without content."""
        files = fields.files_of(reference)
        empty = {name: (b"", "png" if file.is_image else "") for name, file in files}
        pixels = _GUESSED_PIXELS if self._looks and fields.image is not None else 0
        sample = Sample(
            key=make_key(reference.path),
            content=b"",
            image_format="",
            label=reference.label,
            class_name="",
            path=encode_path(reference.path),
            width=pixels,
            height=pixels,
            mode="RGB" if pixels else "",
            values=make_values(reference, fields, empty, self._classes, self._places),
        )
        stream = ChecksumStream(io.BytesIO())
        WRITERS[self._format](stream).write(sample)
        padding = sum(-file.size % BLOCK_BYTES for _, file in files) if self._format == "webdataset" else 0
        return stream.position + sum(file.size for _, file in files) + padding

    def _measure(self, reference: Reference, path: str) -> int:
        pixels = _GUESSED_PIXELS if self._looks else 0
        names = tuple(self._names[label] for label in reference.labels)
        sample = Sample(
            key=make_key(reference.path),
            content=b"",
            image_format="jpeg",
            label=reference.label,
            class_name=names[0] if names else "",
            path=path,
            width=pixels,
            height=pixels,
            mode="RGB" if self._looks else "",
            labels=reference.labels if self._is_multi_label else None,
            class_names=names if self._is_multi_label else (),
        )
        stream = ChecksumStream(io.BytesIO())
        WRITERS[self._format](stream).write(sample)
        return stream.position
