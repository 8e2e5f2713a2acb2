"""The messages in an events file of TensorBoard's: of each, the few fields that scalar rows are in.

Field numbers are those of tensorboard/compat/proto/event.proto and summary.proto: Event.wall_time 1, step 2, summary 5,
session_log 7; Summary.value 1; Value.tag 1, simple_value 2, tensor 8, metadata 9; SummaryMetadata.plugin_data 1;
PluginData.plugin_name 1; SessionLog.status 1, of which START is 1. Those of tensor.proto: TensorProto.dtype 1, of which
DT_FLOAT is 1 and DT_DOUBLE 2, tensor_content 4, float_val 5, double_val 6. They are read by hand: a decoded message
costs several times what these fields cost, and viewers need no tensorboard.
Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_START = 1
# What TensorBoard's page of scalars shows, where a row is a tensor.
_SCALARS = b"scalars"
# dtype -> its number of one.
_NUMBERS = {1: _FLOAT, 2: _DOUBLE}


class Fault(ValueError):
    """A message is not what the format says."""


@dataclass
class Budget:
    """What may still be read of all files together: a log of any size, or one made to be slow, ends in bounded time."""

    bytes: int = 1 << 30
    fields: int = 5_000_000
    """Of messages that are not in the form of most rows; some six a row, and a second takes a million."""


@dataclass
class Event:
    """What is of use in a message."""

    time: float = 0.0
    step: int = 0
    starts: bool = False
    """An attempt starts here: what was told of this step and later ones before is void."""
    rows: list[tuple[str, float]] = field(default_factory=list)
    """Tag and value of each scalar."""
    untold: list[tuple[str, float]] = field(default_factory=list)
    """The same of tensors that do not say what they are, as the first row of their tag in a file does for them all."""
    unread: int = 0
    """Scalars that are tensors of another form than one float32 or float64."""
    rest: bytes = b""
    """What stands between step and value, where a message is time, step, this and the value: any other message that is
    put together so, with the same bytes here, holds a row of the same tag. Empty where it is not of this form."""


def read_event(content: bytes, budget: Budget) -> Event:
    """Return what a message says.

    Raises:
        Fault: It is no message.
        IndexError: It ends within a number.
    """
    event = Event()
    behind_step, behind_summary, ends_with_value = 9, 0, False
    budget.fields -= 1
    for number, value, end in _fields(content, budget):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            event.time = _DOUBLE.unpack(value)[0]
        elif number == 2 and isinstance(value, int):
            event.step, behind_step = signed(value), end
        elif number == 5 and isinstance(value, bytes):
            behind_summary = end
            ends_with_value = _take_scalars(value, event, budget)
        elif number == 7 and isinstance(value, bytes):
            event.starts = any(number == 1 and status == _START for number, status, _ in _fields(value, budget))
    alone = len(event.rows) == 1 and not event.untold and not event.unread
    if alone and ends_with_value and behind_summary == len(content):
        rest = content[behind_step:-4]
        if content[0] == 0x09 and (behind_step == 9 or content[9] == 0x10) and rest[:1] == b"\x2a":
            event.rest = rest
    return event


def _take_scalars(content: bytes, event: Event, budget: Budget) -> bool:
    """Add the scalars in a summary to its event; whether the last one's value is the end of the summary."""
    ends_with_value = False
    for number, summary, end in _fields(content, budget):
        if number != 1 or not isinstance(summary, bytes):
            continue
        tag, value, place = b"", None, 0
        tensor, plugin = None, b""
        for number, text, behind in _fields(summary, budget):
            if number == 1 and isinstance(text, bytes):
                tag = text
            elif number == 2 and isinstance(text, bytes) and len(text) == 4:
                value, place = _FLOAT.unpack(text)[0], behind
            elif number == 8 and isinstance(text, bytes):
                tensor = text
            elif number == 9 and isinstance(text, bytes):
                plugin = _plugin(text, budget)
        if value is not None:
            event.rows.append((tag.decode(errors="replace"), value))
            ends_with_value = place == len(summary) and end == len(content)
        elif tensor is not None and plugin in (_SCALARS, b""):
            value = _number(tensor, budget)
            if value is not None:
                (event.rows if plugin else event.untold).append((tag.decode(errors="replace"), value))
            elif plugin:
                event.unread += 1
    return ends_with_value


def _plugin(metadata: bytes, budget: Budget) -> bytes:
    """Return the name of the plugin that a value is for; empty where none is named."""
    for number, plugin, _ in _fields(metadata, budget):
        if number == 1 and isinstance(plugin, bytes):
            for field_number, name, _ in _fields(plugin, budget):
                if field_number == 1 and isinstance(name, bytes):
                    return name
    return b""


def _number(tensor: bytes, budget: Budget) -> float | None:
    """Return the number that a tensor is; None where it is not one float32 or float64."""
    kind, content = 0, b""
    for number, value, _ in _fields(tensor, budget):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content += value
    form = _NUMBERS.get(kind)
    return form.unpack(content)[0] if form is not None and len(content) == form.size else None


def _fields(content: bytes, budget: Budget) -> Iterator[tuple[int, int | bytes, int]]:
    """Yield number and value of each field of a message, and the place behind it."""
    at = 0
    while at < len(content):
        budget.fields -= 1
        key, at = read_varint(content, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = read_varint(content, at)
            yield key >> 3, value, at
            continue
        if kind == 2:
            length, at = read_varint(content, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise Fault("a kind of field that no message has")
        if at + length > len(content):
            raise Fault("a field is longer than its message")
        value = content[at : at + length]
        at += length
        yield key >> 3, value, at


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it; unlike records.tfrecord's, of ten bytes at most.

    Raises:
        Fault: It is longer.
        IndexError: The content ends within it.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise Fault("a number is longer than any")


def signed(number: int) -> int:
    """Return the int64 that a varint means."""
    number &= 0xFFFFFFFFFFFFFFFF
    return number - (1 << 64) if number >> 63 else number
