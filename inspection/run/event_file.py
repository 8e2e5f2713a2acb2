"""The scalar rows of one events file of TensorBoard's, whatever state the file is in.

An events file is a TFRecord file (records/tfrecord.py has the framing) of messages (inspection/run/event_message.py).
Nothing here raises for what is in a file: what could not be read is said in words.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable

import google_crc32c

from inspection.run.event_message import Budget, Fault, read_event, read_varint, signed
from records.tfrecord import mask_crc

# What is read at a time.
BLOCK_BYTES = 4 << 20
# Longer records are passed over unread: a scalar's has some 50 bytes, those of pictures and graphs are long.
LONGEST_RECORD = 1 << 20
# Curves of a file; a training writes some twenty.
MOST_TAGS = 200
# Distinct names that are counted beyond: their number is only said.
_MOST_COUNTED = 10_000
_LONGEST_TAG = 300
# Remembered of what was read last, to see whether a file that has grown is still the same one.
_TAIL_BYTES = 64

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


class Rows:
    """The rows of a curve, in the order of the file."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.times = array("d")
        self.values = array("f")
        self.ordered = True

    def add(self, step: int, time: float, value: float) -> None:
        """Append a row."""
        if self.steps and step < self.steps[-1]:
            self.ordered = False
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)

    def keep_below(self, step: int) -> Rows:
        """Return the rows of smaller steps: itself, where all are."""
        kept = Rows()
        if self.ordered:
            end = bisect_left(self.steps, step)
            if end == len(self.steps):
                return self
            kept.steps, kept.times, kept.values = self.steps[:end], self.times[:end], self.values[:end]
            return kept
        for row in zip(self.steps, self.times, self.values, strict=True):
            if row[0] < step:
                kept.add(*row)
        return kept


