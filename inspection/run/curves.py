"""The curves of a training: read from its scalars (contracts/scalars.py), and thinned out to be drawn.

Parts are read in the order of their names, and where an attempt went on from a checkpoint, what attempts before it
wrote beyond that step is dropped. Nothing here raises for what is in a run: what is missing is said in words. The words
hold names out of the run: they are for eyes, and must be escaped.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import le
from typing import cast

from contracts import storage
from contracts.errors import ShardlineError
from contracts.scalars import PART_NAME
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


def read_curves(folder_uri: str, *, points: int = 400) -> Curves:
    """Read a training's curves.

    Args:
        folder_uri: Its scalars/, local or in a bucket; it need not be there yet.
        points: Most rows of a curve, at least 4; the first, the last, and the extremes between are among them.
    """
    files, missing = _read_files(folder_uri)
    missing += [said for file in files for said in file.missing()]
    joined = _join(files)
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


def _read_files(folder_uri: str) -> tuple[list[ScalarFile], list[str]]:
    """Return the files of a folder of scalars by name, and what could not be read, in words."""
    missing: list[str] = []
    try:
        listed = list(storage.list_objects(folder_uri, recursive=False))
    except (ShardlineError, OSError) as error:
        return [], [f"the scalars cannot be listed: {error}"]
    found = sorted((info for info in listed if PART_NAME.fullmatch(info.name)), key=lambda info: info.name)
    if len(found) > MOST_FILES:
        missing.append(f"{len(found) - MOST_FILES} of {len(found)} parts are left out, the oldest")
        found = found[-MOST_FILES:]
    contents = _read_small(folder_uri, found)
    files: list[ScalarFile] = []
    complete, num_values = True, 0
    for info in found:
        file = ScalarFile(info.name)
        try:
            complete &= _read(folder_uri, file, info, contents.get(info.name), most_values=MOST_VALUES - num_values)
        except (ShardlineError, OSError) as error:
            missing.append(f"{info.name} cannot be read: {error}")
        files.append(file)
        num_values += file.num_values
    if not complete:
        missing.append(f"there are more scalars than are read ({MOST_VALUES:,} values): the rest is left out")
    return files, missing


def _read_small(folder_uri: str, found: Sequence[storage.ObjectInfo]) -> dict[str, bytes]:
    """Return the contents of short files by name, where asking for them together saves time."""
    if storage.is_local(folder_uri):
        return {}
    small = [info for info in found if info.size <= _SMALL_BYTES]
    contents = {}
    for start in range(0, len(small), _SMALL_FILES):
        batch = small[start : start + _SMALL_FILES]
        # Not by their generations: a file that was replaced since by a longer one begins with the same rows.
        wanted = [storage.Wanted(storage.join(folder_uri, info.name)) for info in batch]
        try:
            read = storage.read_many(wanted)
        except (ShardlineError, OSError):
            # Each is read alone then, and says what is wrong.
            continue
        contents.update(
            {info.name: content for info, content in zip(batch, read, strict=True) if isinstance(content, bytes)}
        )
    return contents


def _read(
    folder_uri: str, file: ScalarFile, info: storage.ObjectInfo, content: bytes | None, *, most_values: int
) -> bool:
    """Read a file; return whether all was read that can be."""
    uri = storage.join(folder_uri, info.name)

    def read_range(start: int, length: int) -> bytes:
        if content is not None:
            return content[start : start + length]
        return storage.read_range(uri, start, length)

    return file.read(read_range, info.size, most_values=most_values)


def _join(files: Sequence[ScalarFile]) -> dict[str, list[Part]]:
    """Return the parts of each scalar by its name, the oldest first, without what later attempts made void."""
    joined: dict[str, list[Part]] = {}
    void_beyond: int | None = None
    for file in reversed(files):
        for rows in file.rows:
            for name, *part in rows.columns(void_beyond):
                joined.setdefault(name, []).insert(0, cast(Part, tuple(part)))
        if file.start is not None:
            void_beyond = file.start if void_beyond is None else min(void_beyond, file.start)
    return joined


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
