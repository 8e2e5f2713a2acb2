"""The curves of a training: what it told TensorBoard, read from its events files, and thinned out to be drawn.

    read_curves(folder)     once
    CurveReader(folder)     again and again while training runs: `poll` reads only what is new

As TensorBoard does it, files are read in the order of their names, and where an attempt went on from a checkpoint, what
an attempt before it wrote beyond that step is dropped. Nothing here raises for what is in a run: what is missing is
said in words. The words hold names out of the run: they are for eyes, and must be escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from contracts import storage
from contracts.errors import ShardlineError
from contracts.stores import ObjectInfo
from inspection.run.event_file import MOST_TAGS, EventFile, Rows
from inspection.run.event_message import Budget
from inspection.run.view import Curve, Curves

# Rows of all files together: 20 bytes each are held.
MOST_ROWS = 4_000_000
# Files: an attempt writes one or two.
MOST_FILES = 2_000
_IS_EVENTS_FILE = "tfevents"
# Small files are asked for side by side: a run with many preemptions has many.
_SMALL_BYTES = 1 << 20
_SMALL_FILES = 64
# What a calendar can show: the years 1970 to 9999, in seconds.
_LATEST_TIME = 253_402_300_799.0
# Words about what is missing: a page shows them all.
_MOST_WORDS = 50


class CurveReader:
    """Reads the events files of a folder, and what is added to them.

    Args:
        folder_uri: A training's tensorboard/, local or in a bucket; it need not be there yet.
    """

    def __init__(self, folder_uri: str) -> None:
        self._uri = folder_uri
        self._files: dict[str, EventFile] = {}
        self._budget = Budget()
        self._trouble: list[str] = []

    @property
    def num_rows(self) -> int:
        """Rows that are held, of all files."""
        return sum(file.num_rows for file in self._files.values())

    def poll(self) -> bool:
        """Read what is new; whether there was anything.

        A record that is not whole yet waits for the next call. A file that was replaced by another is read anew; of one
        that is gone, the rows go too.
        """
        self._trouble, before = [], self._state()
        try:
            found = [info for info in storage.list_objects(self._uri, recursive=False) if _IS_EVENTS_FILE in info.name]
        except (ShardlineError, OSError) as error:
            self._trouble.append(f"the logs of TensorBoard cannot be listed: {error}")
            return False
        if len(found) > MOST_FILES:
            self._trouble.append(f"{len(found) - MOST_FILES} of {len(found)} events files are left out, the oldest")
            found = found[-MOST_FILES:]
        for name in self._files.keys() - {info.name for info in found}:
            del self._files[name]
        versions = {info.name: self._version(info) for info in found}
        changed = [info for info in found if self._file(info.name).version != versions[info.name]]
        contents = self._read_small(changed)
        complete = True
        for info in changed:
            others = sum(file.num_rows for name, file in self._files.items() if name != info.name)
            file = self._file(info.name)
            try:
                all_read = self._read(file, info, contents.get(info.name), most_rows=MOST_ROWS - others)
            except FileNotFoundError:
                # Replaced or deleted since it was listed: the next call sees what there is.
                continue
            except (ShardlineError, OSError) as error:
                self._trouble.append(f"{info.name} cannot be read: {error}")
                continue
            complete &= all_read
            if all_read:
                file.version = versions[info.name]
        if not complete:
            most = f"{MOST_ROWS:,} rows, {Budget().bytes >> 30} GiB"
            self._trouble.append(f"the logs are longer than what is read of them ({most}): the rest is left out")
        return self._state() != before

    def curves(self, points: int = 400) -> Curves:
        """Return what was read so far.

        Args:
            points: Most rows of a curve, at least 4; the first, the last, and the extremes between are among them.
        """
        missing = [*self._trouble, *(said for _, file in sorted(self._files.items()) for said in file.missing())]
        joined = self._join()
        if len(joined) > MOST_TAGS:
            missing.append(f"{len(joined) - MOST_TAGS} of {len(joined)} tags are left out")
        curves = []
        for tag, parts in sorted(sorted(joined.items())[:MOST_TAGS]):
            curve, left_out = _draw(tag, parts, points)
            if left_out:
                missing.append(f"{tag}: {left_out} rows without a finite value and a time are left out")
            if curve.rows or curve.not_finite:
                curves.append(curve)
        if len(missing) > _MOST_WORDS:
            missing = [*missing[:_MOST_WORDS], f"and {len(missing) - _MOST_WORDS} things more"]
        return Curves(curves=curves, rows=sum(curve.rows for curve in curves), missing=missing)

    def _state(self) -> dict[str, tuple[int, int]]:
        return {name: (file.position, file.num_rows) for name, file in self._files.items()}

    def _file(self, name: str) -> EventFile:
        return self._files.setdefault(name, EventFile(name, self._budget))

    def _version(self, info: ObjectInfo) -> tuple[int, ...]:
        """What changes with a file's content."""
        if info.generation is not None or not storage.is_local(self._uri):
            return info.size, info.generation or 0
        try:
            return info.size, Path(storage.local_path(storage.join(self._uri, info.name))).stat().st_mtime_ns
        except OSError:
            return info.size, 0

    def _read_small(self, changed: Sequence[ObjectInfo]) -> dict[str, bytes]:
        """Return the contents of short files that are new, where asking for them together saves time."""
        if storage.is_local(self._uri):
            return {}
        small = [info for info in changed if info.size <= _SMALL_BYTES and not self._file(info.name).position]
        contents = {}
        for start in range(0, len(small), _SMALL_FILES):
            batch = small[start : start + _SMALL_FILES]
            wanted = [storage.Wanted(storage.join(self._uri, info.name), info.generation) for info in batch]
            try:
                read = storage.read_many(wanted)
            except (ShardlineError, OSError):
                # Each is read alone then, and says what is wrong.
                continue
            contents.update(
                {info.name: content for info, content in zip(batch, read, strict=True) if isinstance(content, bytes)}
            )
        return contents

    def _read(self, file: EventFile, info: ObjectInfo, content: bytes | None, *, most_rows: int) -> bool:
        uri = storage.join(self._uri, info.name)

        def read_range(start: int, length: int) -> bytes:
            if content is not None:
                return content[start : start + length]
            return storage.read_range(uri, start, length, info.generation)

        return file.read(read_range, info.size, most_rows=most_rows)

    def _join(self) -> dict[str, list[Rows]]:
        """Return the parts of each curve, the oldest first, without what later attempts made void."""
        joined: dict[str, list[Rows]] = {}
        void_from: int | None = None
        for _, file in sorted(self._files.items(), reverse=True):
            for tag, rows in file.rows.items():
                kept = rows if void_from is None else rows.keep_below(void_from)
                joined.setdefault(tag, []).insert(0, kept)
            if file.purge_step is not None:
                void_from = file.purge_step if void_from is None else min(void_from, file.purge_step)
        return joined