class EventFile:
    """What has been read of one file so far.

    Attributes:
        rows: Of each tag.
        purge_step: The smallest step at which an attempt started in this file: rows of files before it, from that step
            on, are void. None: none started.
        version: Of the file when it was read last, as the caller knows it.
    """

    def __init__(self, name: str, budget: Budget) -> None:
        self.name = name
        self.version: tuple[int, ...] = ()
        self._budget = budget
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[str, Rows] = {}
        self.purge_step: int | None = None
        self.num_rows = 0
        self.position = 0
        self._tail = b""
        self._unread = 0
        self._damaged = 0
        self._ended = ""
        self._left_out: set[str] = set()
        self._rows_left_out = 0
        self._unread_scalars = 0
        # What stands between step and value in the messages met so far -> the rows that it means.
        self._known: dict[bytes, Rows] = {}
        # The twelve bytes before a record -> its length, once they were compared.
        self._lengths: dict[bytes, int] = {}

    def missing(self) -> list[str]:
        """Return what could not be read, in words."""
        said = []
        if self._ended:
            said.append(f"{self.name}: {self._ended}")
        elif self._unread:
            said.append(f"{self.name} ends within a record: its last {self._unread} bytes are not read")
        if self._damaged:
            said.append(f"{self.name}: {self._damaged} damaged records are left out")
        if self._unread_scalars:
            said.append(
                f"{self.name}: {self._unread_scalars} scalars are neither one float32 nor one float64, and left out"
            )
        if self._left_out:
            more = " or more" if len(self._left_out) >= _MOST_COUNTED else ""
            said.append(
                f"{self.name}: {self._rows_left_out} rows of {len(self._left_out)}{more} tags are left out: "
                f"the first {MOST_TAGS} tags of up to {_LONGEST_TAG} characters are kept"
            )
        return said

    def read(self, read_range: Callable[[int, int], bytes], size: int, *, most_rows: int) -> bool:
        """Read what is new.

        Args:
            read_range: Returns the bytes from a place on: so many, or fewer at the end.
            size: Bytes of the file now.
            most_rows: Stop behind the block with which the file has so many.

        Returns:
            Whether all was read that can be.
        """
        if size < self.position:
            self._clear()
        behind = min(self.position, _TAIL_BYTES)
        if behind and read_range(self.position - behind, behind) != self._tail:
            self._clear()
        self._unread = 0
        while self.position < size and not self._ended:
            if self.num_rows >= most_rows or self._budget.bytes <= 0 or self._budget.fields <= 0:
                return False
            wanted = min(BLOCK_BYTES, size - self.position)
            block = read_range(self.position, wanted)
            self._budget.bytes -= len(block)
            used, skipped = self._take(block)
            if self.position + used + skipped > size:
                # Longer than the file is yet.
                skipped = 0
            self.position += used + skipped
            if len(block) < wanted or not used + skipped:
                break
            if skipped or used < _TAIL_BYTES:
                self._tail = read_range(max(0, self.position - _TAIL_BYTES), min(self.position, _TAIL_BYTES))
            else:
                self._tail = block[used - _TAIL_BYTES : used]
        self._unread = size - self.position
        return True

    def _take(self, block: bytes) -> tuple[int, int]:
        """Take the whole records in a block; return their bytes, and those of a long record behind them."""
        at, end, lengths = 0, len(block), self._lengths
        checksum, crc_at = google_crc32c.value, _CRC.unpack_from
        while at + 12 <= end and not self._ended:
            head = block[at : at + 12]
            length = lengths.get(head, -1)
            if length < 0:
                length, crc = _HEAD.unpack(head)
                if mask_crc(checksum(head[:8])) != crc:
                    self._ended = (
                        f"the length of the record at byte {self.position + at} is damaged: the rest is not read"
                    )
                    break
                if len(lengths) < 4096:
                    lengths[head] = length
            if length > LONGEST_RECORD:
                return at, length + 16
            behind = at + 12 + length
            if behind + 4 > end:
                break
            content = block[at + 12 : behind]
            if mask_crc(checksum(content)) == crc_at(block, behind)[0]:
                self._take_event(content)
            else:
                self._damaged += 1
                self._budget.fields -= 1
            at = behind + 4
        return at, 0

    def _take_event(self, content: bytes) -> None:
        # The form that SummaryWriter gives a scalar: time, step, then the same bytes for each row of a tag, the value.
        if len(content) > 16 and content[0] == 0x09:
            at, step = 9, 0
            if content[9] == 0x10:
                step, at = content[10], 11
                if step > 0x7F:
                    try:
                        step, at = read_varint(content, 10)
                    except (Fault, IndexError):
                        self._damaged += 1
                        return
            rows = self._known.get(content[at:-4])
            if rows is not None:
                value = _FLOAT.unpack_from(content, len(content) - 4)[0]
                rows.add(signed(step), _DOUBLE.unpack_from(content, 1)[0], value)
                self.num_rows += 1
                return
        try:
            self._decode_event(content)
        except (Fault, IndexError):
            self._damaged += 1

    def _decode_event(self, content: bytes) -> None:
        event = read_event(content, self._budget)
        if event.starts:
            self._purge(event.step)
        self._unread_scalars += event.unread
        for tag, value in [*event.rows, *(row for row in event.untold if row[0] in self.rows)]:
            rows = self._rows_of(tag)
            if rows is None:
                continue
            rows.add(event.step, event.time, value)
            self.num_rows += 1
            if event.rest and len(self._known) < 4 * MOST_TAGS:
                self._known[event.rest] = rows

    def _rows_of(self, tag: str) -> Rows | None:
        rows = self.rows.get(tag)
        if rows is None:
            if len(self.rows) >= MOST_TAGS or len(tag) > _LONGEST_TAG:
                self._rows_left_out += 1
                if len(self._left_out) < _MOST_COUNTED:
                    self._left_out.add(tag[:_LONGEST_TAG])
                return None
            rows = self.rows[tag] = Rows()
        return rows

    def _purge(self, step: int) -> None:
        """Drop what an attempt before wrote from a step on, as TensorBoard does."""
        self.purge_step = step if self.purge_step is None else min(step, self.purge_step)
        for tag, rows in self.rows.items():
            if not rows.ordered:
                self._budget.fields -= len(rows.steps)
            self.rows[tag] = rows.keep_below(step)
        self._budget.fields -= len(self.rows)
        self._known.clear()
        self.num_rows = sum(len(rows.steps) for rows in self.rows.values())
