"""The messages in an events file of TensorBoard's: of each, the few fields that scalar rows are in.

Field numbers are those of tensorboard/compat/proto/event.proto and summary.proto: Event.wall_time 1, step 2, summary 5,
session_log 7; Summary.value 1; Value.tag 1, simple_value 2; SessionLog.status 1, of which START is 1. They are read by
hand: a decoded message costs several times what these fields cost, and viewers need no tensorboard.
Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_START = 1


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
            rows, ends_with_value = _scalars(value, budget)
            event.rows += rows
        elif number == 7 and isinstance(value, bytes):
            event.starts = any(number == 1 and status == _START for number, status, _ in _fields(value, budget))
    if len(event.rows) == 1 and ends_with_value and behind_summary == len(content):
        rest = content[behind_step:-4]
        if content[0] == 0x09 and (behind_step == 9 or content[9] == 0x10) and rest[:1] == b"\x2a":
            event.rest = rest
    return event


def _scalars(content: bytes, budget: Budget) -> tuple[list[tuple[str, float]], bool]:
    """Return tag and value of each scalar in a summary, and whether nothing stands behind the last."""
    rows, ends_with_value = list[tuple[str, float]](), False
    for number, summary, end in _fields(content, budget):
        if number != 1 or not isinstance(summary, bytes):
            continue
        tag, value, place = b"", None, 0
        for number, text, behind in _fields(summary, budget):
            if number == 1 and isinstance(text, bytes):
                tag = text
            elif number == 2 and isinstance(text, bytes) and len(text) == 4:
                value, place = _FLOAT.unpack(text)[0], behind
        if value is not None:
            rows.append((tag.decode(errors="replace"), value))
            ends_with_value = place == len(summary) and end == len(content)
    return rows, ends_with_value


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
