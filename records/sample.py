"""Types of a sample before and after framing for a shard."""

from __future__ import annotations

from typing import Any, NamedTuple

from contracts.config import FieldKind

# A message of protobuf has less than 2 GiB; tars keep to the same limit.
MAX_SAMPLE_BYTES = (1 << 31) - 1


class Value(NamedTuple):
    """One field of a sample."""

    name: str
    kind: FieldKind
    value: Any
    """image, bytes: the file; text: str; class: place and name of the class; classes: their places and their names;
    number: float; json: the value."""
    image_format: str = ""
    """Format of an image by its content."""


class Sample(NamedTuple):
    """One accepted sample."""

    key: bytes
    """16 bytes that identify the sample: a hash of its path."""
    content: bytes
    """The image file as it is stored; empty where there are `values`."""
    image_format: str
    """Format by content: png, jpeg, ... (records/decode.py)."""
    label: int
    class_name: str
    path: str
    """Path relative to the source, percent-encoded where it is not plain text; '%' always is."""
    width: int
    """In pixels; 0 where it is not known."""
    height: int
    mode: str
    """Colour mode of the stored image, in Pillow's terms (L, RGB, CMYK, ...); empty where it is not known."""
    labels: tuple[int, ...] | None = None
    """All labels of an image that may have several; None where each image has one."""
    class_names: tuple[str, ...] = ()
    """Names of `labels`."""
    values: tuple[Value, ...] = ()
    """The fields of `sharding.fields`, in its order; empty where a sample is an image and a label."""


class Framed(NamedTuple):
    """One sample as a shard stores it: head, body and tail follow each other in the file."""

    head: bytes
    body: bytes
    """The bytes that the index points at: all members of a tar with their padding, or a serialised tf.train.Example."""
    tail: bytes


class ForeignSample(NamedTuple):
    """One sample of a shard that another program wrote."""

    name: str
    """Unique in its shard."""
    offset: int
    """Of `body` in the file."""
    body: bytes
    """As `Framed.body`."""
    image: bytes
    """The image file."""
    label: int | str
    class_name: str | None
    """Name of the class, where the shard has it beside a number."""
