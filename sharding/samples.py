"""Check the files of one sample, and convert its fields to the stored form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from contracts.config import CLASS_KINDS
from records.decode import UndecodableImage
from records.sample import Sample, Value
from sharding.fields import Fields
from sharding.images import MAX_IMAGE_BYTES, Checked, Checks, check, inflate
from sharding.job import Job
from sharding.names import encode_path
from sharding.reference import Reference


class Accepted(NamedTuple):
    """The checked files of a usable sample."""

    image: Checked | None
    """The first image; None where there is none."""
    files: dict[str, tuple[bytes, str]]
    """Stored content and format of each file by field."""
    content: bytes
    """Content that identifies duplicates: the stored first file, or the cells of a row."""


def accept(
    reference: Reference,
    contents: Sequence[tuple[str, bytes]],
    fields: Fields,
    checks: Checks,
) -> Accepted:
    """Check the files of a sample and convert its first image.

    Args:
        reference: The sample.
        contents: Its files, by field.
        fields: The fields of the samples.
        checks: Settings of the checks and conversions.

    Raises:
        UndecodableImage: It cannot be used; with the reason, and the name of the field.
    """
    first: Checked | None = None
    files: dict[str, tuple[bytes, str]] = {}
    for name, content in contents:
        try:
            if fields.kinds[name] != "image":
                files[name] = content, ""
                continue
            is_first = name == fields.image
            image = check(inflate(content), checks if is_first else checks.without_changes())
            files[name] = image.content, image.image_format
            first = image if is_first else first
        except UndecodableImage as reason:
            raise UndecodableImage(f"field {name}: {reason}" if fields.are_named else str(reason)) from None
    total = sum(len(content) for content, _ in files.values()) + len(reference.cells)
    if total > MAX_IMAGE_BYTES:
        raise UndecodableImage(f"{total} bytes in all fields are more than the limit of {MAX_IMAGE_BYTES}")
    return Accepted(first, files, files[fields.file][0] if fields.file is not None else reference.cells)


def make_sample(reference: Reference, accepted: Accepted, job: Job) -> Sample:
    """Return a sample in its stored form."""
    image, path = accepted.image, encode_path(reference.path)
    size = (image.width, image.height, image.mode) if image is not None else (0, 0, "")
    if job.fields.are_named:
        values = _make_values(reference, job.fields, accepted, job)
        return Sample(reference.key, b"", "", 0, "", path, *size, values=values)
    assert image is not None
    names = tuple(job.planned.classes[label] for label in reference.labels)
    sample = Sample(reference.key, image.content, image.image_format, 0, "", path, *size)
    if job.planned.multi_label:
        return sample._replace(labels=reference.labels, class_names=names)
    return sample._replace(label=reference.labels[0], class_name=names[0])


def _make_values(reference: Reference, fields: Fields, accepted: Accepted, job: Job) -> tuple[Value, ...]:
    cells = fields.cells(reference)
    values = []
    for name, kind in fields.kinds.items():
        image_format = ""
        value: Any
        if name in accepted.files:
            value, image_format = accepted.files[name]
        elif kind in CLASS_KINDS:
            if name == fields.label:
                labelled = [(label, job.planned.classes[label]) for label in reference.labels]
            else:
                class_names = [cells[name]] if kind == "class" else set(cells[name])
                labelled = sorted((job.places[name][class_name], class_name) for class_name in class_names)
            # A sample may be of no class.
            labels, names = zip(*labelled, strict=True) if labelled else ((), ())
            value = (labels[0], names[0]) if kind == "class" else (labels, names)
        else:
            value = cells[name]
        values.append(Value(name, kind, value, image_format))
    return tuple(values)