def read_curves(folder_uri: str, *, points: int = 400) -> Curves:
    """Read a training's curves once.

    Args:
        folder_uri: Its tensorboard/, local or in a bucket.
        points: Most rows of a curve, at least 4.
    """
    reader = CurveReader(folder_uri)
    reader.poll()
    return reader.curves(points)


def thin(values: Sequence[float], points: int) -> list[int]:
    """Return the places of the values that are drawn, rising: all, or `points` of them at most.

    The first and the last are among them, and of each of some equally long pieces between, the smallest and the largest
    value (of equal ones the first): a peak of one row is seen, as the min-max method of drawing programs keeps it.

    Raises:
        ValueError: Fewer than 4 points are no curve.
    """
    if points < 4:
        raise ValueError(f"{points} points: at least 4")
    length = len(values)
    if length <= points:
        return list(range(length))
    pieces = (points - 2) // 2
    chosen = {0, length - 1}
    for piece in range(pieces):
        start = 1 + (length - 2) * piece // pieces
        part = values[start : 1 + (length - 2) * (piece + 1) // pieces]
        chosen |= {start + part.index(min(part)), start + part.index(max(part))}
    return sorted(chosen)


def _draw(tag: str, parts: Sequence[Rows], points: int) -> tuple[Curve, int]:
    """Return a curve, and how many rows it cannot show."""
    rows = parts[0]
    if len(parts) > 1:
        rows = Rows()
        for part in parts:
            rows.ordered &= part.ordered and not (rows.steps and part.steps and part.steps[0] < rows.steps[-1])
            rows.steps.extend(part.steps)
            rows.times.extend(part.times)
            rows.values.extend(part.values)
    told = len(rows.steps)
    not_finite, first = 0, None
    # One sum tells of all of them: almost always there is nothing to look for.
    clean = math.isfinite(sum(rows.values)) and told and min(rows.times) >= 0 and max(rows.times) <= _LATEST_TIME
    if not (clean and math.isfinite(sum(rows.times)) and rows.ordered):
        wrong = [step for step, value in zip(rows.steps, rows.values, strict=True) if not math.isfinite(value)]
        not_finite, first = len(wrong), min(wrong, default=None)
        kept = [
            row
            for row in zip(rows.steps, rows.times, rows.values, strict=True)
            if math.isfinite(row[2]) and 0 <= row[1] <= _LATEST_TIME
        ]
        kept.sort(key=lambda row: row[0])
        rows = Rows()
        for row in kept:
            rows.add(*row)
    places = thin(rows.values, points)
    curve = Curve(
        name=tag,
        steps=[rows.steps[place] for place in places],
        times=[rows.times[place] for place in places],
        values=[rows.values[place] for place in places],
        rows=len(rows.steps),
        not_finite=not_finite,
        first_not_finite=first,
    )
    return curve, told - len(rows.steps)
