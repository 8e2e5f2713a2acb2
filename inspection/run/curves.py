"""The curves of a training: read from its scalars (contracts/scalars.py), and thinned out to be drawn.

    read_curves(folder)     once
    CurveReader(folder)     again and again while training runs: `poll` reads only what is new

Parts are read in the order of their names, and where an attempt went on from a checkpoint, what attempts before it
wrote beyond that step is dropped. Nothing here raises for what is in a run: what is missing is said in words. The words
hold names out of the run: they are for eyes, and must be escaped.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import le
from pathlib import Path
from typing import cast

from contracts import storage
from contracts.errors import ShardlineError
from contracts.scalars import PART_NAME
from contracts.stores import ObjectInfo
from inspection.run.scalars import MOST_NAMES, ScalarFile
from inspection.run.view import Curve, Curves

# Values of all parts together: 8 bytes each are held, and 16 for each line.
MOST_VALUES = 4_000_000
# Parts of a megabyte; an attempt has one at least.
MOST_FILES = 2_000
# Small parts are asked for side by side: a run with many preemptions has many.
_SMALL_BYTES = 1 << 20
_SMALL_FILES = 64
# What a calendar can show: the years 1970 to 9999, in seconds.
_LATEST_TIME = 253_402_300_799.0
# Words about what is missing: a page shows them all.
_MOST_WORDS = 50

Part = tuple["array[int]", "array[float]", "array[float]"]
"""Steps, times and values."""


class CurveReader:
    """Reads the scalars in a folder, and what is added to them.

    Args:
        folder_uri: A training's scalars/, local or in a bucket; it need not be there yet.
    """

    def __init__(self, folder_uri: str) -> None:
        self._uri = folder_uri
        self._files: dict[str, ScalarFile] = {}
        self._trouble: list[str] = []

    @property
    def num_values(self) -> int:
        """Values that are held, of all parts."""
        return sum(file.num_values for file in self._files.values())

    def poll(self) -> bool:
        """Read what is new; whether there was anything.

        A line that is not whole yet waits for the next call. A file that was replaced by another is read anew; of one
        that is gone, the values go too.
        """
        self._trouble, before = [], self._state()
        try:
            listed = list(storage.list_objects(self._uri, recursive=False))
        except (ShardlineError, OSError) as error:
            self._trouble.append(f"the scalars cannot be listed: {error}")
            return False
        found = [info for info in listed if PART_NAME.fullmatch(info.name)]
        if len(found) > MOST_FILES:
            self._trouble.append(f"{len(found) - MOST_FILES} of {len(found)} parts are left out, the oldest")
            found = found[-MOST_FILES:]
        for name in self._files.keys() - {info.name for info in found}:
            del self._files[name]
        versions = {info.name: self._version(info) for info in found}
        changed = [info for info in found if self._file(info.name).version != versions[info.name]]
        contents = self._read_small(changed)
        complete = True
        for info in changed:
            file = self._file(info.name)
            room = MOST_VALUES - self.num_values + file.num_values
            try:
                all_read = self._read(file, info, contents.get(info.name), most_values=room)
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
            self._trouble.append(f"there are more scalars than are read ({MOST_VALUES:,} values): the rest is left out")
        return self._state() != before

    def curves(self, points: int = 400) -> Curves:
        """Return what was read so far.

        Args:
            points: Most rows of a curve, at least 4; the first, the last, and the extremes between are among them.
        """
        missing = [*self._trouble, *(said for _, file in sorted(self._files.items()) for said in file.missing())]
        joined = self.parts()
        starts = [file.start for file in self._files.values() if file.start is not None]
        if starts and min(starts) > 0 and joined:
            missing.append(
                f"there are no scalars up to step {min(starts):,}: versions before 0.2.0 wrote curves for TensorBoard "
                "alone (shardline tensorboard RUN)"
            )
        if len(joined) > MOST_NAMES:
            missing.append(f"{len(joined) - MOST_NAMES} of {len(joined)} scalars are left out")
        curves = []
        for name, parts in sorted(sorted(joined.items())[:MOST_NAMES]):
            curve, left_out = _draw(name, parts, points)
            if left_out:
                missing.append(f"{name}: {left_out} rows without a finite value and a time are left out")
            if curve.rows or curve.not_finite:
                curves.append(curve)
        if len(missing) > _MOST_WORDS:
            missing = [*missing[:_MOST_WORDS], f"and {len(missing) - _MOST_WORDS} things more"]
        return Curves(curves=curves, rows=sum(curve.rows for curve in curves), missing=missing)

    def _state(self) -> dict[str, tuple[int, int]]:
        return {name: (file.position, file.num_values) for name, file in self._files.items()}

    def _file(self, name: str) -> ScalarFile:
        return self._files.setdefault(name, ScalarFile(name))

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

    def _read(self, file: ScalarFile, info: ObjectInfo, content: bytes | None, *, most_values: int) -> bool:
        uri = storage.join(self._uri, info.name)

        def read_range(start: int, length: int) -> bytes:
            if content is not None:
                return content[start : start + length]
            return storage.read_range(uri, start, length, info.generation)

        return file.read(read_range, info.size, most_values=most_values)

    def parts(self) -> dict[str, list[Part]]:
        """Return the parts of each scalar by its name, the oldest first, without what later attempts made void."""
        joined: dict[str, list[Part]] = {}
        void_beyond: int | None = None
        for _, file in sorted(self._files.items(), reverse=True):
            for rows in file.rows:
                for name, *part in rows.columns(void_beyond):
                    joined.setdefault(name, []).insert(0, cast(Part, tuple(part)))
            if file.start is not None:
                void_beyond = file.start if void_beyond is None else min(void_beyond, file.start)
        return joined


def read_curves(folder_uri: str, *, points: int = 400) -> Curves:
    """Read a training's curves once.

    Args:
        folder_uri: Its scalars/, local or in a bucket.
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


def _draw(name: str, parts: Sequence[Part], points: int) -> tuple[Curve, int]:
    """Return a curve, and how many rows it cannot show."""
    steps, times, values = array("q"), array("d"), array("d")
    for more_steps, more_times, more_values in parts:
        steps += more_steps
        times += more_times
        values += more_values
    told = len(steps)
    not_finite, first = 0, None
    # One sum tells of all of them: almost always there is nothing to look for.
    clean = math.isfinite(sum(values)) and told and min(times) >= 0 and max(times) <= _LATEST_TIME
    if not (clean and math.isfinite(sum(times)) and all(map(le, steps, steps[1:]))):
        wrong = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
        not_finite, first = len(wrong), min(wrong, default=None)
        kept = [
            row
            for row in zip(steps, times, values, strict=True)
            if math.isfinite(row[2]) and 0 <= row[1] <= _LATEST_TIME
        ]
        kept.sort(key=lambda row: row[0])
        columns = zip(*kept, strict=True) if kept else ((), (), ())
        steps, times, values = (array(kind, column) for kind, column in zip("qdd", columns, strict=True))
    places = thin(values, points)
    curve = Curve(
        name=name,
        steps=[steps[place] for place in places],
        times=[times[place] for place in places],
        values=[values[place] for place in places],
        rows=len(steps),
        not_finite=not_finite,
        first_not_finite=first,
    )
    return curve, told - len(steps)
